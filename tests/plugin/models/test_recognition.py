"""Checkpoints with the architecture, criterion, task, ... of their authors: the family is found by the weights."""

import argparse
import copy
from contextlib import suppress

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from hydra.errors import MissingConfigException
from support.any_model import CASES
from support.classifiers import make_roberta, make_sentences, states
from support.models import logits, make_args, make_batch, make_task

from fairseq_headgates import HeadTable
from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint, stock_checkpoint
from fairseq_headgates.messages import warn_once
from fairseq_headgates.plugin.models.building import build_model, load_model
from fairseq_headgates.plugin.models.mixin import head_gates_class
from fairseq_headgates.plugin.models.recognition import (
    FAMILIES,
    HIDDEN,
    REGISTER,
    family_of,
    register_stand_ins,
    unknown_names,
    with_known_names,
)
from fairseq_headgates.plugin.models.start import FREE, UNKNOWN, register_unknown

MASK = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 1, 1, 1]]})
OWN = {"criterion": "our_loss", "task": "our_task", "optimizer": "our_sgd", "lr_scheduler": "our_slope"}
ENCODERS = {"bpe": "our_bpe", "tokenizer": "our_tokenizer", "scoring": "our_score"}
# Models with the weights of another one; they compute the same, but for the alignment and the start of a training.
SAME_WEIGHTS = {
    "bart": "transformer",
    **dict.fromkeys(("camembert", "gottbert", "xlmr", "xmod"), "roberta"),
}
WITH_GATES = [name for name in CASES if name in MODEL_REGISTRY and head_gates_class(name)]


def foreign(model, arch="our_small", options=None, **names):
    """A checkpoint of a model as an old fairseq writes it, with names of its authors."""
    args = argparse.Namespace(**{**vars(options or model.args), **OWN, **names, "arch": arch})
    return {"args": args, "model": model.state_dict(), "optimizer_history": [{"criterion_name": "OurLoss"}]}


def in_groups(state):
    """The same checkpoint as fairseq 0.12 writes it, with hydra's groups of options."""
    names = {kind: {"_name": getattr(state["args"], kind)} for kind in REGISTER if hasattr(state["args"], kind)}
    model = argparse.Namespace(**{**vars(state["args"]), "_name": state["args"].arch})
    return {**state, "args": None, "cfg": {**names, "model": model}}


@pytest.fixture
def transformer():
    torch.manual_seed(1)
    return TransformerModel.build_model(make_args(), make_task()).eval()


@pytest.mark.parametrize("name", WITH_GATES)
def test_the_family_is_found_by_the_weights(name):
    assert family_of(CASES[name].build().state_dict()) == SAME_WEIGHTS.get(name, name)


def test_families_are_models_with_gates():
    assert {*FAMILIES} <= {*WITH_GATES}


def test_bart_with_a_classification_head_is_known():
    weights = dict.fromkeys(["decoder.layers.0.encoder_attn.q_proj.weight", "classification_heads.a.dense.weight"])
    assert family_of(weights) == "bart"


@pytest.mark.parametrize("name", ["wav2vec2", "masked_lm", "fastspeech2", "wav2vec_seq2seq"])
def test_other_models_are_refused(name):
    state = foreign(CASES["roberta"].build())
    state["model"] = CASES[name].build().state_dict()
    seems = name == "wav2vec_seq2seq"  # its decoder is that of a transformer
    with pytest.raises(ValueError, match="the weight encoder.embed_tokens" if seems else "its architecture is 'our_s"):
        build_model(state)


@pytest.mark.parametrize("form", [lambda state: state, in_groups], ids=["args", "cfg"])
def test_a_roberta_of_a_user_directory_of_others(form, caplog):
    """With names of fairseq's first RoBERTa. It computes the same, and what prune writes loads without them."""
    model, sample = make_roberta(1, RobertaModel, classes=0), make_sentences()
    state = foreign(model, task="masked_lm")
    state["model"] = {name.replace("encoder.", "decoder.", 1): weight for name, weight in state["model"].items()}
    state = form(state)
    before = copy.deepcopy(state)
    warn_once.cache_clear()
    torch.testing.assert_close(states(build_model(state), sample), states(model, sample), rtol=0, atol=1e-6)
    (warning,) = caplog.messages
    assert "architecture 'our_small' by roberta, criterion 'our_loss' by masked_lm, optimizer 'our_sgd'" in warning
    for smaller in (prune_checkpoint(state, MASK), stock_checkpoint(state, MASK)):
        assert not unknown_names(smaller)
        pruned = check_loads(smaller)
        assert sum(module.num_heads for name, module in pruned.named_modules() if name.endswith("self_attn")) in (6, 8)
    assert vars(state.get("args") or state["cfg"]["model"]) == vars(before.get("args") or before["cfg"]["model"])


