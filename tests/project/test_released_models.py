"""docs/released-models.md: its commands as written, on small models in the form of the released files."""

import json
import os
import random
import re
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq.models import ARCH_MODEL_REGISTRY
from support.models import make_task
from support.pages import ROOT, blocks

NLLB, CNN, MNLI = (each.text for each in blocks(ROOT / "docs" / "released-models.md") if each.mark == "needs: download")
ENCODE = CNN[: CNN.index("\n}\n") + 3]
STACK = {"layers": 2, "embed-dim": 32, "ffn-embed-dim": 64, "attention-heads": 4}
SIZES = {side: [f"--{side}-{key}={value}" for key, value in STACK.items()] for side in ("encoder", "decoder")}
BOTH = SIZES["encoder"] + SIZES["decoder"]
BYTES = [*bytes_to_unicode().values()]
PIECES = ["a", "b", "c", "d"]
WORDS = random.Random(1)
LABELS = ["contradiction", "neutral", "entailment"]
HISTORY = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam", "num_updates": 9}
HISTORY["lr_scheduler_state"] = {"best": None}
REST = {"optimizer_history": [HISTORY], "extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}

# Instead of the network and of SentencePiece.
PROGRAMS = {
    "wget": "previous=; for word; do case $previous in -O) name=$word;; esac; previous=$word; done; address=${!#}\n"
    'cp "$RELEASED/${address##*/}" "${name:-${address##*/}}"',
    "spm_encode": "exec cat",
}


def stored(arch, *words):
    """The options that a training stores."""
    return options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", arch, *words])


def model_of(args, symbols):
    """A model with a dictionary of these symbols."""
    task = make_task()
    for dictionary in (task.source_dictionary, task.target_dictionary):
        dictionary.__init__()
        for symbol in symbols:
            dictionary.add_symbol(symbol)
    task.dictionary = task.source_dictionary
    torch.manual_seed(1)
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)


def archive(folder, name, args, weights):
    """A file as fairseq 0.9 wrote it: `args`, no `cfg`."""
    (folder / name).mkdir()
    plain = (int, float, str, bool, list, type(None))
    args = Namespace(**{key: value for key, value in vars(args).items() if isinstance(value, plain)})
    weights = {key: value.half() for key, value in weights.items()}
    torch.save({"args": args, "model": weights, **REST}, folder / name / "model.pt")
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as tar:
        tar.add(folder / name, name)


@pytest.fixture
def bash(tmp_path):
    """Runs a block in a folder, where wget copies from tmp_path/released."""
    released, programs = tmp_path / "released", tmp_path / "programs"
    for folder in (released, programs, tmp_path / "here"):
        folder.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    (released / "encoder.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(BYTES)}))
    (released / "vocab.bpe").write_text("#version: 0.2\nz z\n")
    (released / "dict.txt").write_text("".join(f"{i} 1\n" for i in range(256)))
    environment = {**os.environ, "RELEASED": str(released), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(text):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path / "here",
            env=environment,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.released, run.folder = released, tmp_path / "here"
    return run


def write(path, symbols, lines=12):
    path.write_text("".join(" ".join(WORDS.choices(symbols, k=6)) + "\n" for _ in range(lines)))


pytestmark = [pytest.mark.release]


def test_nllb(bash):
    """Options of fairseq's nllb branch that others do not know; its dictionary lacks languages and sources of data."""
    languages = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn"]
    (bash.released / "langs.txt").write_text(",".join(languages) + "\n")
    (bash.released / "nllb200dictionary").write_text("".join(f"{piece} 1\n" for piece in PIECES))
    (bash.released / "flores200sacrebleuspm").write_text("")
    tags = ["<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>"]
    words = "--task translation_multi_simple_epoch --encoder-langtok src --decoder-langtok --share-all-embeddings"
    words += " --encoder-normalize-before --decoder-normalize-before --lang-pairs eng_Latn-deu_Latn"
    args = stored("transformer", *BOTH, *words.split(), "--langs", ",".join(languages), "--max-source-positions", "512")
    for name in ("add_data_source_prefix_tags", "enable_m2m_validation", "use_local_shard_size"):
        setattr(args, name, True)
    args.moe_freq, args.replication_count = 0, 1
    model = model_of(args, [*PIECES, *(f"__{language}__" for language in languages), *tags])
    groups = {"common": {"fp16": True, "use_tutel_moe": False}, "common_eval": {"is_moe": False}}
    groups |= {"optimizer": {"_name": "adam", "fp16_adam_stats": True}, "criterion": {"_name": "cross_entropy"}}
    cfg = {**groups, "model": args, "task": args}
    state = {"args": None, "cfg": cfg, "model": model.state_dict(), **REST}
    torch.save(state, bash.released / "nllb200densedst600mcheckpoint")
    for split in ("train", "valid", "test"):
        for language in ("eng_Latn", "deu_Latn"):
            write(bash.folder / f"{split}.{language}", PIECES)
    assert len(re.findall(r"^H-\d+", bash(NLLB), re.MULTILINE)) == 12


def test_bart_large_cnn(bash):
    args = stored("bart_large", *BOTH, "--task", "translation", "--truncate-source", "--max-source-positions", "64")
    args.max_target_positions, args.source_lang, args.target_lang = 64, "source", "target"
    archive(bash.released, "bart.large.cnn", args, model_of(args, [*map(str, range(256))]).state_dict())
    (bash.folder / "cnn_dm").mkdir()
    for split in ("train", "val", "test"):
        for side in ("source", "target"):
            write(bash.folder / "cnn_dm" / f"{split}.{side}", PIECES)
    assert len(re.findall(r"^H-\d+", bash(CNN), re.MULTILINE)) == 12


def test_roberta_large_mnli(bash):
    """Its head is named mnli, its parameters are named as in fairseq before 0.10."""
    words = "--task sentence_prediction --max-positions 64".split()
    args = stored(
        "roberta_large", *SIZES["encoder"], *words, "--criterion", "sentence_prediction", "--num-classes", "3"
    )
    model = model_of(args, [*map(str, range(256)), "<mask>"])
    model.register_classification_head("mnli", num_classes=3)
    weights = {re.sub("^encoder", "decoder", name): value for name, value in model.state_dict().items()}
    archive(bash.released, "roberta.large.mnli", args, weights)
    for name in ("dev_matched", "dev_mismatched"):
        lines = [(*(" ".join(WORDS.choices(PIECES, k=4)) for _ in range(2)), label) for label in LABELS * 4]
        for i, column in enumerate(("premise", "hypothesis", "label")):
            (bash.folder / f"{name}.{column}").write_text("".join(f"{line[i]}\n" for line in lines))
    assert "accuracy" in bash(ENCODE + MNLI)
