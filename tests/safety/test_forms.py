"""Odd and damaged forms give one line; every valid form is read."""

import argparse
import contextlib
import copy
import struct
import zipfile
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from support.hostile import save, small_state
from support.models import make_stock
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import Vocabulary, build_model, load_model, read_heads
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.checkpoints.sizes import MOST_LAYERS, check_sizes
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.plugin.options.stored import declared_options, model_options, transformer_options


def change(state, where, value):
    """`state` with `value` at the path `where`."""
    changed = copy.copy(state)
    inner = changed
    for key in where[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    inner[where[-1]] = value
    return changed


ODD_VALUES = [None, 3, -1.5, "text", [], [1, [2]], {}, {"a": {"b": 1}}, b"bytes", torch.zeros(2), (1,), True, {1: 2}]
# Places that `headgates show` reads already, those that only removing heads reads, and those that also --stock reads.
LOADED = [
    ("args",), ("cfg",), ("model",), ("cfg", "model"), ("cfg", "model", "arch"), ("cfg", "model", "_name"),
    ("cfg", "model", "alive_heads"), ("model", "encoder.layers.0.self_attn.q_proj.weight"),
    ("model", "encoder.layers.0.self_attn.gate.log_alpha"),
]  # fmt: skip
PRUNED = [
    ("last_optimizer_state",), ("optimizer_history", 0), ("optimizer_history", 0, "num_updates"),
    ("optimizer_history", 0, "criterion_name"), ("extra_state", "ema"), ("cfg", "common"),
    ("cfg", "model", "freeze_params"),
]  # fmt: skip
CONVERTED = [
    ("optimizer_history",), ("extra_state",), ("extra_state", "train_iterator"), ("cfg", "task"), ("cfg", "criterion"),
    ("cfg", "model", "criterion"),
]  # fmt: skip


def dotted(where):
    return ".".join(map(str, where))


@pytest.fixture(scope="module")
def model():
    return build_model(small_state("gated"))


@pytest.mark.parametrize("where", [*LOADED, *PRUNED, *CONVERTED], ids=dotted)
def test_unexpected_values_are_read_or_refused_with_value_error(where, model, tmp_path):
    """Any exception but ValueError would be a traceback. A number, text or list for each place, and any other value."""
    path, number = tmp_path / "odd.pt", len(dotted(where))
    tables = [] if where in LOADED else [{1: 2}]  # of odd values in most of these places, loading refuses all others
    for value in (ODD_VALUES[1 + 2 * (number % 3)], ODD_VALUES[number % 13], *tables):
        save(change(small_state("gated"), where, value), path)
        with contextlib.suppress(ValueError):
            if where in LOADED:
                state, built = load_model(str(path))
                read_heads(state, "odd.pt", built)
                continue
            state, built = load_model(str(path)) if where[0] == "cfg" else (load_checkpoint(str(path)), model)
            prune_checkpoint(state, open_mask(built), model=built)
            if where in CONVERTED:
                stock_checkpoint(state, open_mask(built), built)


@pytest.mark.parametrize(
    ("where", "values"),
    [
        pytest.param(("extra_state", "ema"), [{"a": {"b": 1}}], id="an average"),
        pytest.param(("cfg", "criterion"), [{"a": {"b": 1}}], id="a criterion"),
        *(
            pytest.param(where, ODD_VALUES, marks=pytest.mark.rehearsal, id=dotted(where))
            for where in [*LOADED, *PRUNED, *CONVERTED]
        ),
    ],
)
def test_commands_read_unexpected_values_or_refuse_them_in_one_line(where, values, attempts, tmp_path):
    path, pruned = tmp_path / "odd.pt", ["prune", tmp_path / "odd.pt", tmp_path / "out.pt", "--force"]
    command = ["show", path] if where in LOADED else pruned if where in PRUNED else [*pruned, "--stock"]
    for value in values:
        save(change(small_state("gated"), where, value), path)
        ended = attempts.run("headgates", *command)
        assert ended.orderly, (value, ended)


def test_an_option_that_hydra_cannot_parse_gives_one_line(attempts, tmp_path):
    path = tmp_path / "odd.pt"
    save(change(small_state("gated"), ("cfg", "model", "max_epoch"), {"": None}), path)
    assert attempts.run("headgates", "prune", path, tmp_path / "out.pt", "--stock").refused


# --- what is valid ---------------------------------------------------------------------------------------------------


# Models that need a task of their own, or more than one layer: tests/fairseq/test_families.py builds them.
BUILT_ELSEWHERE = ("multilingual", "s2t_", "convtransformer", "insertion", "levenshtein", "lightconv")
# Files of embeddings, and options that no model of fairseq reads.
NOT_NEEDED = {"encoder_embed_path", "decoder_embed_path", "char_inputs", "ngram_predictor", "no_share_last_layer"}


def test_the_options_of_every_preset_are_accepted():
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, head_gates_class

    presets = [
        name
        for name, model in ARCH_MODEL_REGISTRY.items()
        if model is TransformerModel or issubclass(model, HeadGatesMixin)
    ]
    assert len(presets) > 30
    dictionary = Vocabulary(1_000_000)  # larger than every cutoff of an adaptive softmax
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, consecutive=True)
    task.max_positions = lambda: 512
    structures = {}  # one preset for each, the widest: sizes aside, the others are built alike
    for name in presets:
        args = argparse.Namespace(arch=name)
        ARCH_CONFIG_REGISTRY[name](args)
        model_class = head_gates_class(name)
        kept = vars(model_options(vars(args), model_class.stock))
        known = {**declared_options(model_class.stock), **transformer_options()}
        expected = {key: value for key, value in vars(args).items() if key in known}
        for cutoff in ("adaptive_input_cutoff", "adaptive_softmax_cutoff"):  # text that fairseq evaluates
            if expected.get(cutoff):
                expected[cutoff] = [int(number) for number in expected[cutoff].split(",")]
        assert kept == expected
        dropped = set(vars(args)) - set(kept)
        assert dropped <= NOT_NEEDED, dropped
        if name.startswith(BUILT_ELSEWHERE):
            continue
        for layers in {"encoder_layers", "decoder_layers"} & set(vars(args)):  # which are alike
            assert getattr(args, layers) <= MOST_LAYERS
            setattr(args, layers, 1)
        switches = {key: value for key, value in vars(args).items() if type(value) not in (int, float)}
        structure = repr(sorted({**switches, "arch": model_class}.items(), key=str))
        width = max(value for key, value in vars(args).items() if key.endswith("embed_dim"))
        if width > structures.get(structure, (0,))[0]:
            structures[structure] = width, name, args
    for _, name, args in structures.values():
        model_class = head_gates_class(name)
        with FakeTensorMode():  # at its full width, without memory
            weights = model_class.stock.build_model(copy.deepcopy(args), task).state_dict()
        check_sizes(model_options(vars(args), model_class.stock), weights, task, model_class)


