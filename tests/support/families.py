"""Architectures with gates for fairseq's other models: how a toy model of each is trained, and read by the commands."""

from dataclasses import dataclass

import numpy as np
import torch

from support.commands import TYPES
from support.training import read

SMOOTHED = ("--criterion", "label_smoothed_cross_entropy_l0")
EDITED = ("--criterion", "nat_loss_l0", "--label-smoothing", 0)
PAIRS = ("--lang-pairs", "src-tgt,tgt-src")
ITERATIVE = ("--train-step", 2, "--dae-ratio", 0.5, "--stochastic-approx")
KERNELS = ("--encoder-kernel-size-list", "[3,3]", "--decoder-kernel-size-list", "[3,3]")
NARROW = ("--conv-channels", 16)
SHARED = "encoder.layers."


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        task: name of its task
        train: further options of fairseq-train
        read: further options of the task for all commands
        generate: further options of fairseq-generate
        types: attention types with gates
        has_loss: whether the commands that compute losses support it
    """

    task: str = "translation"
    train: tuple = SMOOTHED
    read: tuple = ()
    generate: tuple = ("--beam", 2)
    types: str = TYPES
    has_loss: bool = True


def edits(noise, *train):
    """A non-autoregressive model."""
    generate = ("--iter-decode-max-iter", 2, "--beam", 1)
    return Family("translation_lev", (*EDITED, "--noise", noise, *train), (), generate, has_loss=False)


def spoken(*train):
    """A model of speech."""
    return Family("speech_to_text", (*SMOOTHED, *train), ("--config-yaml", "config.yaml"))


FAMILIES = {
    "bart_head_gates_base": Family(),
    "transformer_align_head_gates": Family(train=(*SMOOTHED, "--alignment-layer", 1, "--full-context-alignment")),
    "transformer_from_pretrained_xlm_head_gates": Family("translation_from_pretrained_xlm", has_loss=False),
    "lightconv_head_gates": Family(train=(*SMOOTHED, *KERNELS), types="dec-enc"),
    "multilingual_transformer_head_gates": Family(
        "multilingual_translation",
        (*SMOOTHED, "--share-encoders"),
        PAIRS,
        ("--source-lang", "src", "--target-lang", "tgt", "--beam", 2),
        has_loss=False,
    ),
    "nonautoregressive_transformer_head_gates": edits("full_mask"),
    "iterative_nonautoregressive_transformer_head_gates": edits("full_mask", *ITERATIVE),
    "cmlm_transformer_head_gates": edits("random_mask"),
    "nacrf_transformer_head_gates": edits("full_mask", "--crf-beam-approx", 8),
    "levenshtein_transformer_head_gates": edits("random_delete"),
    "insertion_transformer_head_gates": edits("random_delete"),
    "s2t_transformer_head_gates_s": spoken(*NARROW),
    "s2t_conformer_head_gates": spoken(*NARROW, "--depthwise-conv-kernel-size", 3),
    "convtransformer_head_gates": spoken("--conv-out-channels", 4, "--input-feat-per-channel", 8),
}


def write_speech(folder, toy):
    """Write the toy corpus with noise in the place of speech, as fairseq's task speech_to_text reads it."""
    rng = np.random.default_rng(7)
    for split, number in (("train", 40), ("valid", 10), ("test", 5)):
        rows = ["id\taudio\tn_frames\ttgt_text\tspeaker"]
        for i, line in enumerate((toy.text / f"{split}.tgt").read_text().splitlines()[:number]):
            frames, name = 4 * len(line.split()) + 8, f"noise-{split}{i}.npy"
            np.save(folder / name, rng.standard_normal((frames, 8)).astype(np.float32))
            rows.append(f"{i}\t{name}\t{frames}\t{line}\tme")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "dict.txt").write_text((toy.data / "dict.tgt.txt").read_text())
    options = {"vocab_filename": "dict.txt", "input_channels": 1, "input_feat_per_channel": 8, "audio_root": folder}
    (folder / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in options.items()))


def write_xlm(path, baseline):
    """Write the layers of the encoder of a toy transformer as the checkpoint of an XLM model."""
    layers = {f"decoder.sentence_{name}": value for name, value in read(baseline)["model"].items() if SHARED in name}
    unused = {"args": None, "optimizer_history": [{"best_loss": 0}], "extra_state": {"train_iterator": None}}
    torch.save({"model": layers, **unused}, path)
