"""The options that every criterion with the L0 penalty has."""

# Without `from __future__ import annotations`: fairseq reads the types of the options.
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II

from fairseq_headgates.gates import L0_REDUCTIONS

HELP = {
    "l0_weight": "lambda, the weight of the L0 penalty: lambda times the expected number of open heads is added to the "
    "loss per target token, in nats (per sentence with --sentence-avg). One number, or numbers by attention type "
    "(enc-self=0.05,dec-enc=0.2, 0 for the others); the page on training has values by setting. Not "
    "with --target-heads (default: 0, no penalty)",
    "l0_warmup_updates": "updates in which lambda rises linearly from 0 to --l0-weight (default: 0)",
    "l0_start_update": "first update with the penalty, counted from 0; the warm-up of lambda begins there (default: 0)",
    "l0_reduction": "sum: over all gated heads, as in Voita et al. 2019; layer-mean: that sum divided by the "
    "number of gated attention layers, as in their code (default: sum)",
}


@dataclass
class L0Config(FairseqDataclass):
    """Lambda, its schedule, and the reduction of the penalty."""

    l0_weight: str = field(default="0.0", metadata={"help": HELP["l0_weight"]})
    l0_reduction: ChoiceEnum(L0_REDUCTIONS) = field(  # type: ignore[valid-type]
        default="sum", metadata={"help": HELP["l0_reduction"]}
    )
    l0_warmup_updates: int = field(default=0, metadata={"help": HELP["l0_warmup_updates"]})
    l0_start_update: int = field(default=0, metadata={"help": HELP["l0_start_update"]})
    # fairseq knows only this spelling of the type
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")  # noqa: UP045