def test_fairseq_reads_the_options_with_the_names_that_are_put_in(transformer):
    state, _ = with_known_names(foreign(transformer, options=make_args(), **ENCODERS))
    args = state["args"]
    assert (args.arch, args.task, args.criterion) == ("transformer", "translation", "label_smoothed_cross_entropy")
    assert (args.optimizer, args.lr_scheduler, args.bpe, args.scoring) == ("adam", "fixed", None, None)
    convert_namespace_to_omegaconf(args)
    assert torch.equal(logits(build_model(state), make_batch()), logits(transformer, make_batch()))


def test_known_names_stay():
    model = make_roberta(classes=0)
    state = foreign(model, "roberta_head_gates", criterion="masked_lm_l0", task="masked_lm", optimizer="nag")
    state["args"].lr_scheduler = "fixed"
    assert with_known_names(state) == (state, "")
    changed = with_known_names(state, "roberta_large")[0]["args"]
    assert changed.arch == "roberta_large" and changed.criterion == "masked_lm_l0"


def test_a_classifier_gets_the_criterion_of_its_task():
    state = foreign(make_roberta(), task="sentence_prediction")
    assert with_known_names(state)[0]["args"].criterion == "sentence_prediction"


def test_a_checkpoint_that_cannot_be_built_gets_one_line(transformer, tmp_path, caplog):
    """With what was replaced, and without a warning before it."""
    path = str(tmp_path / "x.pt")
    torch.save(foreign(transformer, "our_wrong", options=make_args(encoder_layers=5)), path)
    with pytest.raises(
        ValueError, match=r"encoder_layers is 5, .*\(names in the .* architecture 'our_wrong' by transfo"
    ):
        load_model(path)
    assert not caplog.messages


def without(state, *names):
    """The checkpoint of a training whose code did not store these options."""
    return {**state, "args": argparse.Namespace(**{k: v for k, v in vars(state["args"]).items() if k not in names})}


HEADS = ("encoder_attention_heads", "decoder_attention_heads")


def test_options_that_the_weights_do_not_show(transformer):
    """Changed one by one: if the same weights fit and compute something else, the option is in the list."""
    usual = argparse.Namespace()
    ARCH_CONFIG_REGISTRY["transformer"](usual)
    shapes, batch, hidden = shapes_of(transformer), make_batch(), []
    others = {**dict.fromkeys(HEADS, 2), "activation_fn": "gelu"}
    others |= {name: not value for name, value in vars(usual).items() if isinstance(value, bool)}
    for name, other in others.items():
        if name in FREE or name.startswith(("share_", "merge_")):  # the weights show whether they are the same
            continue
        with suppress(AssertionError):  # options that others belong to
            changed = TransformerModel.build_model(make_args(**{name: other}), make_task()).eval()
            if shapes_of(changed) == shapes:
                changed.load_state_dict(transformer.state_dict())
                hidden += [name] * (not torch.equal(logits(changed, batch), logits(transformer, batch)))
    assert {*HEADS, "activation_fn", "no_scale_embedding", "no_token_positional_embeddings"} <= {*hidden} <= {*HIDDEN}


def shapes_of(model):
    return {name: weight.shape for name, weight in model.state_dict().items()}


def test_options_that_nothing_shows_are_those_of_arch(transformer):
    """The model has 4 heads, as transformer_iwslt_de_en, and transformer has 8; see fairseq.models.build_model."""
    state = without(foreign(transformer, options=make_args()), *HEADS)
    notice = with_known_names(state)[1]
    assert "those of transformer: encoder_attention_heads 8, decoder_attention_heads 8 (if one is wrong, " in notice
    known, notice = with_known_names(state, "transformer_iwslt_de_en")
    assert "those of transformer_iwslt_de_en: encoder_attention_heads 4, decoder_attention_heads 4 (" in notice
    model, batch = build_model(known), make_batch()
    assert torch.equal(logits(model, batch), logits(transformer, batch))
    smaller = prune_checkpoint(known, MASK)
    assert smaller["args"].decoder_attention_heads == 4
    assert "assumed" not in with_known_names(foreign(transformer, options=make_args()))[1]


def test_arch_decides(transformer):
    state = foreign(transformer)
    assert with_known_names(state, "transformer_iwslt_de_en")[0]["args"].arch == "transformer_iwslt_de_en"
    with pytest.raises(ValueError, match=r"--arch is 'nonsense', which fairseq does not know: choose from \w+, "):
        with_known_names(state, "nonsense")


def test_a_training_registers_the_names_also_in_other_processes(transformer):
    """fairseq cannot read a checkpoint with unknown names. Processes of other GPUs get the options alone."""
    args = foreign(transformer, "our_other", **{kind: f"{name}_2" for kind, name in {**OWN, **ENCODERS}.items()})[
        "args"
    ]
    with pytest.raises(MissingConfigException, match="our_"):
        convert_namespace_to_omegaconf(args)
    options = argparse.Namespace(**{UNKNOWN: unknown_names({"args": args})})
    register_unknown(head_gates_class("transformer"), options)
    assert not vars(options) and not unknown_names({"args": args})
    assert convert_namespace_to_omegaconf(args).model.arch == "our_other"
    register_stand_ins({"criterion": "our_loss_2"}, "transformer")  # again
