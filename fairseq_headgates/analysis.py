"""The commands that measure heads: score, ablate, curve, correlate. Parse, call, print.

Those that read data take the options of fairseq-generate beside their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fairseq_headgates import ablation, evaluation, importance, report
from fairseq_headgates.agreement import agreement
from fairseq_headgates.arguments import Once
from fairseq_headgates.evaluation.options import USAGE
from fairseq_headgates.files import Journal
from fairseq_headgates.heads import (
    HeadTable,
    check_shape,
    parse_scores,
    parse_types,
    read_scores,
    scores_to_json,
)
from fairseq_headgates.propagation import RULES
from fairseq_headgates.pruning import open_heads
from fairseq_headgates.session import Loaded, Session, say, session
from fairseq_headgates.sites import head_counts

METRICS = ("nll", "bleu")
EPILOG = (
    "DATA is a folder of binarised data. Data, batches, processes and beam search are set by the options of "
    "fairseq-generate: --gen-subset (default: test), --max-tokens (4000), --cpu, --fp16, --beam, --lenpen, "
    "--post-process, --tokenizer, --scoring sacrebleu, ... (fairseq-generate --help)."
)


# --- options ---------------------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Adds the parsers of this room's commands to those of `headgates`."""
    _add_score(commands)
    _add_ablate(commands)
    _add_curve(commands)
    _add_correlate(commands)


def _add_score(commands: Any) -> None:
    parser = _data_command(commands, "score", run_score, "compute importance scores of all heads")
    methods = ", ".join(importance.METHODS)
    parser.add_argument(
        "--method", metavar="M[,M...]", action=Once, required=True, help=f"one or several of {methods}; or all"
    )
    _add_method_options(parser)
    parser.add_argument("--json", action="store_true", help="print the scores as JSON instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="write heat maps: .png, .pdf, .svg (needs matplotlib)")
    _add_out(parser, "write the scores as a file for `headgates prune --scores`, curve and correlate")


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--abs",
        choices=importance.GRADIENT_UNITS,
        default="sentence",
        help="gradient: take absolute values per sentence (Michel et al., the paper) or per token (their code)",
    )
    parser.add_argument(
        "--normalize",
        choices=importance.NORMS,
        default="layer",
        help="gradient: divide by the l2 norm of the layer, or not (default: layer)",
    )
    parser.add_argument(
        "--rule",
        choices=list(RULES),
        default="story-of-heads",
        help="relevance: how it is propagated (default: %(default)s)",
    )


