"""Small language models, and a toy text for whole commands."""

import argparse
import random

import numpy
import pytest
import torch

from fairseq_headgates.plugin.models.language_model import TransformerLMHeadGatesModel
from support.commands import EVALUATION, USER_DIR
from support.models import PAD, VOCABULARY, make_task

# Language models by name: the options of the model besides its sizes.
VARIANTS = {
    "pre-norm": {"decoder_normalize_before": True},
    "post-norm": {},
    "adaptive": {
        "decoder_normalize_before": True,
        "adaptive_input": True,
        "adaptive_input_cutoff": "10,20",
        "adaptive_softmax_cutoff": "10,20",
        "tie_adaptive_weights": True,
        "tie_adaptive_proj": True,
    },
}
SIZES = {"layers": 2, "embed_dim": 32, "input_dim": 32, "output_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4}
SIZES = {f"decoder_{name}": size for name, size in SIZES.items()}
COMMON = {"tokens_per_sample": 12, "max_target_positions": 16, "dropout": 0.0, "arch": "transformer_lm_head_gates"}


def make_lm_args(**options):
    """A namespace as the command line gives it: two layers, four heads, width 32."""
    args = argparse.Namespace(**{**SIZES, **COMMON, **options})
    TransformerLMHeadGatesModel.set_defaults(args)
    return args


def make_lm(seed=0, model=TransformerLMHeadGatesModel, **options):
    torch.manual_seed(seed)
    return model.build_model(make_lm_args(**options), make_task()).eval()


def make_text(seed=0):
    """Three texts of different lengths: src_tokens and src_lengths."""
    tokens = torch.randint(4, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([9, 6, 4])
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        row[length:] = PAD
    return {"src_tokens": tokens, "src_lengths": lengths}


def make_lm_sample(seed=0):
    """A sample as the task makes it: the target is the next token."""
    net_input = make_text(seed)
    target = net_input["src_tokens"].roll(-1, 1)
    target[:, -1] = PAD
    tokens = int(target.ne(PAD).sum())
    return {"id": torch.arange(3), "net_input": net_input, "target": target, "ntokens": tokens, "nsentences": 3}


# fairseq reads blocks by sentence, and texts to continue, only with such a numpy.
by_sentence = pytest.mark.skipif(not hasattr(numpy, "compat"), reason="fairseq needs numpy < 2 for this")

# --- whole commands --------------------------------------------------------------------------------------------------

BLOCKS = ["--task", "language_modeling", "--tokens-per-sample", 12]
READING = [*BLOCKS, *EVALUATION]
TRAINING = [
    *BLOCKS,
    *"--cpu --seed 1 --optimizer adam --lr 0.005 --max-tokens 500 --num-workers 0".split(),
    *"--required-batch-size-multiple 1 --log-format simple --log-interval 1".split(),
]
CRITERIONS = {"adaptive": "adaptive_loss"}  # of a variant; of the others cross_entropy


@pytest.fixture(scope="session")
def toy_text(made_once, run):
    """The folder of a binarised text of letters, in which a vowel follows every consonant."""

    def make(folder):
        rng = random.Random(7)
        for split, sentences in (("train", 200), ("valid", 30), ("test", 10)):
            lines = [[rng.choice("bcdf") if i % 2 == 0 else rng.choice("aeiou") for i in range(rng.randint(3, 8))]
                     for _ in range(sentences)]  # fmt: skip
            (folder / f"{split}.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
        options = [f"--{split}pref={folder / split}.txt" for split in ("train", "valid", "test")]
        run("fairseq-preprocess", "--only-source", *options, "--destdir", folder / "bin")

    return made_once("toy_text", make) / "bin"


@pytest.fixture(scope="session")
def train_lm(toy_text, run):
    """train_lm(save_dir, *options, arch=..., variant=..., updates=2, ...) trains on the toy text; others: of `run`."""

    def train_lm(save_dir, *options, arch="transformer_lm_head_gates", variant="pre-norm", updates=2, **how):
        plugin = ["--user-dir", USER_DIR] if "head_gates" in arch else []
        model = {**SIZES, **VARIANTS[variant], "max_target_positions": 16}
        if variant == "adaptive":
            model |= {"adaptive_input_cutoff": "6,8", "adaptive_softmax_cutoff": "6,8", "ddp_backend": "legacy_ddp"}
        words = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in model.items()
        ]
        criterion = CRITERIONS.get(variant, "cross_entropy") + ("_l0" if plugin else "")
        places = [toy_text, *plugin, "--arch", arch, "--save-dir", save_dir, "--max-update", updates]
        return run("fairseq-train", *places, *words, "--criterion", criterion, *TRAINING, *options, **how)

    return train_lm


SEGMENTS = ["--task", "language_modeling_segments", "--tokens-per-sample", 6, "--stream-blocks", 4]
ALL_ATTENTION = {**SIZES, "persistent_vectors": 8, "mem_len": 6, "max_target_positions": 64}
ALL_ATTENTION.pop("decoder_ffn_embed_dim")


@pytest.fixture(scope="session")
def train_all_attention(toy_text, run):
    """train_all_attention(save_dir, *options, updates=2, ...) trains an all-attention model on the toy text."""

    def train_all_attention(save_dir, *options, updates=2, reading=SEGMENTS, **how):
        places = [toy_text, "--user-dir", USER_DIR, "--arch", "transformer_lm_all_attention", "--save-dir", save_dir]
        model = [f"--{name.replace('_', '-')}={value}" for name, value in ALL_ATTENTION.items()]
        training = [*TRAINING[len(BLOCKS) :], "--criterion", "cross_entropy_l0", "--max-tokens", 60]
        return run("fairseq-train", *places, *reading, *model, *training, "--max-update", updates, *options, **how)

    return train_all_attention
