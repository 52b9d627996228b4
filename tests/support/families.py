"""The architectures with gates: how to build each, run it, and train and measure it by command.

What holds for every architecture is tested in test_families.py; a new one is a row of `FAMILIES`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.masked_lm import MaskedLmConfig
from fairseq.criterions.sentence_prediction import SentencePredictionConfig
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_headgates.extensions.all_attention.model import TransformerLMAllAttentionModel
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.models.bart import BARTHeadGatesModel
from fairseq_headgates.plugin.models.language_model import TransformerLMHeadGatesModel
from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from support import classifiers, language_models
from support.all_attention import make_blocks, make_model
from support.checkpoints import read
from support.classifiers import (
    CLASSES,
    CLASSIFICATION,
    HEAD,
    MASKED,
    MASKED_LM,
    make_roberta,
    make_sentences,
    masked_sample,
)
from support.commands import TOY_MODEL
from support.language_models import BLOCKS, SEGMENTS, make_lm, make_lm_sample
from support.models import PAD, make_args, make_batch, make_task


@dataclass(frozen=True)
class Commands:
    """How an architecture is trained and measured by command.

    Attributes:
        train: the fixture that trains it
        data: the fixture of its data
        reading: options of commands that read the data
        measure: a command of fairseq that measures it
        printed: what that command prints, as a regular expression with one group
        choices: the keyword arguments of `train`
        folder: the folder of the data that is read
    """

    train: str
    data: str
    reading: list
    measure: list
    printed: str
    choices: dict = field(default_factory=dict)
    folder: str = ""

    def place(self, request):
        """The data."""
        data = request.getfixturevalue(self.data)
        return getattr(data, "data", data) / self.folder


@dataclass(frozen=True)
class Family:
    """An architecture with gates; `ours.stock` is its twin in fairseq.

    Attributes:
        ours: its class
        make: make(seed, model=ours, **options) builds it, or the twin, in evaluation
        samples: as its task makes them; a model with a memory reads them in this order
        types: of its heads
        run: what a model computes for a sample
        task: of the samples
        criterion: name of the loss, and the arguments of its class
        commands: how it is trained by command
        limits: the words on the page for the `PROPERTIES` that it does not have, or not wholly
    """

    ours: type
    make: Callable
    samples: list
    types: tuple[str, ...] = TYPES
    run: Callable = lambda model, sample: model(**sample["net_input"])[0][sample["target"].ne(PAD)]
    task: object = field(default_factory=make_task)
    criterion: tuple = ("cross_entropy", make_task(), False)
    commands: Commands | None = None
    limits: dict = field(default_factory=dict)

    @torch.no_grad()
    def outputs(self, model):
        """What a model computes for all samples."""
        return torch.cat([self.run(model, sample).flatten() for sample in self.samples])

    def criterions(self):
        """The criterion of the plugin, and that of fairseq."""
        name, *arguments = self.criterion
        return PENALISED[name](*arguments), CRITERION_REGISTRY[name](*arguments)


def pair(seed=0):
    """A sample of a translation task."""
    net_input = make_batch(seed)
    target = net_input["prev_output_tokens"].roll(-1, 1)
    target[:, -1] = PAD
    return {"id": torch.arange(3), "net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum()),
            "nsentences": 3}  # fmt: skip


def make_transformer(seed=0, model=TransformerHeadGatesModel, **options):
    torch.manual_seed(seed)
    return model.build_model(make_args(arch="transformer_head_gates", **options), make_task()).eval()


def make_bart(seed=0, model=BARTHeadGatesModel, **options):
    args = argparse.Namespace(arch="bart_head_gates_base", task="translation", **TOY_MODEL, **options)
    ARCH_CONFIG_REGISTRY["bart_head_gates_base"](args)
    torch.manual_seed(seed)
    return model.build_model(args, make_task()).eval()


def classes(model, sample):
    """The states of the encoder, and p of the classes."""
    probabilities = model(**sample["net_input"], classification_head_name=HEAD)[0].softmax(-1)
    return torch.cat([classifiers.states(model, sample).flatten(), probabilities.flatten()])


def make_all_attention(seed=0, model=None, **options):
    """fairseq has no such model."""
    return make_model(seed, decoder_attention_heads=4, decoder_layers=3, mem_len=3, **options)


def blocks():
    """The samples of a model with a memory."""
    for tokens, numbers in make_blocks():
        net_input = {"src_tokens": tokens, "src_lengths": torch.full((2,), 4), "blocks": numbers}
        yield {"id": numbers[:, 0], "net_input": net_input, "target": tokens.roll(-1, 1), "ntokens": 8, "nsentences": 2}


# --- the rows --------------------------------------------------------------------------------------------------------

POST_NORM = {"encoder_normalize_before": False, "decoder_normalize_before": False}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
GENERATE = ["fairseq-generate", "--beam", 2, "--gen-subset", "test"]
TRANSLATED = r"^(H-\d+\t\S+\t.*)$"
EVAL_LM, PERPLEXITY = ["fairseq-eval-lm"], r"Loss \(base 2\): ([\d.]+), Perplexity"
VALIDATE = ["fairseq-validate", "--task", "sentence_prediction", "--criterion", "sentence_prediction"]
VALIDATE += ["--valid-subset", "test", "--batch-size", 40]
VALIDATE_MASKED = [
    word.replace("sentence_prediction", "masked_lm") if isinstance(word, str) else word for word in VALIDATE
]
VALIDATED = r"\| (?:loss|accuracy) ([\d.]+)"


def translated(**choices):
    """Commands on pairs of sentences."""
    return Commands("train", "toy", ["--max-len-b", 5], GENERATE, TRANSLATED, choices)


SMOOTHED = ("label_smoothed_cross_entropy", make_task(), False, 0.1)


NO_RELEVANCE = {"scores": "all but relevance", "explain": "no"}
NOT_CONVERTED = {"CTranslate2": "no"}


def transformer(commands=None, **options):
    make = partial(make_transformer, **options)
    return Family(TransformerHeadGatesModel, make, [pair()], criterion=SMOOTHED, commands=commands)


def language_model(variant, commands=None, limits=None):
    make = partial(make_lm, **language_models.VARIANTS[variant])
    samples = [make_lm_sample(), make_lm_sample(1)]
    criterion = ("adaptive_loss" if variant == "adaptive" else "cross_entropy", make_task(), False)
    ours, types = TransformerLMHeadGatesModel, ("dec-self",)
    return Family(ours, make, samples, types, criterion=criterion, commands=commands, limits=limits or {})


def roberta(sample, run, task, criterion, commands=None, limits=NOT_CONVERTED, **options):
    make = partial(make_roberta, **options)
    return Family(RobertaHeadGatesModel, make, [sample], ("enc-self",), run, task, criterion, commands, limits)


SENTENCES = (classes, CLASSIFICATION)
SENTENCES += (("sentence_prediction", SentencePredictionConfig(classification_head_name=HEAD), CLASSIFICATION),)
FAMILIES = {
    "transformer": transformer(translated()),
    "transformer, post-norm, learned positions": transformer(**POST_NORM, **LEARNED),
    "transformer, normalised embeddings, layers dropped": transformer(
        layernorm_embedding=True, share_all_embeddings=True, encoder_layerdrop=0.5, decoder_layerdrop=0.3
    ),
    "transformer, three layers, wider encoder, adaptive softmax, recomputed": transformer(
        **{"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_dropout": 0, "adaptive_softmax_factor": 4},
        **{"decoder_layers": 3, "encoder_embed_dim": 48, "checkpoint_activations": True},
    ),
    "transformer, no attention to the encoder": transformer(
        no_cross_attention=True, no_token_positional_embeddings=True
    ),
    "transformer, attention to both at once": transformer(
        no_cross_attention=True, cross_self_attention=True, decoder_output_dim=16
    ),
    "transformer, quantisation noise": transformer(quant_noise_pq=0.1, quant_noise_pq_block_size=8),
    "transformer_lm": language_model("pre-norm", Commands("train_lm", "toy_text", BLOCKS, EVAL_LM, PERPLEXITY)),
    "transformer_lm, post-norm": language_model("post-norm"),
    "transformer_lm, adaptive": language_model(
        "adaptive",
        Commands("train_lm", "toy_text", BLOCKS, EVAL_LM, PERPLEXITY, choices={"variant": "adaptive"}),
        NO_RELEVANCE | NOT_CONVERTED,
    ),
    "roberta": roberta(
        make_sentences(),
        *SENTENCES,
        Commands("train_roberta", "toy_classes", CLASSES, VALIDATE, VALIDATED),
    ),
    "roberta, pre-norm": roberta(make_sentences(), *SENTENCES, **classifiers.VARIANTS["pre-norm"]),
    "roberta, masked tokens": roberta(
        masked_sample(),
        Family.run,
        MASKED_LM,
        ("masked_lm", MaskedLmConfig(tpu=False), MASKED_LM),
        Commands("train_roberta", "toy_classes", MASKED, VALIDATE_MASKED, VALIDATED, {"task": MASKED}, "input0"),
        NO_RELEVANCE | NOT_CONVERTED,
    ),
    "bart": Family(
        BARTHeadGatesModel,
        make_bart,
        [pair()],
        criterion=SMOOTHED,
        commands=translated(arch="bart_head_gates_base"),
    ),
    "all-attention": Family(
        TransformerLMAllAttentionModel,
        make_all_attention,
        list(blocks()),
        ("dec-self",),
        commands=Commands("train_all_attention", "toy_text", SEGMENTS, EVAL_LM, PERPLEXITY),
        limits={**NOT_CONVERTED, "scores": NO_RELEVANCE["scores"]},
    ),
}


# Whether a model has a property: the words of a command, from the options that read its data and name the checkpoint.
PROPERTIES = {
    "compress": lambda reading: ["compress", *reading, "--params", 0.9, "--fit-sentences", 100],
    "gates": lambda reading: ["show", "--path", reading[-1]],
    "scores": lambda reading: ["score", *reading, "--method", "all"],
    "explain": lambda reading: ["explain", *reading],
    "int8": lambda reading: ["evaluate", *reading, "--inference-dtype", "int8"],
    "CTranslate2": lambda reading: [
        "convert",
        reading[0],
        "--path",
        reading[-1],
        "--to",
        "ctranslate2",
        "--out",
        "ct2",
    ],
}


# --- checkpoints by command ------------------------------------------------------------------------------------------

# log_alpha of the gates in the first layer of a stack (0, about 0.62, 1, about 0.35), in the second, and so on.
LOG_ALPHA = [[-3.0, 0.4, 3.0, -0.5], [-3.0] * 4, [0.1, -3.0, 3.0, 3.0]]
OPEN = [[0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 1]]


@pytest.fixture(scope="session")
def forms_of(made_once, run, request):
    """forms_of(name): the checkpoints of an architecture by their form, trained for two updates by fairseq-train.

    "trained"; "gated": with gates of `LOG_ALPHA`; "pruned"; "stock", in the form of fairseq, if there is one.
    """

    def forms_of(name):
        commands = FAMILIES[name].commands

        def make(folder):
            train = request.getfixturevalue(commands.train)
            criterion = ["--criterion", f"{FAMILIES[name].criterion[0]}_l0"]
            gates = ["--gate-heads", ",".join(FAMILIES[name].types), *criterion, "--l0-weight", 0.05]
            train(folder / "gates", *gates, updates=2, **commands.choices)
            state = read(folder / "gates" / "checkpoint_last.pt")
            for key, weight in state["model"].items():
                if key.endswith("gate.log_alpha"):
                    (layer,) = (int(part) for part in key.split(".") if part.isdigit())
                    weight.copy_(torch.tensor(LOG_ALPHA[layer]))
            torch.save(state, folder / "gated.pt")
            run("headgates", "prune", "--path", folder / "gated.pt", "--out", folder / "pruned.pt")
            if name != "all-attention":
                run("headgates", "prune", "--path", folder / "gated.pt", "--out", folder / "stock.pt", "--stock")

        folder = made_once(f"forms of {name}", make)
        made = {path.stem: path for path in folder.glob("*.pt")}
        return {"trained": folder / "gates" / "checkpoint_last.pt", **made}

    return forms_of
