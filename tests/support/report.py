"""An experiment on the toy corpus, with every kind of input of `headgates report`."""

import json

import pytest

from support.analysis import READ, SEARCH
from support.commands import GATED


def model(name, method, kept, bleu):
    """A model of a sweep file."""
    layers = {each: [kept[each] - kept[each] // 2, kept[each] // 2] for each in kept}
    scores = {"BLEU": bleu, "diff": [value - 30 for value in bleu], "chrF2": bleu, "nll": [2.0] * len(bleu)}
    return {
        "name": name,
        "types": "all" if method else None,
        "method": method,
        "front": True,
        "heads": {**kept, "total": sum(kept.values())},
        "layers": layers,
        **scores,
        "parameters": [1000] * len(bleu),
        "words_per_second": [None] * len(bleu),
    }


def heads(enc_self, dec_self, dec_enc):
    return {"enc-self": enc_self, "dec-self": dec_self, "dec-enc": dec_enc}


SWEEP = {
    "format": "headgates.sweep/1",
    "models": [
        model("baseline", None, heads(8, 8, 8), [29.0, 31.0]),
        model("all_heads12", "lagrangian", heads(2, 4, 6), [29.0, 30.0]),
        model("all_heads6", "lagrangian", heads(0, 2, 4), [25.0, 27.0]),
    ],
}


@pytest.fixture(scope="session")
def experiment(made_once, run, train, toy, checkpoints):
    """A folder with a run folder `gated`, and files of every kind."""

    def make(folder):
        train(folder / "gated", *GATED, "--gate-lr-scale", 1000, updates=6)
        (folder / "sweep.json").write_text(json.dumps(SWEEP))
        data = [toy.data, "--path", checkpoints["gated"], "--gen-subset", "valid", *READ]
        for name, command in {
            "scores.json": ["score", *data, "--method", "gradient,magnitude"],
            "functions.json": ["functions", *data],
            "attention.json": ["attention", *data, "--heads", "dec-enc:0.*,enc-self:1.2"],
            "ablation.json": ["ablate", *data, *SEARCH, "--metric", "bleu", "--sentences", 6],
            "best.json": ["ablate", *data, "--mode", "all-but-one"],
            "curve.json": ["curve", *data, "--by", "magnitude", "--steps", "25,50", "--metric", "nll"],
            "evaluation.json": ["evaluate", *data, *SEARCH, "--sentences", 6],
            "explanation.json": ["explain", *data, "--lines", 2],
        }.items():
            run("headgates", *command, "--out", folder / name)
        smaller = run("headgates", "compress", *data, "--params", "0.9,0.8", "--fit-sentences", 20, "--json")
        (folder / "compressed.json").write_text(smaller.out)
        alive = json.dumps({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 1]]})
        run("headgates", "prune", "--path", checkpoints["gated"], "--out", folder / "pruned.pt", "--alive", alive)
        run("headgates", "compare", alive, folder / "pruned.pt", "--out", folder / "overlap.json")

    return made_once("experiment", make)


def inputs_of(folder):
    """All inputs in the folder."""
    names = "pruned.pt scores.json functions.json attention.json ablation.json best.json curve.json sweep.json".split()
    names += ["evaluation.json", "overlap.json", "explanation.json", "compressed.json"]
    return [folder / "gated", *(folder / name for name in names)]
