"""The checkpoint that a training starts from decides the options of the model; half precision needs a GPU."""

import argparse
import copy
import os
from functools import partial

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY, build_model
from fairseq.models.bart import BARTModel
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from support.any_model import options as any_options
from support.any_model import text_task
from support.classifiers import SIZES as ROBERTA_SIZES
from support.classifiers import make_sentences, states
from support.commands import GATED, USER_DIR
from support.language_models import make_lm_args, make_text
from support.models import logits, make_args, make_batch, make_task

from fairseq_headgates.extensions.all_attention.model import TransformerLMAllAttentionModel
from fairseq_headgates.plugin.models.start import MARK

RESET = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
ROBERTA = {"max_positions": 14, "encoder_normalize_before": True, "untie_weights_roberta": True}
ADAPTIVE = {"tie_adaptive_weights": True, "adaptive_input": True, "adaptive_input_cutoff": "10,20"}
# By architecture and task of a training: the model of the checkpoint, and its options.
FAMILIES = {
    ("transformer_head_gates", "translation"): (
        TransformerModel,
        make_args(activation_fn="gelu", no_scale_embedding=True, share_all_embeddings=True, decoder_layers=1),
    ),
    ("transformer_head_gates_acl19", "translation"): (
        TransformerModel,
        make_args(decoder_output_dim="16", encoder_learned_pos=True, max_source_positions=50, decoder_embed_dim=48),
    ),
    ("transformer_lm_head_gates", "language_modeling"): (
        TransformerLanguageModel,
        make_lm_args(**ADAPTIVE, adaptive_softmax_cutoff="10,20", decoder_learned_pos=True),
    ),
    ("transformer_lm_head_gates_gpt", "language_modeling"): (
        TransformerLanguageModel,
        make_lm_args(decoder_normalize_before=True, decoder_layers=1),
    ),
    ("roberta_head_gates", "masked_lm"): (RobertaModel, argparse.Namespace(**ROBERTA_SIZES, **ROBERTA)),
    ("transformer_lm_all_attention_small", "language_modeling_segments"): (
        TransformerLMAllAttentionModel,
        make_lm_args(persistent_vectors=3, mem_len=5, decoder_embed_dim=16),
    ),
}


def parse(arch, *words, task="translation"):
    """The options as fairseq-train has them."""
    words = ["data", "--arch", arch, "--task", task, "--user-dir", USER_DIR, *words]
    return options.parse_args_and_arch(options.get_training_parser(), [str(word) for word in words])


parse_translation = partial(parse, "transformer_head_gates")


def make_data():
    """A task of any kind, as far as models need it."""
    data = make_task()
    data.consecutive, data.max_positions = True, lambda: 14
    return data


def save(path, model_class=TransformerModel, args=None, **stored):
    """A checkpoint of a model, and the model; `stored` are options that it names, but was not built with."""
    args = copy.deepcopy(args or make_args())
    torch.manual_seed(1)
    model = model_class.build_model(args, make_data()).eval()
    named = argparse.Namespace(**{**vars(args), "arch": "transformer", **stored})
    torch.save({"args": named, "model": model.state_dict()}, path)
    return model


@pytest.fixture
def refused(capsys):
    """refused(*words, arch=, task=) parses words of the command line, which ends with one line. Return it."""

    def refused(*words, arch="transformer_head_gates", **choices):
        with pytest.raises(SystemExit) as ended:
            parse(arch, *words, **choices)
        line = capsys.readouterr().err
        assert ended.value.code == 2 and line.count("\n") == 1 and line.startswith("fairseq-headgates: error: ")
        return line

    return refused


@pytest.mark.parametrize(("arch", "task"), FAMILIES)
def test_options_of_the_model_are_taken_from_the_checkpoint(arch, task, tmp_path):
    """Without an option for them, the model computes what that of the checkpoint computes."""
    model_class, stored = FAMILIES[arch, task]
    names = {TransformerLanguageModel: "transformer_lm", RobertaModel: "roberta", TransformerModel: "transformer"}
    before = save(tmp_path / "a.pt", model_class, stored, arch=names.get(model_class, arch))
    args = parse(arch, "--finetune-from-model", tmp_path / "a.pt", task=task)
    assert not hasattr(args, MARK) and args.dropout == 0.1  # of the preset: it is of the training
    model = build_model(args, make_data()).eval()
    model.load_state_dict(before.state_dict(), strict=True)
    torch.testing.assert_close(computed(model), computed(before), rtol=0, atol=1e-6)


def computed(model):
    if isinstance(model, TransformerModel):
        return logits(model, make_batch())
    return states(model, make_sentences()) if isinstance(model, RobertaModel) else logits(model, make_text())


def test_options_that_differ_are_logged(caplog, tmp_path):
    """The weights fit any number of heads, so fairseq loads them, and the model computes something else."""
    path = tmp_path / "a.pt"
    save(path, args=make_args(activation_fn="gelu"))
    for start in (["--finetune-from-model", path], ["--restore-file", path, *RESET]):
        args = parse_translation(*start, "--encoder-attention-heads", 8, "--activation-fn", "gelu", "--dropout", 0.3)
        assert args.encoder_attention_heads == 8 and args.decoder_attention_heads == 4
        assert f"--encoder-attention-heads 8 given, but the checkpoint {path} has other values" in caplog.text
        caplog.clear()


