"""Results of evaluations as plain values, and the differences between models (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple

from sacrebleu.metrics import BLEU, CHRF

from fairseq_headgates.evaluation import statistics
from fairseq_headgates.evaluation.statistics import (
    mcnemar,
    mean_difference_test,
    mean_interval,
    paired_bootstrap,
    perplexity,
    score_interval,
    share_interval,
)
from fairseq_headgates.files import Unbounded
from fairseq_headgates.heads import Signature
from fairseq_headgates.messages import shown

SAME = "compare evaluations of the same data, with the same options"


class Difference(NamedTuple):
    """A difference between two models, its two-sided p-value (None without variance), and how both are computed."""

    value: float
    p: float | None
    signature: str


@dataclass(frozen=True)
class Score:
    """A score of predictions, from 0 to 100, its 95% confidence interval, and how it is computed."""

    score: float
    interval: tuple[float, float]
    signature: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of a subset.

    Attributes:
        mean: in bits per `unit`
        interval: 95% confidence interval of the mean
        unit: "token" or "sentence"
        perplexity: 2 to the power of the mean; None for classifiers
        tokens: of a language model: number of tokens
        unknown: how many of them are <unk>
        words: number of words and ends of lines of the text
        perplexity_per_word: perplexity of the loss of all tokens divided by `words`
        sentences: the loss of each sentence, or block of text, in bits
        counts: the number of tokens, or labels, in each that are predicted
    """

    mean: float
    interval: tuple[float, float]
    unit: str
    perplexity: Unbounded | None = None
    tokens: int | None = None
    unknown: int | None = None
    words: int | None = None
    perplexity_per_word: Unbounded | None = None
    sentences: list[float]
    counts: list[int]

    def __post_init__(self) -> None:
        if len(self.sentences) != len(self.counts) or not sum(self.counts):
            raise ValueError("does not have a count for each of its sentences, or they are 0")

    @classmethod
    def of(cls, sentences: list[float], counts: list[int], unit: str, **others: Any) -> Loss:
        """Compute mean and interval, for a unit of tokens perplexity, and with `words` perplexity per word."""
        mean = sum(sentences) / sum(counts)
        if unit == "token":
            others["perplexity"] = perplexity(mean)
        if others.get("words"):
            others["perplexity_per_word"] = perplexity(sum(sentences) / others["words"])
        interval = mean_interval(sentences, counts)
        return cls(mean=mean, interval=interval, unit=unit, sentences=sentences, counts=counts, **others)


@dataclass(frozen=True)
class Speed:
    """How many words are translated, tokens or sentences are predicted per second."""

    unit: str
    per_second: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of one checkpoint, as `headgates evaluate` writes it.

    Attributes:
        format: that of the file
        checkpoint: its last folder and name
        heads: (open heads, all heads) by attention type, and in "total"
        layers: number of open heads of each layer, by attention type
        parameters: number of parameters
        losses: by subset
        subset: the subset of predictions and speed
        scores: "BLEU" and "chrF2", or "accuracy"
        predictions: translations, or numbers of classes; None for models that predict neither
        references: reference translations, or labels
        speed: None if it was not measured
        signature: data, options, checkpoint and version
    """

    format: Literal["headgates.evaluation/1"] = "headgates.evaluation/1"
    checkpoint: str
    heads: dict[str, tuple[int, int]]
    layers: dict[str, list[int]]
    parameters: int
    losses: dict[str, Loss]
    subset: str
    scores: dict[str, Score]
    predictions: list[Any] | None
    references: list[Any] | None
    speed: Speed | None
    signature: str

    def __post_init__(self) -> None:
        if "total" not in self.heads:
            raise ValueError("has no heads.total")
        if self.scores and self.scores.keys() not in ({"BLEU", "chrF2"}, {"accuracy"}):
            raise ValueError(f"has the scores {', '.join(self.scores)}, not BLEU and chrF2, or accuracy")
        if self.scores and (self.predictions is None or len(self.predictions) != len(self.references or ())):
            raise ValueError("does not have a reference for each prediction")
        kind = int if "accuracy" in self.scores else str
        if not all(isinstance(each, kind) for each in (*(self.predictions or ()), *(self.references or ()))):
            raise ValueError("has predictions or references that do not fit its scores")

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the evaluation."""
        return {name: _plain(each) for name, each in vars(self).items() if each is not None or name == "speed"}

    def compare(self, control: Evaluation) -> dict[str, Difference]:
        """Return the differences of this model minus another one; see `differences`."""
        return differences(control, [self])[0]


def _plain(value: Any) -> Any:
    """Return scores, losses and speed as objects, without what they do not have."""
    if isinstance(value, (Score, Loss, Speed)):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def text_scores(metric: BLEU, predictions: list[str], references: list[str]) -> dict[str, Score]:
    """Return BLEU, and chrF2 with the same case, of translations."""
    found = {}
    for name, each in {"BLEU": metric, "chrF2": CHRF(lowercase=metric.lowercase)}.items():
        score = float(each.corpus_score(predictions, [references]).score)
        interval = score_interval(each, predictions, references)
        found[name] = Score(score, interval, str(each.get_signature()))
    return found


def class_scores(predictions: Sequence[int], labels: Sequence[int]) -> dict[str, Score]:
    """Return the accuracy of predicted classes, in percent."""
    total, correct = len(labels), sum(found == label for found, label in zip(predictions, labels, strict=True))
    return {"accuracy": Score(100 * correct / total, share_interval(correct, total), f"accuracy on {total} sentences")}


