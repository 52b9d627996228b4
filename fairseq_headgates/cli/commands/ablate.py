"""`headgates ablate`: measure a model with single heads masked, or with one head alone in its layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import CHOOSING, Output, Precision, Text, metric
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.drawing.tables import METRICS, best_head_table, layer_tables, score_tables, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import HeadId, HeadTable
from fairseq_headgates.scores.options import ABLATION_MODES

if TYPE_CHECKING:
    from fairseq_headgates.cli.session import Loaded, Session
    from fairseq_headgates.data.metrics import Metric
    from fairseq_headgates.files.journal import ResumeJournal


@command(
    "ablate",
    "headgates ablate data-bin --path baseline/checkpoint_best.pt --gen-subset valid --out ablation.json",
    "headgates ablate data-bin --path baseline/checkpoint_best.pt --metric bleu --remove-bpe --mode all-but-one",
)
class Ablate(Text, Precision, Output):
    """Measure the loss, BLEU or accuracy with single heads masked."""

    mode: str = option(
        choices=ABLATION_MODES,
        default="single",
        help="single: mask one head at a time. all-but-one: keep one head of a layer and mask the others; BLEU and "
        "accuracy are then measured only for the head with the lowest loss in each layer (default: %(default)s)",
    )
    metric: str | None = metric("nll", " BLEU has p-values of a paired bootstrap, accuracy of McNemar's exact test.")
    select_subset: str | None = option(
        metavar="S",
        type=filled,
        help="subset on which --mode all-but-one chooses the head of each layer for --metric bleu or accuracy "
        f"(default: {CHOOSING})",
    )
    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the result as JSON; with BLEU or accuracy, the same command resumes from FILE.part if it is "
        "stopped",
    )

    def check(self) -> None:
        """Raise ValueError for a subset on which no head is chosen."""
        chooses = self.mode == "all-but-one" and self.metric in ("bleu", "accuracy")
        if self.select_subset is not None and not chooses:
            raise ValueError(
                "--select-subset has no effect without --mode all-but-one and --metric bleu or accuracy: add them, or "
                "leave it out"
            )

    def run(self, session: Session) -> Answer:
        """Measure the loss, and BLEU or accuracy."""
        from fairseq_headgates.data.statistics import perplexity
        from fairseq_headgates.scores.ablation import ablation_losses

        path, name = session.only_path(), session.objective.metric(self.metric or "nll")
        loaded = session.load(path)
        metric = session.metric(name, loaded.model, loaded.corpus)  # before long work, so that wrong options fail early
        journal = session.journal(path, self.mode) if metric else None
        nll, losses = ablation_losses(loaded.model, loaded.corpus, self.mode, session.progress("loss"))
        difference = losses.map(lambda loss: loss - nll, f"+bits, {self.mode}")
        result: dict[str, Any] = {
            "format": "headgates.ablation/1",
            "mode": self.mode,
            "signature": str(loaded.signature),
            "nll": nll,
            "nll_difference": difference.rows(),
        }
        unit = session.objective.unit
        text = [f"loss of the whole model: {nll:.4f} bits per {unit}", "", text_of(*score_tables(difference))]
        if name == "ppl":
            ppl = perplexity(nll)
            more = losses.map(lambda loss: perplexity(loss) - ppl, f"+ppl, {self.mode}")
            result |= {"ppl": ppl, "ppl_difference": more.rows()}
            text += ["", f"perplexity of the whole model: {ppl:.2f}", "", text_of(*score_tables(more))]
        if metric and journal:
            result.update(self._metric(session, loaded, losses, metric, journal))
            text += ["", _metric_text(metric, self.mode, result)]
        return Answer(
            text="\n".join([*text, str(loaded.signature)]),
            json=to_json(result),
            files={"out": to_json(result, indent=1) + "\n"},
        )

    def _metric(
        self, session: Session, loaded: Loaded, losses: HeadTable, metric: Metric, journal: ResumeJournal
    ) -> dict[str, Any]:
        """Return the score of the model, and its difference and p-value for each masking, by the text of a `HeadId`."""
        from fairseq_headgates.scores.ablation import ablation_losses, ablation_masks, masked_predictions

        selected_on = {}
        if self.mode == "all-but-one":
            selecting = session.with_subset(loaded, self.select_subset or CHOOSING).corpus
            if selecting is not loaded.corpus:
                _, losses = ablation_losses(loaded.model, selecting, self.mode, session.progress("choose"))
            selected_on = {"selected_on": str(session.signature(selecting))}
        masks = ablation_masks(loaded.model, self.mode, losses)
        predictions = masked_predictions(loaded.model, metric, masks, journal, session.progress(metric.name))
        whole, *others = predictions.values()
        found = dict(zip(masks, metric.main.differences(whole, others), strict=True))
        name, score, signature = metric.name, metric.main.value(whole), metric.main.signature()
        if name == "bleu" and found:  # with the number of resamples and their seed
            signature = next(iter(found.values())).signature
        return {
            **selected_on,
            name: score,
            f"{name}_difference": {str(head): difference.value for head, difference in found.items()},
            "p_value": {str(head): difference.p for head, difference in found.items()},
            f"{name}_signature": signature,
            **({"search": str(session.search)} if name == "bleu" else {}),
        }


def _metric_text(metric: Metric, mode: str, result: Mapping[str, Any]) -> str:
    name = metric.name
    difference = {HeadId.parse(head): value for head, value in result[f"{name}_difference"].items()}
    p = {HeadId.parse(head): value for head, value in result["p_value"].items()}
    title = f"{METRICS[name]} of the whole model: {result[name]:.2f}; differences, * p < 0.05, ** p < 0.01"
    tables = layer_tables(difference, p, name) if mode == "single" else [best_head_table(difference, p)]
    return "\n\n".join([f"{title} ({metric.main.test})", *map(text_of, tables)]) + f"\n{result[f'{name}_signature']}"