def test_options_that_a_checkpoint_of_others_does_not_store(caplog, tmp_path):
    """Its architecture is unknown: what fairseq's has may be wrong, so the options of the training count."""
    path, heads = tmp_path / "a.pt", ["--encoder-attention-heads", 4, "--decoder-attention-heads", 4]
    save(path, arch="theirs")
    state = torch.load(path, weights_only=False)
    del state["args"].encoder_attention_heads, state["args"].decoder_attention_heads
    torch.save(state, path)
    assert parse_translation("--finetune-from-model", path, *heads).decoder_attention_heads == 4
    assert "show encoder_attention_heads, decoder_attention_heads: give" in caplog.text


def test_a_preset_that_cannot_have_the_options_of_the_checkpoint(refused, tmp_path):
    """fairseq's presets of language models are pre-norm."""
    save(tmp_path / "a.pt", TransformerLanguageModel, make_lm_args(), arch="transformer_lm")
    choices = {"arch": "transformer_lm_head_gates_gpt", "task": "language_modeling"}
    line = refused("--finetune-from-model", tmp_path / "a.pt", **choices)
    assert (
        "always has --decoder-normalize-before, unlike the checkpoint: choose --arch transformer_lm_head_gates" in line
    )


def test_a_training_that_resumes_has_the_options_of_its_last_checkpoint(tmp_path):
    save(tmp_path / "first.pt", args=make_args(decoder_layers=1))
    save(tmp_path / "checkpoint_last.pt")
    start = ["--save-dir", tmp_path, "--finetune-from-model", tmp_path / "first.pt"]
    assert parse_translation(*start).decoder_layers == 2
    assert parse_translation("--save-dir", tmp_path / "other").decoder_layers == 6  # fairseq's default


def test_a_stored_checkpoint_path_is_not_opened(tmp_path):
    """fairseq calls the preset for the options of every checkpoint that it loads, too."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    save(tmp_path / "a.pt", args=make_args(decoder_layers=1))
    for path in (pipe, tmp_path / "a.pt"):
        args = argparse.Namespace(finetune_from_model=str(path), restore_file=str(path), **{MARK: "object"})
        ARCH_CONFIG_REGISTRY["transformer_head_gates"](args)
        assert args.decoder_layers == 6


# --- checkpoints without options ------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path):
    """A checkpoint without its options, as the page on training makes it, and its model."""
    model = save(tmp_path / "a.pt")
    state = torch.load(tmp_path / "a.pt")
    state.update(args=None, cfg=None)
    torch.save(state, tmp_path / "bare.pt")
    return tmp_path / "bare.pt", model


def test_options_are_not_taken_from_a_checkpoint_without_options(bare, caplog):
    path, _ = bare
    args = parse_translation("--finetune-from-model", path, "--encoder-attention-heads", 8, "--encoder-layers", 2)
    assert args.encoder_attention_heads == 8 and args.encoder_embed_dim == 512
    assert "not taken" in caplog.text and "bare.pt" in caplog.text


def test_weights_load_with_the_sizes_of_the_checkpoint(bare):
    _, model = bare
    sizes = ["layers=2", "embed-dim=32", "ffn-embed-dim=64", "attention-heads=4", "normalize-before"]
    ours = build_model(
        parse_translation(*(f"--{side}-{x}" for side in ("encoder", "decoder") for x in sizes)), make_data()
    )
    ours.load_state_dict(model.state_dict())
    assert torch.equal(computed(ours.eval()), computed(model))


# --- weights that fairseq changes as it loads them --------------------------------------------------------------------


def test_bart_starts_without_the_mask_of_denoising_as_in_fairseq():
    """The task of its pre-training adds <mask> to the dictionary; fairseq removes its row."""
    denoising = text_task()
    denoising.source_dictionary.add_symbol("<mask>")
    weights = BARTModel.build_model(any_options("bart_head_gates"), denoising).state_dict()
    computed = []
    for model_class in (BARTModel, MODEL_REGISTRY["bart_head_gates"]):
        model = model_class.build_model(any_options("bart_head_gates", task="translation"), text_task()).eval()
        model.load_state_dict(dict(weights))
        computed.append(logits(model, make_batch()))
    assert torch.equal(*computed)


# --- whole commands -------------------------------------------------------------------------------------------------


@pytest.mark.release
def test_gates_of_a_model_with_quantisation_noise(train, run, tmp_path):
    """The noise adds a layer to the model, of which the options of the checkpoint tell."""
    noise = ["--quant-noise-pq", 0.1, "--quant-noise-pq-block-size", 4]
    train(tmp_path, *noise, arch="transformer")
    baseline = tmp_path / "checkpoint_last.pt"
    gated = train(tmp_path / "gated", *GATED, "--finetune-from-model", baseline)
    assert "--quant-noise-pq 0.1 --quant-noise-pq-block-size 4" in gated.text
    for name, path in (("gated", tmp_path / "gated" / "checkpoint_last.pt"), ("baseline", baseline)):
        run("headgates", "prune", "--path", path, "--out", tmp_path / f"{name}.pt")