def differences(control: Evaluation, others: Sequence[Evaluation]) -> list[dict[str, Difference]]:
    """Return the differences of each of several models minus a control, by name.

    The names are "loss SUBSET" (paired bootstrap over sentences or blocks of text), and "BLEU" and "chrF2" (paired
    bootstrap) or "accuracy" (McNemar's exact test). What is not in both evaluations is left out. Exchanging two models
    changes the sign, and not the p-value.

    Raises:
        ValueError: for evaluations of other data, as their signatures name them, or with other options of BLEU
    """
    found = [_loss_differences(control, other) for other in others]
    scored = [(other, into) for other, into in zip(others, found, strict=True) if {*other.scores} & {*control.scores}]
    for other, _ in scored:
        if other.references != control.references:
            raise ValueError(f"{other.checkpoint} and {control.checkpoint} have other references: {SAME}")
        _check_same_data(control, other, control.subset, other.subset)
    if "accuracy" in control.scores:
        for other, into in scored:
            into["accuracy"] = _accuracy_difference(control, other)
    elif scored:
        _add_text_differences(control, scored)
    return found


def pairwise(evaluations: Sequence[Evaluation]) -> dict[tuple[int, int], dict[str, Difference]]:
    """Return the differences of any two models, the later minus the earlier, by their numbers (later, earlier)."""
    found: dict[tuple[int, int], dict[str, Difference]] = {}
    for earlier, control in enumerate(evaluations[:-1]):
        later = range(earlier + 1, len(evaluations))
        of_control = differences(control, [evaluations[number] for number in later])
        found |= {(number, earlier): of for number, of in zip(later, of_control, strict=True)}
    return {(b, a): found[b, a] for a, b in combinations(range(len(evaluations)), 2)}


def _loss_differences(control: Evaluation, other: Evaluation) -> dict[str, Difference]:
    found = {}
    for subset, loss in other.losses.items():
        before = control.losses.get(subset)
        if before is None:
            continue
        if (loss.counts, loss.unit) != (before.counts, before.unit):
            names = f"{other.checkpoint} and {control.checkpoint}"
            raise ValueError(f"the losses of {names} on {subset!r} are of other sentences: {SAME}")
        _check_same_data(control, other, subset, subset)
        p = mean_difference_test(loss.sentences, before.sentences, loss.counts)
        signature = f"paired bootstrap|bs:{statistics.RESAMPLINGS}|seed:{statistics.SEED}"
        found[f"loss {subset}"] = Difference(loss.mean - before.mean, p, signature)
    return found


def _check_same_data(control: Evaluation, other: Evaluation, before: str, after: str) -> None:
    """Raise ValueError if the signatures of two evaluations name other data for these subsets.

    The folder of the data may have moved if the references are the same.
    """
    a, b = (Signature.parse(each.signature).data(subset) for each, subset in ((control, before), (other, after)))
    ignored = {"data"} if control.references and control.references == other.references else set()
    for name in [name for name in a if name in b and name not in ignored and a[name] != b[name]]:
        raise ValueError(
            f"{other.checkpoint} and {control.checkpoint} are evaluated on other data ({name} {shown(b[name])} and "
            f"{shown(a[name])}): {SAME}"
        )


def _accuracy_difference(control: Evaluation, other: Evaluation) -> Difference:
    assert control.predictions is not None and other.predictions is not None and control.references is not None
    p = mcnemar(control.predictions, other.predictions, control.references)
    value = other.scores["accuracy"].score - control.scores["accuracy"].score
    return Difference(value, p, f"McNemar's exact test on {len(control.references)} sentences")


def _add_text_differences(control: Evaluation, others: Sequence[tuple[Evaluation, dict[str, Difference]]]) -> None:
    """Add the differences of BLEU and chrF2 to those of each of several models."""
    assert control.references is not None
    for other, _ in others:
        for name in ("BLEU", "chrF2"):
            before, after = control.scores[name].signature, other.scores[name].signature
            if before != after:
                names = f"{other.checkpoint} and {control.checkpoint}"
                raise ValueError(f"the signatures of {name} of {names} differ ({after} and {before}): {SAME}")
    systems = [control.predictions, *(other.predictions for other, _ in others)]
    named: Any = {str(number): texts for number, texts in enumerate(systems)}
    metric = bleu_of(control.scores["BLEU"].signature)
    metrics = {"BLEU": metric, "chrF2": CHRF(lowercase=metric.lowercase)}
    for name, found in paired_bootstrap(metrics, named, control.references).items():
        for number, (_, into) in enumerate(others, 1):
            value = found.scores[str(number)] - found.scores["0"]
            into[name] = Difference(value, found.p_values[str(number)], found.signature)


def bleu_of(signature: str) -> BLEU:
    """Return BLEU with the case and the tokenizer of one of sacreBLEU's signatures. Raise ValueError."""
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    known = sorted(BLEU.TOKENIZERS, key=len, reverse=True)
    tokenizer = next((name for name in known if parts.get("tok", "").startswith(name)), None)
    if tokenizer is None or parts.get("case") not in ("mixed", "lc"):
        raise ValueError(f"the signature of BLEU is {shown(signature)}: it must have sacreBLEU's case and tok")
    return BLEU(lowercase=parts["case"] == "lc", force=True, tokenize=tokenizer)
