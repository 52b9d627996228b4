"""Results of evaluations as plain values, and the differences between models (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sacrebleu.metrics import BLEU, CHRF

from fairseq_headgates.data import statistics
from fairseq_headgates.data.statistics import (
    Difference,
    mcnemar,
    mean_difference_test,
    mean_interval,
    paired_bootstrap,
    perplexity,
    score_interval,
    share_interval,
)
from fairseq_headgates.files import parse_json, read_records, read_text
from fairseq_headgates.heads import Signature
from fairseq_headgates.messages import quoted

SAME = "compare evaluations of the same data, with the same options"
HINT = "write it with `headgates evaluate --out`"


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
        perplexity: 2 to the power of the mean; None for classifiers, and in a file where it is infinite
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
    perplexity: float | None = None
    tokens: int | None = None
    unknown: int | None = None
    words: int | None = None
    perplexity_per_word: float | None = None
    sentences: list[float]
    counts: list[int]

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
    """How many words are translated, tokens or sentences are predicted per second.

    Attributes:
        unit: "words", "tokens" or "sentences"
        per_second: in the fastest round
        interval: in the slowest and in the fastest round; None if there was one round
    """

    unit: str
    per_second: float
    interval: tuple[float, float] | None = None


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

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the evaluation."""
        return {name: _plain(each) for name, each in vars(self).items() if each is not None or name == "speed"}

    def compare(self, control: Evaluation) -> dict[str, Difference]:
        """Return the differences of this model minus another one; see `differences`."""
        return differences(control, [self])[0]


def read_evaluations(path: str) -> list[Evaluation]:
    """Read the evaluations of a file of `headgates evaluate --out`.

    Raises:
        ValueError: in one line, if the file cannot be read or has other content
    """
    return read_records(Evaluation, parse_json(read_text(path, "the evaluation", HINT), path, HINT), path, HINT)


def _plain(value: Any) -> Any:
    """Return scores, losses and speed as objects, without what they do not have."""
    if isinstance(value, (Score, Loss, Speed)):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class TextScorer:
    """Scores translations by a metric of sacreBLEU; differences are tested by paired bootstrap."""

    metric: BLEU | CHRF
    references: Sequence[str]
    test = "paired bootstrap"

    def value(self, predictions: Sequence[str]) -> float:
        """Return the score of translations, from 0 to 100."""
        return float(self.metric.corpus_score(predictions, [self.references]).score)

    def signature(self) -> str:
        """Return sacreBLEU's signature."""
        return str(self.metric.get_signature())

    def score(self, predictions: Sequence[str]) -> Score:
        """Return the score of translations with its interval."""
        interval = score_interval(self.metric, predictions, self.references)
        return Score(self.value(predictions), interval, self.signature())

    def differences(self, control: Sequence[str], others: Sequence[Sequence[str]]) -> list[Difference]:
        """Return the difference of each of several models from a control."""
        return paired_bootstrap(self.metric, control, others, self.references)


@dataclass(frozen=True)
class ClassScorer:
    """Counts the classes that are those of the labels, in percent; differences are tested by McNemar's exact test."""

    references: Sequence[int]
    test = "McNemar's exact test"

    def value(self, predictions: Sequence[int]) -> float:
        """Return the accuracy."""
        return 100 * sum(map(int.__eq__, predictions, self.references)) / len(self.references)

    def signature(self) -> str:
        """Return the number of sentences."""
        return f"accuracy on {len(self.references)} sentences"

    def score(self, predictions: Sequence[int]) -> Score:
        """Return the accuracy with its interval."""
        correct = sum(map(int.__eq__, predictions, self.references))
        return Score(self.value(predictions), share_interval(correct, len(self.references)), self.signature())

    def differences(self, control: Sequence[int], others: Sequence[Sequence[int]]) -> list[Difference]:
        """Return the difference of each of several models from a control."""
        signature, before = f"{self.test} on {len(self.references)} sentences", self.value(control)
        return [
            Difference(self.value(other) - before, mcnemar(control, other, self.references), signature)
            for other in others
        ]


def scorers(references: Sequence[Any], bleu: BLEU | None) -> dict[str, TextScorer | ClassScorer]:
    """Return what scores translations, by BLEU and by chrF2 with the same case, or classes if `bleu` is None."""
    if bleu is None:
        return {"accuracy": ClassScorer(references)}
    return {"BLEU": TextScorer(bleu, references), "chrF2": TextScorer(CHRF(lowercase=bleu.lowercase), references)}


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
        names = f"{other.checkpoint} and {control.checkpoint}"
        if other.references != control.references:
            raise ValueError(f"{names} have other references: {SAME}")
        _check_same_data(control, other, control.subset, other.subset)
        for name, score in control.scores.items():
            before, after = score.signature, other.scores[name].signature
            if before != after:
                raise ValueError(f"the signatures of {name} of {names} differ ({after} and {before}): {SAME}")
    if scored:
        bleu = bleu_of(control.scores["BLEU"].signature) if "BLEU" in control.scores else None
        for name, scorer in scorers(control.references or (), bleu).items():
            of_score = scorer.differences(control.predictions or (), [other.predictions or () for other, _ in scored])
            for (_, into), difference in zip(scored, of_score, strict=True):
                into[name] = difference
    return found


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
            f"{other.checkpoint} and {control.checkpoint} are evaluated on other data ({name} {quoted(b[name])} and "
            f"{quoted(a[name])}): {SAME}"
        )


def bleu_of(signature: str) -> BLEU:
    """Return BLEU with the case and the tokenizer of one of sacreBLEU's signatures."""
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    known = sorted(BLEU.TOKENIZERS, key=len, reverse=True)
    tokenizer = next(name for name in known if parts["tok"].startswith(name))
    return BLEU(lowercase=parts["case"] == "lc", force=True, tokenize=tokenizer)
