"""BART with gates: trained, resumed, generated from, pruned, measured."""

import json
import re

import pytest
from support.commands import EVALUATION, TYPES, train_arguments

HEADS = 12
HALF = ["--gate-heads", TYPES, "--sparsity-method", "lagrangian", "--target-heads", HEADS]


def written(run, toy, path):
    """What fairseq-generate writes from a checkpoint: hypotheses and their scores."""
    options = ["--beam", 2, "--gen-subset", "test", "--max-len-b", 12]
    out = run("fairseq-generate", toy.data, *EVALUATION, *options, "--path", path).out
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


def test_bart_is_gated_pruned_and_compressed(run, toy, tmp_path):
    """Gated, pruned, and in fairseq's own form, it writes the same; compressed it has the loss that was measured."""
    for updates in (2, 3):  # trained, and resumed: options of the model are taken from the checkpoint
        options = ["--criterion", "label_smoothed_cross_entropy_l0", *HALF]
        command = train_arguments(toy, tmp_path, *options, arch="bart_head_gates_base", updates=updates)
        run("fairseq-train", *command, "--max-tokens", 2000)
    gated, small = tmp_path / "checkpoint_last.pt", tmp_path / "small.pt"
    counts = json.loads(run("headgates", "show", gated, "--json").out)["gate"]
    assert sum(map(sum, sum(counts.values(), []))) == HEADS
    texts, scores = written(run, toy, gated)
    for form in ([], ["--stock"]):
        run("headgates", "prune", gated, tmp_path / "pruned.pt", "--force", *form)
        smaller = written(run, toy, tmp_path / "pruned.pt")
        assert smaller[0] == texts and smaller[1] == pytest.approx(scores, abs=2e-4)
    reads = [toy.data, "--gen-subset", "valid", "--sentences", 5, "--cpu", "--path"]
    check_ablation(run, reads, gated)
    options = ["--params", 0.95, "--fit-subset", "train", "--fit-sentences", 100, "--out", small, "--json"]
    (found,) = json.loads(run("headgates", "compress", *reads, gated, *options).out)
    assert found["parameters"][1] <= 0.95 * found["parameters"][0]
    assert loss(run, reads, small) == pytest.approx(found["loss"][1], abs=1e-4)
    assert written(run, toy, small)[0]
