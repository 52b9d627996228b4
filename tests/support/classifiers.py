"""Small RoBERTa models, and toy data of two classes for whole commands."""

import argparse
import random

import pytest
import torch
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel
from support.commands import EVALUATION, USER_DIR
from support.models import PAD, VOCABULARY, make_task

VARIANTS = {"post-norm": {}, "pre-norm": {"encoder_normalize_before": True, "layernorm_embedding": False}}
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4}
HEAD = "sentence_classification_head"


def make_roberta(seed=0, model=RobertaHeadGatesModel, classes=2, **options):
    """A model of two layers, four heads, width 32, with a classification head."""
    torch.manual_seed(seed)
    args = argparse.Namespace(**SIZES, max_positions=16, dropout=0.0, attention_dropout=0.0, arch="roberta", **options)
    built = model.build_model(args, make_task())
    if classes:
        built.register_classification_head(HEAD, num_classes=classes)
    return built.eval()


def make_sentences(seed=0):
    """Three sentences of different lengths, padded at the end, as the task makes them, and their classes."""
    tokens = torch.randint(4, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([9, 6, 4])
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        row[0], row[length - 1], row[length:] = 0, 2, PAD
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    return {"id": torch.tensor([2, 0, 1]), "net_input": net_input, "target": torch.tensor([[1], [0], [1]]),
            "ntokens": 19, "nsentences": 3}  # fmt: skip


def masked_sample():
    """Sentences with every third token to be predicted."""
    sample = make_sentences()
    tokens = sample["net_input"]["src_tokens"]
    chosen = tokens.ge(4) & (torch.arange(9) % 3 == 1)
    sample["target"] = torch.where(chosen, tokens, PAD)
    sample["net_input"]["src_tokens"] = torch.where(chosen, 4, tokens)
    return sample


def task_of(kind):
    """The task of fairseq without its data, on the dictionary of other tests."""
    task = kind.__new__(kind)
    task.cfg = argparse.Namespace(classification_head_name=HEAD, num_classes=2, regression_target=False)
    task.dictionary = make_task().source_dictionary
    task._label_dictionary = task.dictionary
    return task


CLASSIFICATION, MASKED_LM = task_of(SentencePredictionTask), task_of(MaskedLMTask)


def states(model, sample):
    """The output of the encoder at all tokens but padding."""
    with torch.no_grad():
        features = model(**sample["net_input"], features_only=True)[0]
    return features[sample["net_input"]["src_tokens"].ne(PAD)]


# --- whole commands --------------------------------------------------------------------------------------------------

CLASSES = ["--task", "sentence_prediction", "--num-classes", 2, "--init-token", 0, "--max-positions", 16]
READING = [*CLASSES, *EVALUATION]
MASKED = ["--task", "masked_lm", "--tokens-per-sample", 14, "--sample-break-mode", "eos"]
TRAINING = [
    *"--cpu --seed 1 --optimizer adam --lr 0.005 --batch-size 20 --num-workers 0 --max-positions 16".split(),
    *"--required-batch-size-multiple 1 --log-format simple --log-interval 1 --dropout 0 --attention-dropout 0".split(),
]


@pytest.fixture(scope="session")
def toy_classes(made_once, run):
    """The folder of binarised sentences of letters, whose class is that of their first letter."""

    def make(folder):
        rng = random.Random(7)
        for split, number in (("train", 200), ("valid", 40), ("test", 40)):
            lines = [[rng.choice("abcdefgh") for _ in range(rng.randint(3, 8))] for _ in range(number)]
            (folder / f"{split}.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
            (folder / f"{split}.label").write_text("".join(f"{int(line[0] in 'abcd')}\n" for line in lines))
        for ending, place in (("txt", "input0"), ("label", "label")):
            files = [f"--{split}pref={folder / split}.{ending}" for split in ("train", "valid", "test")]
            run("fairseq-preprocess", "--only-source", *files, "--destdir", folder / "bin" / place)

    return made_once("toy_classes", make) / "bin"


@pytest.fixture(scope="session")
def train_roberta(toy_classes, run):
    """train_roberta(save_dir, *options, arch=..., task=CLASSES, updates=2, ...) trains on the toy sentences."""

    def train_roberta(save_dir, *options, arch="roberta_head_gates", task=CLASSES, updates=2, **how):
        plugin = ["--user-dir", USER_DIR] if "head_gates" in arch else []
        data = toy_classes / "input0" if task is MASKED else toy_classes
        criterion = ("masked_lm" if task is MASKED else "sentence_prediction") + ("_l0" if plugin else "")
        sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
        places = [data, *plugin, "--arch", arch, "--save-dir", save_dir, "--max-update", updates, *task, *sizes]
        return run("fairseq-train", *places, "--criterion", criterion, *TRAINING, *options, **how)

    return train_roberta