# Options that a transformer does not have: the weights tell of classification heads; fairseq's pruning of RoBERTa is
# not supported; those of alignments are read with the model that declares them.
UNUSED = {"load_checkpoint_heads", "alignment_heads", "alignment_layer", "full_context_alignment"}
UNUSED |= {"mha_reg_scale_factor", "ffn_reg_scale_factor", "mha_heads_to_keep", "ffn_blocks_to_remove"}
OURS = ["transformer_head_gates", "transformer_lm_head_gates", "roberta_head_gates", "transformer_lm_all_attention"]
# A value on the command line, by how the name of the option ends; the others are numbers.
VALUES = {"layers_to_keep": "0,2", "cutoff": "10,20", "filters": "[(1, 4)]"}


@pytest.mark.parametrize("arch", ["transformer", "transformer_align", "transformer_lm", "roberta", *OURS])
def test_the_options_of_every_architecture_are_accepted_as_fairseqs_parser_stores_them(arch):
    """With the value that the model uses: fairseq's parser stores some numbers as text."""
    parser = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    for action in parser._actions[1:]:
        if action.dest in DEFAULTS:  # of this plugin: the model stores them itself
            continue
        value = next((text for end, text in VALUES.items() if action.dest.endswith(end)), "2")
        value = next(iter(action.choices), None) if action.choices else value
        words = [action.option_strings[-1]] if action.nargs == 0 else [f"{action.option_strings[-1]}={value}"]
        args = parser.parse_args(words)
        found = vars(model_options(vars(args))).get(action.dest)
        if action.dest not in transformer_options():
            assert found is None and (action.dest in UNUSED or action.dest.endswith("embed_path")), action.dest
        elif action.dest.endswith("cutoff"):
            assert found == [10, 20]
        else:
            assert found is True if action.nargs == 0 else str(found) in (value, f"{value}.0"), (action.dest, found)


@pytest.mark.parametrize(
    ("form", "cutoff"),
    [("args", "10,20"), ("cfg", [10, 20]), ("dict", "[10, 20]"), ("args", "(10,20)"), ("dict", [10, 20])],
)
def test_adaptive_softmax_loads_in_every_form(cutoff, form, tmp_path):
    state = small_state(form, adaptive_softmax_cutoff=cutoff)
    state["model"] = make_stock(adaptive_softmax_cutoff="10,20").state_dict()
    model = build_model(load_checkpoint(str(save(state, tmp_path / "a.pt"))))
    assert model.decoder.adaptive_softmax.cutoff[:2] == [10, 20]


def test_a_file_of_torch_before_1_6_loads(tmp_path):
    state, path = small_state("args"), tmp_path / "old.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    build_model(load_checkpoint(str(path)))
    state["args"].adaptive_softmax_cutoff = "print(1)"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="adaptive_softmax_cutoff"):
        load_checkpoint(str(path))
    path.write_bytes(path.read_bytes().replace(b"argparse\nNamespace", b"subprocess\nPopenxx"))
    with pytest.raises(ValueError, match="it holds subprocess.Popenxx"):
        load_checkpoint(str(path))


def test_truncated_or_prefixed_checkpoints_are_refused(attempts, tmp_path):
    path = save(small_state("gated"), tmp_path / "x.pt")
    whole = path.read_bytes()
    for keep in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        assert attempts.run("headgates", "show", path).refused
    path.write_bytes(struct.pack("<Q", 2**63) + whole)
    assert attempts.run("headgates", "show", path).orderly


def test_every_option_of_this_plugin_is_read_from_checkpoints():
    """All but those that building a model for `headgates` does not need."""
    read = transformer_options()
    assert set(DEFAULTS) - set(read) == {"freeze_params", "freeze_dropout"}
