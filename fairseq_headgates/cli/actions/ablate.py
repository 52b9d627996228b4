"""Measure a model with single heads masked, or with one head alone in its layer."""

from collections.abc import Mapping
from typing import Any

from fairseq_headgates.cli.commands.ablate import AblateOptions
from fairseq_headgates.cli.options import CHOOSING
from fairseq_headgates.cli.session import Loaded, Session, open_session
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.data.statistics import perplexity
from fairseq_headgates.drawing.tables import METRICS, best_head_table, layer_tables, score_tables, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadId, HeadTable
from fairseq_headgates.scores.ablation import ablation_losses, ablation_masks, masked_predictions


def run(options: AblateOptions) -> None:
    """Run `headgates ablate`."""
    chooses = options.mode == "all-but-one" and options.metric in ("bleu", "accuracy")
    if options.select_subset is not None and not chooses:
        raise ValueError(
            "--select-subset has no effect without --mode all-but-one and --metric bleu or accuracy: add them, or "
            "leave it out"
        )
    with open_session(options) as session:
        path, name = session.only_path(), session.objective.metric(options.metric or "nll")
        loaded = session.load(path)
        metric = session.metric(name, loaded.model, loaded.corpus)  # before long work, so that wrong options fail early
        journal = session.journal(path, options.mode) if metric else None
        nll, losses = ablation_losses(loaded.model, loaded.corpus, options.mode, session.progress("loss"))
        difference = losses.map(lambda loss: loss - nll, f"+bits, {options.mode}")
        result: dict[str, Any] = {
            "format": "headgates.ablation/1",
            "mode": options.mode,
            "signature": str(loaded.signature),
            "nll": nll,
            "nll_difference": difference.rows(),
        }
        unit = session.objective.unit
        text = [f"loss of the whole model: {nll:.4f} bits per {unit}", "", text_of(*score_tables(difference))]
        if name == "ppl":
            ppl = perplexity(nll)
            more = losses.map(lambda loss: perplexity(loss) - ppl, f"+ppl, {options.mode}")
            result |= {"ppl": ppl, "ppl_difference": more.rows()}
            text += ["", f"perplexity of the whole model: {ppl:.2f}", "", text_of(*score_tables(more))]
        if metric and journal:
            result.update(_metric(session, loaded, losses, metric, journal))
            text += ["", _metric_text(metric, options.mode, result)]
        session.write(options.out, to_json(result, indent=1) + "\n")
        session.say(to_json(result) if options.json else "\n".join([*text, str(loaded.signature)]))
        if journal:
            journal.discard()


def _metric(
    session: Session[AblateOptions], loaded: Loaded, losses: HeadTable, metric: Metric, journal: ResumeJournal
) -> dict[str, Any]:
    """Return the score of the model, and its difference and p-value for each masking, by the text of a `HeadId`."""
    mode, selected_on = session.options.mode, {}
    if mode == "all-but-one":
        selecting = session.with_subset(loaded, session.options.select_subset or CHOOSING).corpus
        if selecting is not loaded.corpus:
            _, losses = ablation_losses(loaded.model, selecting, mode, session.progress("choose"))
        selected_on = {"selected_on": str(session.signature(selecting))}
    masks = ablation_masks(loaded.model, mode, losses)
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
