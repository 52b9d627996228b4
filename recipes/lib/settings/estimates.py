"""What a recipe of full size needs: disk space, updates, tokens of an update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from settings.runs import trains

if TYPE_CHECKING:
    from settings.classification import Mnli
    from settings.general import Training
    from settings.language_model import WikiText103
    from settings.translation import Iwslt14DeEn, Published, Translation

ADAM = 12  # bytes for each parameter: a weight and two moments
RUN = "no run at this size has been made"
HOURS = "; benchmarks/full_size.sh measures a machine and estimates the hours"


def voita(s: Published) -> str:
    """Disk space in GB: the text, the checkpoints of a training, two of each model, and two controls."""
    size = (2 + int(s.UNTIED)) * s.BPE * s.EMBED + _layers(s)
    return _space(s.TEXT_GB, size * (ADAM * (s.AVERAGE + 3) + 40 * (len(s.RUNS) + 1)) * len(s.SEEDS))


def iwslt(s: Iwslt14DeEn) -> str:
    """Disk space in GB: the text, and a checkpoint of every epoch."""
    return _space(2, s.MEASURED[-1] * ADAM * ((1 + 2 * int(s.UNTIED)) * s.BPE * s.EMBED + _layers(s)))


def wikitext(s: WikiText103) -> str:
    """Disk space in GB: the text; of each model three checkpoints, with 40 rows of EMBED for every thousand words."""
    size = s.LAYERS * s.EMBED * (5 * s.EMBED + 2 * (s.PERSISTENT_VECTORS or s.EMBED)) + 40_000 * s.EMBED
    return _space(3, size * ADAM * 3 * (len(s.RUNS) + 2) * len(s.SEEDS))


def mnli(s: Mnli) -> str:
    """Disk space in GB: the text, the pre-trained model, and of each model two checkpoints."""
    size = 51_000 * s.EMBED + s.LAYERS * s.EMBED * (4 * s.EMBED + 2 * s.FFN)
    return _space(3, size * (4 + 2 * ADAM * (len(s.RUNS) + 2)) * len(s.SEEDS))


def _layers(s: Translation) -> int:
    """Return the number of parameters of all layers."""
    encoder, decoder = s.LAYERS * (4 * s.EMBED + 2 * s.FFN), s.DECODER_LAYERS * (8 * s.EMBED + 2 * s.FFN)
    return s.EMBED * (encoder + decoder)


def _space(text: int, models: int) -> str:
    return str(text + models // 1_000_000_000 + 1)


def work(s: Training, unit: str, timed: bool) -> list[str]:
    """Return the lines that a dry run prints first: tokens or sentences of an update, and all updates."""
    sizes = (getattr(s, name, None) for name in ("TOKENS_PER_UPDATE", "BATCH", "MAX_TOKENS"))
    update = next(size for size in sizes if size)
    first = f"{s.UPDATES:,} updates" if s.UPDATES else f"{getattr(s, 'EPOCHS', 0):,} epochs"
    methods = [line.split()[1] for line in s.plan()]
    trained = sum(map(trains, methods))
    further = f", then {trained} trainings of {s.PRUNE_UPDATES:,}" if trained else ""
    if scratch := methods.count("scratch"):
        further += f", {scratch} of them after {first} of their own"
    seeds = f", for each of {len(s.SEEDS)} seeds" if len(s.SEEDS) > 1 else ""
    return [f"an update: {update:,} {unit}; baseline: {first}{further}{seeds}", RUN + (HOURS if timed else "")]
