"""The models of a recipe and the options of the commands that make them, from its configuration.

The Snakefiles import this module. It needs neither fairseq nor this package: Snakemake may be installed apart.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from typing import Any

Options = Mapping[str, Any]
KINDS = ("gates", "scores", "params", "speedup", "scratch")
BASELINE, CONTROL, FROZEN = "baseline", "baseline+", "baseline+frozen"
# The controls of runs by the data that they are trained on.
CONTROL_OF = {"original": CONTROL, "distilled": "baseline+distilled", "both": "baseline+both"}
# Options of every training, which a configuration may replace.
LOGGED = {"no-epoch-checkpoints": True, "log-format": "simple", "log-interval": 50}
# Keys of a run whose value may be a list: one run for each value.
SWEPT = ("gates", "lambda", "target", "method", "scores", "keep", "types", "params", "speedup", "scratch", "data")


def check(config: dict[str, Any], family: str) -> None:
    """Check a configuration by the schema, and fill in defaults. A wrong one ends the recipe with one line.

    On the command line Snakemake leaves values inside of others, as in --config 'baseline={lr: 0.1}', as texts.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake.utils import validate

    config.update({key: parsed(value) for key, value in config.items() if isinstance(value, dict)})
    try:
        validate({family: config}, str(Path(__file__).with_name("config.schema.yaml")))
    except WorkflowError as error:
        problem: Any = error.__context__
        place = ".".join(map(str, list(problem.absolute_path)[1:]))
        raise SystemExit(f"configuration{', ' if place else ''}{place}: {what_is_wrong(problem)}") from None


def what_is_wrong(problem: Any) -> str:
    """Return the message of an error of the schema; where it allows alternatives, why each of them does not fit."""
    messages = list(dict.fromkeys(map(what_is_wrong, problem.context)))
    return messages[0] if len(messages) == 1 else "mend one of: " + "; ".join(messages) if messages else problem.message


