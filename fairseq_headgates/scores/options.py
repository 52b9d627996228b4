"""Names and options of the importance scores (no torch): what `headgates score --help` lists."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_headgates.messages import Progress


@dataclass(frozen=True)
class Score:
    """An importance score.

    Attributes:
        text: what it measures, for the help
        function: the path, within this package, of its function: (model, corpus, `ScoreOptions`) -> `HeadTable`
        needs_data: whether it depends on the data
    """

    text: str
    function: str
    needs_data: bool = True


# By name, in the order of the help.
SCORES = {
    "confidence": Score(
        "mean of a head's largest attention weight (Voita et al. 2019)", "scores.importance.confidence"
    ),
    "gradient": Score(
        "expected sensitivity of the loss to masking a head (Michel et al. 2019)", "scores.importance.gradient"
    ),
    "relevance": Score(
        "share of a head in the relevance of its layer for the top-1 logit, by layer-wise relevance propagation (LRP; "
        "Voita et al. 2019)",
        "scores.importance.relevance",
    ),
    "ablation": Score(
        "increase of the loss, in bits per target token, with the head masked (Michel et al. 2019)",
        "scores.importance.ablation",
    ),
    "magnitude": Score("l2 norm of a head's weights", "scores.importance.magnitude", needs_data=False),
    "gate": Score(
        "P(open), the probability that a head's gate is not 0 (Voita et al. 2019)",
        "scores.importance.gate",
        needs_data=False,
    ),
    "random": Score(
        "uniform random numbers (seed: --seed), as a baseline", "scores.importance.random", needs_data=False
    ),
    "refit": Score(
        "estimated increase of the loss if this head and all with lower scores are removed and the output projections "
        "are refitted (Optimal Brain Surgeon, Hassibi & Stork 1993); use it with prune --refit and --gen-subset train",
        "compression.refit_score.refit_scores",
    ),
}
GRADIENT_UNITS = ("sentence", "token")  # Michel et al. 2019: the paper's equation 2; its released code
NORMS = ("layer", "none")
LRP_RULES = {  # relevance.rules.RULES
    "story-of-heads": "alpha-beta rule with alpha = beta = 0.5 (Voita et al. 2019)",
    "attn-constant": "the same rule with attention weights as constants",
    "alpha1beta0": "alpha-beta rule with alpha = 1 and beta = 0, only positive contributions",
    "epsilon": "epsilon rule (Bach et al. 2015)",
}
HEAD_RULES = LRP_RULES | {"attnlrp": "AttnLRP (Achtibat et al. 2024)"}
EXPLANATIONS = {  # relevance.explain
    "attnlrp": "layer-wise relevance propagation (LRP) with rules for attention (Achtibat et al. 2024)",
    "alti": "ALTI+ (Ferrando et al. 2022), contributions to the state that the token is predicted from",
    **{name: f"LRP, {text}" for name, text in LRP_RULES.items()},
}
UNITS = ("heads", "neurons")  # that compression removes
ABLATION_MODES = ("single", "all-but-one")  # Michel et al. 2019, tables 1 and 2


@dataclass(frozen=True)
class ScoreOptions:
    """Options of the importance scores.

    Attributes:
        gradient_unit: of the gradient, take absolute values per "sentence" or per "token"
        normalize: of the gradient, "layer" to divide the scores of each layer by their l2 norm, or "none"
        rule: of the relevance, the rule of propagation
        seed: of the random scores
        progress: wraps the iterable of batches, e.g. `tqdm`
    """

    gradient_unit: str = "sentence"
    normalize: str = "layer"
    rule: str = "story-of-heads"
    seed: int = 1
    progress: Progress = iter

    def signature_parts(self, method: str) -> dict[str, str]:
        """Return the options that the scores of a method depend on, for their signature."""
        return {
            "gradient": {"gradient-unit": self.gradient_unit, "normalize": self.normalize},
            "relevance": {"rule": self.rule},
            "random": {"seed": str(self.seed)},
        }.get(method, {})


def parse_methods(text: str) -> list[str]:
    """Parse a comma-separated list of scores, or "all". Raise ValueError for an unknown name."""
    names = list(SCORES) if text == "all" else list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in SCORES:
            raise ValueError(f"unknown method {name!r}: choose from {', '.join(SCORES)}")
    return names


@dataclass(frozen=True)
class FunctionOptions:
    """From which values on a head has a function, in percent.

    Attributes:
        positional: share of the queries whose maximum is at the same offset (90% in Voita et al. 2019, section 5.2), of
            those for which that position exists
        margin: percentage points above the most frequent offset of a relation (Voita et al. 2019, section 5.3)
        rare: share of the queries whose maximum is on one of the two rarest tokens of the sentence
        confidence: level of the confidence intervals
    """

    positional: float = 90.0
    margin: float = 10.0
    rare: float = 50.0
    confidence: float = 95.0