def _add_ablate(commands: Any) -> None:
    parser = _data_command(
        commands, "ablate", run_ablate, "measure the loss or BLEU without each head, or with one head alone"
    )
    parser.add_argument(
        "--mode",
        choices=ablation.MODES,
        default="single",
        help="mask each head (default), or all heads of a layer but one: its best",
    )
    parser.add_argument("--metric", choices=METRICS, default="nll", help="loss (default), or BLEU with p-values too")
    parser.add_argument(
        "--select-subset", metavar="S", help="all-but-one: choose the best heads by the loss on this subset instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    _add_out(parser, "write the result as JSON; with BLEU, FILE.part keeps what is done, to go on after a stop")


def _add_curve(commands: Any) -> None:
    parser = _data_command(commands, "curve", run_curve, "remove the least important heads step by step, and measure")
    order = parser.add_mutually_exclusive_group(required=True)
    order.add_argument(
        "--by",
        metavar="METHOD",
        action=Once,
        choices=list(importance.METHODS),
        help="remove heads in the order of these scores",
    )
    order.add_argument("--scores", metavar="FILE", action=Once, help="remove heads in the order of a score file")
    parser.add_argument("--score-method", metavar="M", help="which scores, if FILE has those of several methods")
    parser.add_argument("--score-subset", metavar="S", help="with --by: score on this subset (default: --gen-subset)")
    _add_method_options(parser)
    parser.add_argument(
        "--types",
        metavar="TYPES",
        nargs="+",
        help="a curve for each: all, or attention types joined by commas (default: all together, and each type alone)",
    )
    parser.add_argument(
        "--steps",
        metavar="P,P,...",
        type=_steps,
        default=list(range(0, 100, 10)),
        help="percent of the heads to remove (default: 0,10,...,90)",
    )
    parser.add_argument("--reestimate", action="store_true", help="with --by: score anew after each step")
    parser.add_argument("--metric", choices=METRICS, default="bleu", help="loss alone, or BLEU too (default)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tsv", metavar="FILE", help="write the points as a table for plots")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves: .png, .pdf, .svg (needs matplotlib)")
    _add_out(parser, "write the points as JSON; FILE.part keeps what is done, to go on after a stop")


def _add_correlate(commands: Any) -> None:
    parser = commands.add_parser(
        "correlate",
        help="compute the correlation of score files",
        description="Compares all scores of the files with each other: those of several methods on the same data, or "
        "those of one method on several data sets or checkpoints.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="score files of `headgates score --out`")
    parser.add_argument("--method", metavar="M[,M...]", action=Once, help="compare the scores of these methods only")
    parser.add_argument("--types", metavar="TYPES", help="compare these attention types only")
    parser.add_argument("--each-type", action="store_true", help="compare each attention type alone, too")
    parser.add_argument(
        "--top", metavar="K", type=int, help="count the heads that are among the best K of both (default: a quarter)"
    )
    parser.add_argument("--any", action="store_true", help="also compare scores that differ in both method and data")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run_correlate)


def _data_command(commands: Any, name: str, run: Callable, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", usage=USAGE, epilog=EPILOG, allow_abbrev=False
    )
    parser.add_argument("--sentences", metavar="N", type=int, help="the first N sentences of the subset only")
    parser.add_argument("--trust", action="store_true", help="load any Python object from CKPT, which may run code")
    parser.set_defaults(run=run, takes_fairseq=True)
    return parser


def _add_out(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--out", metavar="FILE", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def _steps(text: str) -> list[float]:
    try:
        steps = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of percentages: 0,10,20") from None
    for step in steps:
        if not 0 <= step <= 100:
            raise argparse.ArgumentTypeError(f"{step:g} percent of the heads: it must be from 0 to 100")
    return steps


# --- score -----------------------------------------------------------------------------------------------------------


def run_score(args: argparse.Namespace) -> int:
    methods = _methods(args.method)
    with session(args, needs_target=not set(methods) <= set(importance.WITHOUT_DATA)) as work:
        path = _one(work.paths)
        loaded = work.load(path)
        tables = [scored(loaded, method, work.method_options(method)) for method in methods]
        work.write(args.out, scores_to_json(tables))
        work.plot(args.plot, lambda: report.heat_maps(tables))
        if args.json:
            work.say(scores_to_json(tables).rstrip("\n"))
        else:
            work.say("\n\n".join(f"{report.score_table(table)}\n{table.signature}" for table in tables))
    return 0


def scored(loaded: Loaded, method: str, chosen: importance.Options) -> HeadTable:
    """The scores of one method, signed with all that they depend on."""
    table = importance.score(loaded.model, loaded.corpus.task, loaded.corpus.batches, method, chosen)
    told = {
        "gradient": f"|abs:{chosen.gradient_unit}|normalize:{chosen.normalize}",
        "relevance": f"|rule:{chosen.rule}",
        "random": f"|seed:{chosen.seed}",
    }
    return HeadTable(table.values, method, f"{method}{told.get(method, '')}|{loaded.signature}")


def _methods(text: str) -> list[str]:
    names = list(importance.METHODS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in importance.METHODS:
            raise ValueError(f"unknown method {name!r}: choose from {', '.join(importance.METHODS)}")
        if names.count(name) > 1:
            raise ValueError(f"the method {name!r} is named twice: name each method once")
    return names


def _one(paths: list[str]) -> str:
    if len(paths) != 1:
        raise ValueError(f"--path names {len(paths)} checkpoints: give one at a time (`headgates curve` takes several)")
    return paths[0]


# --- ablate ----------------------------------------------------------------------------------------------------------


def run_ablate(args: argparse.Namespace) -> int:
    if args.select_subset is not None and (args.mode != "all-but-one" or args.metric != "bleu"):
        raise ValueError("--select-subset is for --mode all-but-one --metric bleu, which has heads to choose")
    with session(args) as work:
        path = _one(work.paths)
        loaded = work.load(path)
        bleu = Bleu.of(loaded, work.journal(path)) if args.metric == "bleu" else None
        nll, losses = ablation.ablation_losses(loaded.model, loaded.corpus, args.mode, work.progress("loss"))
        difference = losses.map(lambda loss: loss - nll, f"+bits, {args.mode}")
        result: dict[str, Any] = {
            "format": "headgates.ablation/1",
            "mode": args.mode,
            "signature": loaded.signature,
            "nll": nll,
            "nll_difference": difference.rows(),
        }
        text = [f"loss of the whole model: {nll:.4f} bits per target token", ""]
        text.append(report.score_table(difference))
        if bleu:
            select = losses
            if args.select_subset:
                selecting = work.corpus(loaded.model, args.select_subset)
                _, select = ablation.ablation_losses(loaded.model, selecting, args.mode, work.progress("choose"))
                result["selected_on"] = work.signature(selecting)
            found = bleu_ablation(work, loaded, select, bleu)
            result.update(found, search=work.search)
            text += ["", _bleu_text(args.mode, found)]
        work.write(args.out, json.dumps(result, indent=1) + "\n")
        work.say(json.dumps(result, allow_nan=False) if args.json else "\n".join([*text, loaded.signature]))
        if bleu:
            bleu.journal.discard()
    return 0


@dataclass(frozen=True)
class Bleu:
    """What BLEU needs besides translations. It is made before long work, so that options that fail do so first."""

    metric: Any
    references: list[str]
    journal: Journal

    @classmethod
    def of(cls, loaded: Loaded, journal: Journal) -> Bleu:
        return cls(evaluation.bleu_metric(loaded.corpus), evaluation.references(loaded.model, loaded.corpus), journal)


def bleu_ablation(work: Session, loaded: Loaded, select: HeadTable, bleu: Bleu) -> dict[str, Any]:
    """Return BLEU of the model, and its difference and p-value for each masking: {name: value}."""
    masks = ablation.ablation_masks(loaded.model, work.args.mode, select)
    texts = ablation.masked_translations(loaded.model, loaded.corpus, masks, bleu.journal, work.progress("translate"))
    scores, p_values = evaluation.bleu_with_significance(bleu.metric, texts, bleu.references)
    return {
        "bleu": scores["full"],
        "bleu_difference": {name: scores[name] - scores["full"] for name in masks},
        "p_value": p_values,
        "bleu_signature": str(bleu.metric.get_signature()),
    }


def _bleu_text(mode: str, bleu: Mapping[str, Any]) -> str:
    difference, p = bleu["bleu_difference"], bleu["p_value"]
    title = f"BLEU of the whole model: {bleu['bleu']:.2f}; differences, * p < 0.05, ** p < 0.01 (paired bootstrap)"
    tables = report.layer_tables(difference, p) if mode == "single" else [report.best_head_table(difference, p)]
    return "\n\n".join([title, *tables]) + f"\n{bleu['bleu_signature']}"


# --- curve -----------------------------------------------------------------------------------------------------------


def run_curve(args: argparse.Namespace) -> int:
    if args.scores is not None and (args.reestimate or args.score_subset is not None):
        raise ValueError("--reestimate and --score-subset go with --by: a score file is not computed anew")
    if args.score_method is not None and args.scores is None:
        raise ValueError("--score-method names the scores of a file: give it with --scores")
    with session(args) as work:
        journals = {path: work.journal(path) for path in work.paths}
        points = [point for path in work.paths for point in curves_of(work, path, journals[path])]
        work.write(args.out, json.dumps({"format": "headgates.curve/1", "points": points}, indent=1) + "\n")
        work.write(args.tsv, tsv(points))
        work.plot(args.plot, lambda: report.curve_plot(points))
        work.say(json.dumps(points) if args.json else report.curve_table(points))
        for kept in journals.values():
            kept.discard()
    return 0


def curves_of(work: Session, path: str, journal: Journal) -> list[dict[str, Any]]:
    """The points of all curves of one checkpoint, as plain values."""
    args = work.args
    loaded = work.load(path)
    scores, rescore = _scores_for_curve(work, loaded)
    alive = open_heads(loaded.model)
    metric = evaluation.bleu_metric(loaded.corpus)
    references = evaluation.references(loaded.model, loaded.corpus) if args.metric == "bleu" else []
    points = []
    for name, types in _groups(args.types, scores).items():
        steps = ablation.pruning_curve(
            loaded.model, loaded.corpus, scores, alive, args.steps, types, rescore, args.metric == "bleu", journal
        )
        for point in work.progress(f"{work.name(path)} {name}")(steps):
            bleu = metric.corpus_score(point.translations, [references]).score if args.metric == "bleu" else None
            points.append(
                {
                    "checkpoint": work.name(path),
                    "by": scores.name,
                    "types": name,
                    "removed": point.removed,
                    "heads": point.heads,
                    "nll": point.nll,
                    "bleu": bleu,
                    "mask": dict(point.mask.values),
                    "signature": scores.signature,
                }
            )
    return points


def _scores_for_curve(work: Session, loaded: Loaded) -> tuple[HeadTable, Callable[[nn.Module], HeadTable] | None]:
    args = work.args
    if args.scores is not None:
        scores = parse_scores(args.scores, args.score_method, "--score-method")
        check_shape(scores, head_counts(loaded.model), "the score file")
        return scores, None
    corpus = work.corpus(loaded.model, args.score_subset) if args.score_subset else loaded.corpus
    chosen = work.method_options(args.by)

    def score(model: nn.Module) -> HeadTable:
        signature = loaded.signature.replace(work.signature(loaded.corpus), work.signature(corpus))
        return scored(Loaded(model, corpus, signature), args.by, chosen)

    return score(loaded.model), score if args.reestimate else None


def _groups(texts: Sequence[str] | None, scores: HeadTable) -> dict[str, tuple[str, ...]]:
    """The curves by name, and the attention types that each removes heads of."""
    if texts is None:
        texts = ["all", *scores.types] if len(scores.types) > 1 else list(scores.types)
    for text in texts:
        if "all" in text.split(",") and text != "all":
            raise ValueError(f"--types {text!r}: all stands alone, as in --types all enc-self")
    groups = {text: scores.types if text == "all" else parse_types(text) for text in texts}
    for text, types in groups.items():
        if not types:
            raise ValueError(f"--types {text!r} names no attention type: choose from all, {', '.join(scores.types)}")
        for kind in types:
            if kind not in scores.values:
                raise ValueError(f"there are no scores of {kind}: they are of {', '.join(scores.types)}")
    return groups


def tsv(points: Sequence[Mapping[str, Any]]) -> str:
    """Points as lines of values between tabs, under a line of names."""
    names = [name for name in points[0] if name not in ("mask", "signature")]
    lines = [[("" if point[name] is None else str(point[name])) for name in names] for point in points]
    return "".join("\t".join(line) + "\n" for line in [names, *lines])


# --- correlate -------------------------------------------------------------------------------------------------------


def run_correlate(args: argparse.Namespace) -> int:
    tables = _tables(args)
    types = parse_types(args.types)
    if args.types is not None and not types:
        raise ValueError(f"--types {args.types!r} names no attention type: leave it out to compare all")
    pairs = []
    for (first, a), (second, b) in itertools.combinations(tables.items(), 2):
        _check_mixed(first, a, second, b, args.any)
        common = types or tuple(kind for kind in a.types if kind in b.values)
        for group in [common, *([(kind,) for kind in common] if args.each_type else [])]:
            found = agreement(HeadTable(a.values, first), HeadTable(b.values, second), group, args.top)
            pairs.append({"a": first, "b": second, "types": ",".join(group), **asdict(found)})
    if args.json:
        say(json.dumps([_without_nan(pair) for pair in pairs]))
        return 0
    text = report.agreement_table(pairs)
    if len(tables) > 2 and not args.each_type:
        matrix = report.matrix("Spearman", list(tables), {(p["a"], p["b"]): p["spearman"] for p in pairs})
        text = f"{matrix}\n\n{text}"
    say(text)
    return 0


def _tables(args: argparse.Namespace) -> dict[str, HeadTable]:
    """The scores to compare, each under a name that says how it differs: its method, its file, or both."""
    wanted = None if args.method is None else [name.strip() for name in args.method.split(",")]
    if len({Path(path).resolve() for path in args.files}) < len(args.files):
        raise ValueError(f"a file is given twice among {', '.join(args.files)}: name each once")
    found = [(path, table) for path in args.files for table in read_scores(path)]
    chosen = [(path, table) for path, table in found if wanted is None or table.name in wanted]
    for name in wanted or []:
        if all(table.name != name for _, table in found):
            raise ValueError(
                f"no file has scores of {name!r}: they hold {', '.join(sorted({t.name for _, t in found}))}"
            )
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} scores are given, two are needed: name more files or methods")
    methods, files = {table.name for _, table in chosen}, {path for path, _ in chosen}
    named = {}
    for path, table in chosen:
        name = table.name if len(files) == 1 else path if len(methods) == 1 else f"{path}:{table.name}"
        if name in named:
            raise ValueError(f"{name} is given twice: name each file and method once")
        named[name] = table
    return named


def _check_mixed(first: str, a: HeadTable, second: str, b: HeadTable, anything: bool) -> None:
    """Raises ValueError for scores that differ in method and in model or data, of whose agreement nothing follows."""
    origins = [_origin(table) for table in (a, b)]
    differ = [key for key in origins[0].keys() & origins[1].keys() if origins[0][key] != origins[1][key]]
    if anything or a.name == b.name or not differ:
        return
    told = ", ".join(f"{key} {origins[0][key]} and {origins[1][key]}" for key in sorted(differ))
    raise ValueError(
        f"{first} and {second} differ in method ({a.name}, {b.name}) and in more ({told}): compare scores of one "
        "method, or of one model and the same data, or pass --any"
    )


def _origin(table: HeadTable) -> dict[str, str]:
    """What a signature says of the model and, where the scores depend on them, the data."""
    parts = dict(part.split(":", 1) for part in table.signature.split("|") if ":" in part)
    data = () if table.name in importance.WITHOUT_DATA else ("data", "langs", "split", "sents")
    return {key: parts[key] for key in ("ckpt", "updates", *data) if key in parts}


def _without_nan(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in pair.items()}
