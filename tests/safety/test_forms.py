"""Every valid form of options is read."""

import argparse
import zipfile

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from support.hostile import save, small_state
from support.models import make_stock

from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, head_gates_class
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.plugin.options.stored import declared_options, model_options, transformer_options

# --- what is valid ---------------------------------------------------------------------------------------------------


# Files of embeddings, and options that no model of fairseq reads.
NOT_NEEDED = {"encoder_embed_path", "decoder_embed_path", "char_inputs", "ngram_predictor", "no_share_last_layer"}


def preset(name):
    args = argparse.Namespace(arch=name)
    ARCH_CONFIG_REGISTRY[name](args)
    return args


def test_the_options_of_every_preset_are_accepted():
    ours = [name for name, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, HeadGatesMixin)]
    stock = [name for name, model in ARCH_MODEL_REGISTRY.items() if model is TransformerModel]
    assert len(ours) > 15 and len(stock) > 5
    for name in [*ours, *stock]:
        args, model = vars(preset(name)), head_gates_class(name).stock
        kept = vars(model_options(args, model))
        known = {**declared_options(model), **transformer_options()}
        expected = {key: value for key, value in args.items() if key in known}
        for cutoff in ("adaptive_input_cutoff", "adaptive_softmax_cutoff"):  # text that fairseq evaluates
            if expected.get(cutoff):
                expected[cutoff] = [int(number) for number in expected[cutoff].split(",")]
        assert kept == expected and args.keys() - kept.keys() <= NOT_NEEDED


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


def test_every_option_of_this_plugin_is_read_from_checkpoints():
    """All but those that building a model for `headgates` does not need."""
    read = transformer_options()
    assert set(DEFAULTS) - set(read) == {"freeze_params", "freeze_dropout"}
