"""Every architecture with gates for fairseq's other models: trained, resumed, generated from, pruned, measured."""

import importlib.util
import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fairseq.data.legacy.masked_lm_dictionary import MaskedLMDictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from support.commands import EVALUATION, TYPES, Toy, train_arguments
from support.pages import ROOT
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


LIBNAT = ("levenshtein", "insertion")
OF_MODELS = ("--share-encoders",)
# Models whose test is of every change; that of the others, which are like them, is a rehearsal.
OF_EVERY_CHANGE = ("bart", "multilingual", "levenshtein")
HALF = ["--sparsity-method", "lagrangian", "--target-heads"]


def each(*names):
    """Parameters of a test, without the models that this build of fairseq lacks."""
    missing = importlib.util.find_spec("fairseq.libnat") is None
    skipped = [pytest.mark.skipif(missing, reason="fairseq was built without libnat")]
    marks = {
        name: skipped * name.startswith(LIBNAT) + [pytest.mark.rehearsal] * (not name.startswith(OF_EVERY_CHANGE))
        for name in names
    }
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    """fairseq's CRF needs a name that numpy 1.24 removed; its dictionary of XLM takes no option of `load`."""
    monkeypatch.setattr(np, "float", float, raising=False)
    make = MaskedLMDictionary.__init__
    monkeypatch.setattr(MaskedLMDictionary, "__init__", lambda self, add_special_symbols=True: make(self))


@pytest.fixture(scope="module")
def speech(made_once, toy):
    return made_once("speech", lambda folder: write_speech(folder, toy))


@pytest.fixture
def trained(tmp_path, run, toy, speech, checkpoints):
    """trained(arch) trains a toy model until half of its heads are closed: its data and its checkpoint."""

    def trained(arch):
        family, data = FAMILIES[arch], speech if FAMILIES[arch].task == "speech_to_text" else toy.data
        own = [*family.train, "--task", family.task, *family.read, "--gate-heads", family.types, *HALF, heads(family)]
        if family.task == "translation_from_pretrained_xlm":
            write_xlm(tmp_path / "xlm.pt", checkpoints["baseline"])
            own += ["--pretrained-xlm-checkpoint", tmp_path / "xlm.pt", "--init-encoder-only"]
        for updates in (2, 3):  # trained, and resumed: options of the model are taken from the checkpoint
            own = own if updates == 2 else [option for option in own if option not in OF_MODELS]
            command = train_arguments(Toy(toy.text, data), tmp_path, *own, arch=arch, updates=updates)
            run("fairseq-train", *command, "--max-tokens", 2000)
        return data, tmp_path / "checkpoint_last.pt"

    return trained


def heads(family):
    return {"dec-enc": 4}.get(family.types, 20 if "multilingual" in family.task else 12)


def written(run, family, data, path):
    """What fairseq-generate writes from a checkpoint: hypotheses and their scores."""
    options = ["--task", family.task, *family.read, *family.generate, "--gen-subset", "test", "--max-len-b", 12]
    out = run("fairseq-generate", data, *EVALUATION, *options, "--path", path).out
    found = sorted(re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE), key=lambda line: int(line[0]))
    assert len(found) >= 5
    return [text for _, _, text in found], [float(score) for _, score, _ in found]


def loss(run, reads, path):
    out = run("headgates", "evaluate", *reads, path, "--max-len-b", 2, "--json").out
    return json.loads(out)["losses"]["valid"]["mean"]


def check_ablation(run, reads, gated):
    """The loss without a head, by ablation, is that of a checkpoint without it: for the last open head of each type."""
    found = json.loads(run("headgates", "ablate", *reads, gated, "--json").out)
    gates = json.loads(run("headgates", "show", gated, "--json").out)["gate"]
    for attention_type, rows in gates.items():
        opened = [(i, j) for i, row in enumerate(rows) for j, gate in enumerate(row) if gate]
        if not opened:
            continue
        layer, head = opened[-1]
        mask = {attention_type: [[int(gate) for gate in row] for row in rows]}
        mask[attention_type][layer][head] = 0
        smaller = gated.with_name(f"{attention_type}.pt")
        run("headgates", "prune", gated, smaller, "--alive", json.dumps(mask))
        assert loss(run, reads, smaller) == pytest.approx(
            found["nll"] + found["nll_difference"][attention_type][layer][head]
        )


def check_compression(run, family, reads, gated):
    """A compressed checkpoint has the loss that was measured, and fairseq-generate writes something from it."""
    small = gated.with_name("small.pt")
    options = ["--params", 0.95, "--fit-subset", "train", "--fit-sentences", 100, "--out", small, "--json"]
    (found,) = json.loads(run("headgates", "compress", *reads, gated, *options).out)
    assert found["parameters"][1] <= 0.95 * found["parameters"][0]
    assert loss(run, reads, small) == pytest.approx(found["loss"][1], abs=1e-4)
    assert written(run, family, reads[0], small)[0]


@pytest.mark.parametrize("arch", each(*FAMILIES))
def test_family(arch, trained, run):
    """Gated, pruned, and in fairseq's own form, it writes the same; losses are computed or refused in one line."""
    family = FAMILIES[arch]
    data, gated = trained(arch)
    counts = json.loads(run("headgates", "show", gated, "--json").out)["gate"]
    assert sum(map(sum, sum(counts.values(), []))) == heads(family)
    texts, scores = written(run, family, data, gated)
    pruned = gated.with_name("pruned.pt")
    for form in ([], ["--stock"]):
        run("headgates", "prune", gated, pruned, "--force", *form)
        smaller = written(run, family, data, pruned)
        assert smaller[0] == texts and smaller[1] == pytest.approx(scores, abs=2e-4)
    if "multilingual" in family.task:
        assert len(counts["enc-self"]) == 2 and len(counts["dec-self"]) == 4
        refused = run("headgates", "compare", gated, pruned, code=2)
        assert "write its mask with headgates show --out" in refused.err
    task = ["--task", family.task, *family.read]
    reads = ["--gen-subset", "valid", "--sentences", 5, "--cpu", "--path"]
    if family.has_loss:
        check_ablation(run, [data, *task, *reads], gated)
        check_compression(run, family, [data, *task, *reads], gated)
    for options in [] if family.has_loss else [[], task]:
        refused = run("headgates", "ablate", data, *options, *reads, gated, code=2)
        assert re.fullmatch(r"headgates ablate: error: .*\n", refused.err)


def test_the_page_has_a_row_for_each():
    page = (ROOT / "docs" / "any-model.md").read_text(encoding="utf-8")
    for arch, family in FAMILIES.items():
        criterion = family.train[family.train.index("--criterion") + 1]
        types, answer = family.types.replace(",", ", "), "yes" if family.has_loss else "no"
        assert f"| `{arch}` | `{family.task}` | `{criterion}` | {types} | {answer} |\n" in page
    registered = {name for name, model in MODEL_REGISTRY.items() if model.__module__.endswith(".families")}
    assert {ARCH_MODEL_REGISTRY[arch] for arch in FAMILIES} == {MODEL_REGISTRY[name] for name in registered}
