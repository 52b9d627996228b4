"""Remove heads and feed-forward neurons so that a model has a given size or speed, and repair it."""

import itertools

from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.cli.commands.compress import CompressOptions
from fairseq_headgates.cli.output import then_evaluate
from fairseq_headgates.cli.session import open_session
from fairseq_headgates.compression import drawing
from fairseq_headgates.compression.model import Compressor, OutOfReach
from fairseq_headgates.drawing.tables import with_interval
from fairseq_headgates.files import to_json
from fairseq_headgates.inference.packed_linear import TOO_SMALL, too_small_for_int8
from fairseq_headgates.plugin.models.building import warn_unfinished

WITHIN = 0.05  # of the speed that is asked for, relative


def run(options: CompressOptions) -> str | None:
    """Run `headgates compress`, and return the command that comes next."""
    name, budgets = ("params", options.params) if options.params else ("speedup", options.speedup)
    if options.out and len(budgets) > 1:
        raise ValueError(f"--out is for one compressed model, --{name} names {len(budgets)}: name one")
    with open_session(options) as session:
        timed = bool(options.speed or options.speedup)
        if timed and session.fairseq.distributed_world_size > 1:
            raise ValueError("speed is measured by one worker: start one, or leave out --speed and --speedup")
        state, model, origin = session.checkpoint(session.only_path())
        warn_unfinished(state, model)
        fit, measured = session.corpus(model, options.fit_subset, options.fit_sentences), session.corpus(model)
        if timed:
            session.inference_dtype(model)
        signature = session.signature(measured).with_parts({"fit": f"{fit.subset}-{fit.sentences}", **origin})
        if options.metric and options.metric not in session.objective.metrics:
            raise ValueError(f"--metric is {options.metric}, which this --task does not have: leave it out")
        metric = session.metric(options.metric, model, measured) if options.metric else None
        compressor = Compressor(model, fit, measured, options.units, session.progress, timed, metric)
        for size in options.params:  # before the costs, which take minutes
            compressor.kept(size)
        results = []
        alone = [(kind,) for kind in options.units] if options.plot and len(options.units) > 1 else []
        for kinds, budget in itertools.product([options.units, *alone], budgets):
            try:
                results.append(compressor.compress(**{name: budget}, kinds=kinds))
            except OutOfReach:  # one kind of units alone may not be enough
                if kinds == options.units:
                    raise
        if options.out and session.writes:
            smaller = prune_checkpoint(
                state,
                results[0].plan.mask,
                optimizer=False,
                model=model.cpu(),
                inference_dtype=options.inference_dtype,
                refitted={name: value.cpu() for name, value in results[0].values.items()},
                neurons=results[0].plan.neurons,
            )
            loaded = check_loads(smaller)
            if options.inference_dtype == "int8" and too_small_for_int8(loaded):
                session.warn_once(TOO_SMALL)
            save_checkpoint(smaller, options.out, options.force)
        content = [{**result.results, "signature": str(signature)} for result in results]
        session.plot(options.plot, lambda: drawing.plot(content))
        session.say(to_json(content) if options.json else f"{drawing.text(content)}\n\n{signature}")
        missed = [
            f"{with_interval(found['speedup'], found['speedup_interval'], '.2f')} instead of {speed:g}"
            for speed, found in zip(options.speedup, content, strict=False)  # those of one kind of units come last
            if speed > 1 and abs(found["speedup"] / speed - 1) > WITHIN
        ]
        if missed:
            raise ValueError(
                f"--speedup is missed by more than {WITHIN:.0%}, {' and '.join(missed)}: repeat the command when the "
                "machine is less busy, or ask for another speed"
            )
        written = options.out and session.writes
        return then_evaluate(options.rest, f"{session.only_path()}:{options.out}") if written else None
