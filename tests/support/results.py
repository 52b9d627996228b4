"""Evaluations of made-up models, in the folders of a recipe; their tables; sacreBLEU's own tests."""

from __future__ import annotations

import json
import re
from statistics import mean

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from fairseq_headgates.data.results import Evaluation, Loss, Score, Speed
from fairseq_headgates.heads import TYPES

ALL = ",".join(TYPES)


def translations(wrong, seed, case=str):
    """References, and the same with a share of wrong words."""
    words = "der die das Hund Katze sieht kennt ein eine kleine gute Haus und oder nicht".split()
    generator = np.random.default_rng(0)
    reference = [[words[i] for i in generator.integers(len(words), size=9)] for _ in range(60)]
    generator = np.random.default_rng(seed)
    changed = [[w if generator.random() > wrong else "x" for w in line] for line in reference]
    return [" ".join(line) for line in reference], [case(" ".join(line)) for line in changed]


def write(folder, kept, of=6, **values):
    """Write the evaluation of a model with three layers; `kept` has its heads by attention type."""
    heads = {each: (n, of) for each, n in kept.items()} | {"total": (sum(kept.values()), of * len(kept))}
    layers = {each: [max(0, min(of // 3, n - of // 3 * i)) for i in range(3)] for each, n in kept.items()}
    given = {"parameters": 1_234_567, "losses": {}, "scores": {}}
    given |= dict.fromkeys(("predictions", "references", "speed"))
    given |= {"checkpoint": f"{folder.name}/x.pt", "heads": heads, "layers": layers} | values
    evaluation = Evaluation(subset="test", signature="s", **given)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps(evaluation.as_json()))


def loss(bits, **values):
    counts = {"sentences": [bits * 2], "counts": [2]}
    return Loss(mean=bits, interval=(bits, bits), unit="token", perplexity=2**bits, **counts, **values)


def translator(
    folder, kept, bleu=None, texts=(["a b c d"], ["a b c d"]), nll=2.0, speed=None, lowercase=False, **others
):
    """Write the evaluation of a translation model; with `bleu` its scores are not those of its texts."""
    scores = {}
    for name, each in {"BLEU": BLEU(lowercase=lowercase), "chrF2": CHRF(lowercase=lowercase)}.items():
        score = each.corpus_score(texts[1], [texts[0]]).score if bleu is None else bleu
        each.corpus_score(texts[1], [texts[0]])  # for the signature
        scores[name] = Score(score, (0, 100), str(each.get_signature()))
    measured = speed and Speed("words", speed, (speed / 2, speed))
    others |= {"references": texts[0], "predictions": texts[1], "speed": measured}
    write(folder, dict(zip(TYPES, kept, strict=True)), losses={"valid": loss(nll)}, scores=scores, **others)


def classifier(folder, kept, labels, predictions, **others):
    accuracy = 100 * mean(p == label for p, label in zip(predictions, labels, strict=True))
    scores = {"accuracy": Score(accuracy, (0, 100), f"accuracy on {len(labels)} sentences")}
    write(folder, {"enc-self": kept}, scores=scores, predictions=predictions, references=labels, **others)
    return accuracy


def language_model_of(folder, kept, bits, speed=100.0):
    """Write the evaluation of a language model on 10 tokens, which are 5 words."""
    size = {"tokens": 10, "unknown": 1, "words": 5, "perplexity_per_word": 4**bits}
    losses = {subset: loss(bits, **size) for subset in ("valid", "test")}
    write(folder, {"dec-self": kept}, of=15, losses=losses, speed=speed and Speed("tokens", speed))


def cells(lines):
    """The cells of the first table by name of the model and column."""
    header, _, *found = (re.split("  +", line) for line in lines)
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in found if len(row) == len(header)}


def tsv_of(path):
    header, *found = (line.split("\t") for line in path.read_text().splitlines())
    return {(row[0], row[1]): dict(zip(header, row, strict=True)) for row in found}


def by_sacrebleu(control, run, samples=100):
    """sacreBLEU's own paired bootstrap: by metric the scores of a control and a run, and the p-value; a signature."""
    metrics = {"BLEU": BLEU(), "chrF2": CHRF()}
    signatures, found = PairedTest([("a", control[1]), ("b", run[1])], metrics, [control[0]], "bs", samples)()
    return {name: (*(of.score for of in found[name]), found[name][1].p_value) for name in metrics}, signatures["BLEU"]
