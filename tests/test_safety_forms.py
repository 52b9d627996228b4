"""Odd and damaged forms give one line; every valid form is read."""

import argparse
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

from fairseq_headgates.checkpoints import build_model, load_checkpoint
from fairseq_headgates.checkpoints.sizes import MOST_LAYERS, check_sizes
from fairseq_headgates.options import DEFAULTS
from fairseq_headgates.safety import model_options
from fairseq_headgates.safety.options import OWN_OPTIONS, transformer_options


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
SHARES = [
    pytest.param(ODD_VALUES[::6], id="some"),
    pytest.param([v for i, v in enumerate(ODD_VALUES) if i % 6], id="others", marks=pytest.mark.rehearsal),
]
PLACES = [
    ("args",), ("cfg",), ("model",), ("optimizer_history",), ("extra_state",), ("last_optimizer_state",),
    ("optimizer_history", 0), ("optimizer_history", 0, "num_updates"), ("optimizer_history", 0, "criterion_name"),
    ("extra_state", "ema"), ("extra_state", "train_iterator"), ("cfg", "model"), ("cfg", "model", "arch"),
    ("cfg", "model", "_name"), ("cfg", "task"), ("cfg", "common"), ("cfg", "criterion"),
    ("cfg", "model", "alive_heads"), ("cfg", "model", "freeze_params"), ("cfg", "model", "criterion"),
    ("model", "encoder.layers.0.self_attn.q_proj.weight"), ("model", "encoder.layers.0.self_attn.gate.log_alpha"),
]  # fmt: skip


@pytest.mark.parametrize("values", SHARES)
@pytest.mark.parametrize("where", PLACES, ids=lambda where: ".".join(map(str, where)))
def test_odd_forms_give_one_line_or_are_read(where, values, attempts, tmp_path):
    state = small_state("gated")
    path, out = tmp_path / "odd.pt", tmp_path / "out.pt"
    for value in values:
        save(change(state, where, value), path)
        for options in [["--force"], *([["--force", "--stock"]] if where[0] == "cfg" else [])]:
            ended = attempts.run("headgates", "prune", path, out, *options)
            assert ended.orderly, (value, options, ended)


def test_an_option_that_hydra_cannot_parse_gives_one_line(attempts, tmp_path):
    path = tmp_path / "odd.pt"
    save(change(small_state("gated"), ("cfg", "model", "max_epoch"), {"": None}), path)
    assert attempts.run("headgates", "prune", path, tmp_path / "out.pt", "--stock").refused


# --- what is valid ---------------------------------------------------------------------------------------------------


class Vocabulary:
    """A dictionary that is larger than every cutoff of an adaptive softmax."""

    def __len__(self):
        return 1_000_000

    def pad(self):
        return 1


def test_the_options_of_every_preset_are_accepted():
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.models import HeadGatesMixin, head_gates_class

    presets = [
        name
        for name, model in ARCH_MODEL_REGISTRY.items()
        if model is TransformerModel or issubclass(model, HeadGatesMixin)
    ]
    assert len(presets) > 30
    dictionary = Vocabulary()
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, consecutive=True)
    task.max_positions = lambda: 512
    for name in presets:
        args = argparse.Namespace(arch=name)
        ARCH_CONFIG_REGISTRY[name](args)
        kept = vars(model_options(vars(args)))
        known = transformer_options()
        expected = {key: value for key, value in vars(args).items() if key in known}
        for cutoff in ("adaptive_input_cutoff", "adaptive_softmax_cutoff"):  # text that fairseq evaluates
            if expected.get(cutoff):
                expected[cutoff] = [int(number) for number in expected[cutoff].split(",")]
        assert kept == expected
        dropped = set(vars(args)) - set(kept)
        assert dropped <= {"encoder_embed_path", "decoder_embed_path", "char_inputs"}, dropped
        model_class = head_gates_class(name)
        for layers in {"encoder_layers", "decoder_layers"} & set(vars(args)):  # which are alike
            assert getattr(args, layers) <= MOST_LAYERS
            setattr(args, layers, 1)
        with FakeTensorMode():  # at its full width, without memory
            weights = model_class.stock.build_model(copy.deepcopy(args), task).state_dict()
        check_sizes(model_options(vars(args)), weights, task, model_class)


# Options that `headgates` does not need: the weights tell of classification heads; fairseq's own pruning of RoBERTa and
# its alignment loss are not supported.
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


@pytest.mark.parametrize("cutoff", ["10,20", [10, 20], "[10, 20]", "(10,20)"])
@pytest.mark.parametrize("form", ["args", "cfg", "dict"])
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


def test_damaged_tails_and_heads(attempts, tmp_path):
    path = save(small_state("gated"), tmp_path / "x.pt")
    whole = path.read_bytes()
    for keep in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        assert attempts.run("headgates", "show", path).refused
    path.write_bytes(struct.pack("<Q", 2**63) + whole)
    assert attempts.run("headgates", "show", path).orderly


def test_every_option_of_this_plugin_is_read_from_checkpoints():
    """All but those that building a model for `headgates` does not need."""
    assert set(DEFAULTS) - {"freeze_params", "freeze_dropout"} <= set(OWN_OPTIONS)