def parsed(value: Any) -> Any:
    """Return a value with numbers and true or false in place of their texts."""
    if isinstance(value, dict):
        return {key: parsed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [parsed(each) for each in value]
    for parse in ({"true": True, "false": False}.__getitem__, int, float):
        try:
            return parse(value) if isinstance(value, str) else value
        except (KeyError, ValueError):
            pass
    return value


def command_line(*groups: Options) -> str:
    """Return the options of a command: {"max-update": 10, "cpu": True} is `--max-update 10 --cpu`.

    Values of later groups replace those of earlier ones; null and false leave an option out.
    """
    merged = {name: value for group in groups for name, value in group.items()}
    words = (
        f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
        for name, value in merged.items()
        if value is not None and value is not False
    )
    return " ".join(words)


def whole_length(options: Options) -> dict[str, Any]:
    """Return options of a training; with the schedule polynomial_decay the learning rate is 0 at max-update."""
    falls = options.get("lr-scheduler") == "polynomial_decay"
    return ({"total-num-update": options.get("max-update")} if falls else {}) | dict(options)


@dataclass(frozen=True)
class Family:
    """What differs between translation, language models and classifiers.

    Attributes:
        arch, gated_arch: architectures without and with gates
        criterion: the criterion of training; with gates its name ends in _l0
        task: options of the task, also for the commands of headgates
        heads: the heads of the model, {attention type: number}
        start: the checkpoint that the baseline is trained from, in the folder of the seed; None: random weights
    """

    arch: str
    gated_arch: str
    criterion: str
    task: Options
    heads: Mapping[str, int]
    start: str | None = None

    def types(self, names: str) -> str:
        """Return attention types separated by commas; "all" are those of the model."""
        return ",".join(self.heads) if names == "all" else names


@dataclass(frozen=True)
class Model:
    """A model of the table: the baseline, a control, or what a run makes of the baseline.

    Attributes:
        name: the name of its folder
        control: the name of the model that it is compared with
        run: its entry in `runs`; of the baseline and its controls, the data alone
    """

    name: str
    control: str | None = None
    run: Options = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """One of KINDS, or "" for the baseline and its controls."""
        return next((kind for kind in KINDS if kind in self.run), "")

    @property
    def data(self) -> str:
        """The text that it is trained on: "original", "distilled" (translations by the baseline) or "both"."""
        return str(self.run.get("data", "original"))

    @property
    def is_trained(self) -> bool:
        return bool(self.run.get("train", True))

    @property
    def checkpoint(self) -> str:
        """Path of the model that is evaluated, in the folder of the seed."""
        if not self.is_trained:
            return self.start
        return f"{self.name}/{'trained' if self.kind in ('', 'scratch') else 'pruned'}.pt"

    @property
    def start(self) -> str:
        """Path of the model after the removal, from which a further training starts.

        Runs that compress the baseline to one size share it.
        """
        if self.kind in ("params", "speedup"):
            return f"compressed/{self.kind}_{self.run[self.kind]}.pt"
        return f"{self.name}/{'start' if self.is_trained else 'pruned'}.pt"

    @property
    def steps(self) -> list[str]:
        """Folders of the steps of removal; the last one is that of the model."""
        steps = self.run.get("steps", 1)
        return [f"{self.name}/step{step}" for step in range(1, steps)] + [self.name]


def sweep(name: str, run: Options) -> Iterator[tuple[str, Options]]:
    """Yield the runs of an entry: one, or with lists as values one for each combination of them."""
    swept = [key for key in SWEPT if isinstance(run.get(key), list)]
    for values in product(*(run[key] for key in swept)):
        yield "_".join([name, *map(str, values)]), {**run, **dict(zip(swept, values, strict=True))}


def models(config: Options, family: Family) -> dict[str, Model]:
    """Return the baseline, the controls that are needed, and the runs. A run that makes no sense ends the recipe."""

    def refuse(name: str, why: str) -> None:
        raise SystemExit(f"configuration, runs.{name}: {why}")

    found = []
    for entry, swept in config["runs"].items():
        for name, run in sweep(entry, swept):
            kinds = [kind for kind in KINDS if kind in run]
            if len(kinds) != 1:
                refuse(name, f"must have one of {', '.join(KINDS)}, has {' and '.join(kinds) or 'none'}")
            if kinds == ["gates"] and ("lambda" in run) == ("target" in run):
                refuse(name, "gates need either lambda or target")
            types = family.types(run.get("gates", run.get("types", "all"))).split(",")
            if other := [each for each in types if each not in family.heads]:
                refuse(name, f"this model has no {other[0]}, only {', '.join(family.heads)}")
            total = sum(family.heads[each] for each in types)
            for key in ("target", "keep"):
                if isinstance(run.get(key), int) and run[key] > total:
                    refuse(name, f"{key} must be at most {total}, the number of heads, or a fraction such as 0.5")
            if run.get("steps", 1) > config["further"]["max-update"]:
                refuse(name, "steps must be at most max-update of further")
            if "data" in run and not run.get("train", True):
                refuse(name, "data is the text of the training: leave out train: false, or data")
            data = run.get("data", "original")
            if data != "original" and family.task.get("task") != "translation":
                refuse(name, "only translation models have distilled data")
            alone = types == ["enc-self"] and len(family.heads) > 1 and run.get("train", True)
            if alone and data != "original":
                refuse(name, "runs of enc-self alone, whose decoder is frozen, need the original data")
            found.append(Model(name, FROZEN if alone else CONTROL_OF[data], run))
    runs = [model.name for model in found]
    for model in found:
        if [BASELINE, FROZEN, *CONTROL_OF.values(), *runs].count(model.name) > 1:
            refuse(model.name, "the name is taken")
        if model.kind == "scratch" and model.run["scratch"] not in runs:
            refuse(model.name, f"scratch must be one of {', '.join(runs)}")
    needed = {model.control for model in found}
    if needed - {FROZEN}:
        needed.add(CONTROL)  # the control of the other controls
    controls = [
        Model(name, None if name in (CONTROL, FROZEN) else CONTROL, {"data": data})
        for data, name in [*CONTROL_OF.items(), ("original", FROZEN)]
        if name in needed
    ]
    return {model.name: model for model in [Model(BASELINE), *controls, *found]}


@dataclass(frozen=True)
class Training:
    """A call of fairseq-train. Paths are in the folder of the seed.

    Attributes:
        options: its options, without the data and the paths below
        start: the checkpoint whose weights it starts from, or None
        heads: the checkpoint whose heads, and neurons, the model has, or None
        result: the checkpoint that counts: "last", "best", or a number, the average of so many last ones
        resumes: whether it continues the training of `start`, with its optimizer and position in the data
        data: the text that it is trained on, see Model.data
        subfolder: that of the folder of the data
    """

    options: str
    start: str | None = None
    heads: str | None = None
    result: str | int = "last"
    resumes: bool = False
    data: str = "original"
    subfolder: str = ""

    @property
    def files(self) -> list[str]:
        """The checkpoints that it reads, each once."""
        return list(dict.fromkeys(path for path in (self.start, self.heads) if path))


def trainings(config: Options, family: Family, models: Mapping[str, Model]) -> dict[str, Training]:
    """Return all trainings of a seed by the name of their folder."""
    result = config["result"]
    # Further trainings are compared: the best checkpoint would be a selection by noise.
    averaged = result if isinstance(result, int) else "last"

    def options(schedule: str, *own: Options) -> str:
        """Return the options of a training with a schedule of the configuration, baseline or further."""
        usual = [LOGGED, {"arch": family.arch}, family.task, config["model"], {"criterion": family.criterion}]
        return command_line(*usual, config["training"], whole_length(config[schedule]), *own)

    first = f"{BASELINE}/trained.pt"
    gated, shaped = {"arch": family.gated_arch}, {"arch": family.gated_arch, "remove-heads": True}
    found = {BASELINE: Training(options("baseline"), family.start, result=result)}
    for name, model in models.items():
        run, own = model.run, model.run.get("options", {})
        frozen = gated | {"freeze-params": r"^decoder\."} if FROZEN in (name, model.control) else {}
        if not model.kind and name != BASELINE:
            found[name] = Training(options("further", frozen), first, result=averaged)
        elif model.kind == "gates":
            penalty = {"l0-weight": run.get("lambda"), "target-heads": run.get("target")}
            if "target" in run:
                penalty["sparsity-method"] = run.get("method", "lagrangian")
            gates = {"criterion": f"{family.criterion}_l0", "gate-heads": family.types(run["gates"])} | penalty
            all_options = options("further", gated, gates, config["gates"], frozen, own)
            found[name] = Training(all_options, first, result=averaged)
        elif model.kind == "scratch":
            pruned = models[run["scratch"]].checkpoint
            found[f"{name}/first"] = Training(options("baseline", shaped, own), None, pruned, result)
            found[name] = Training(options("further", shaped, own), f"{name}/first/trained.pt", pruned, averaged)
        elif model.kind and model.is_trained:
            for number, step in enumerate(model.steps, 1):
                until = {"max-update": config["further"]["max-update"] * number // len(model.steps)}
                start, counts = (model.start, averaged) if step == name else (f"{step}/start.pt", "last")
                all_options = options("further", shaped, until, frozen, own)
                found[step] = Training(all_options, start, start, counts, resumes=number > 1)
    return {name: replace(each, data=models[name.partition("/")[0]].data) for name, each in found.items()}


def number_of_heads(keep: int | float, total: int) -> int:
    """Return a number of heads, or how many a fraction of all is: halves are rounded up, as by headgates prune."""
    return int((Decimal(str(keep)) * total).to_integral_value(ROUND_HALF_UP)) if isinstance(keep, float) else keep


@dataclass(frozen=True)
class Cut:
    """A call of headgates prune or compress. Paths are in the folder of the seed.

    Attributes:
        source: the checkpoint that is made smaller
        options: options of the command, without data and paths
        scores: the file of the scores by which heads are removed; None: compress
        refits: whether the model is refitted
    """

    source: str
    options: str
    scores: str | None = None
    refits: bool = False


def cuts(family: Family, models: Mapping[str, Model]) -> dict[str, Cut]:
    """Return the calls of headgates prune and compress of a seed by the path of the checkpoint that they write."""
    found = {}
    for model in models.values():
        run, source = model.run, f"{BASELINE}/trained.pt"
        if model.kind in ("params", "speedup"):
            found[model.start] = Cut(source, command_line({model.kind: run[model.kind]}))
        elif model.kind == "scores":
            types, keep = family.types(run.get("types", "all")), run["keep"]
            if len(model.steps) > 1:
                total = sum(family.heads[each] for each in types.split(","))
                keep = number_of_heads(keep, total)
            for number, step in enumerate(model.steps, 1):
                last = number == len(model.steps)
                kept = keep if last else total - (total - keep) * number // len(model.steps)
                scores = f"{source.rpartition('/')[0]}/scores.{run['scores']}.json"
                options = command_line({"types": types, "keep": kept, "no-optimizer": number == 1})
                path = model.start if last else f"{step}/start.pt"
                found[path] = Cut(source, options, scores, run.get("refit", False))
                source = f"{step}/trained.pt"
    return found
