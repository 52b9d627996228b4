"""`headgates show`: print the gates of a checkpoint, or write its open heads as a mask."""

from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import OPEN, Checkpoint, Output
from fairseq_headgates.drawing.tables import gate_tables, open_counts, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import mask_to_json

if TYPE_CHECKING:
    from fairseq_headgates.plugin.models.building import CheckpointHeads


@command(
    "show",
    "headgates show --path gated/checkpoint_last.pt",
    "headgates show --path gated/checkpoint_last.pt --out heads.json",
)
class Show(Checkpoint, Output):
    """Show the gates of a checkpoint."""

    usage = "%(prog)s --path CKPT [options]"
    epilog = OPEN

    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the open heads as a mask file, for --alive-heads of fairseq-train; -: print it instead of "
        "the table",
    )
    json: bool = option(default=False, help="print JSON instead of a table")

    def files_to_write(self) -> dict[str, str]:
        """Return the mask file, unless it is standard output."""
        return {} if self.out == "-" else super().files_to_write()

    def check(self) -> None:
        """Raise ValueError if two results go to standard output."""
        if self.json and self.out == "-":
            raise ValueError("--json and --out - both go to standard output: choose one, or give --out a file")

    def run(self, session: Any) -> Answer:
        """Read the gates."""
        from fairseq_headgates.plugin.models.building import load_model, read_heads, warn_unfinished

        state, model = load_model(self.path, self.trust, self.arch)
        warn_unfinished(state, model)
        heads = read_heads(state, self.path, model)
        mask = mask_to_json(heads.gate.map(lambda gate: int(gate > 0), "alive"))
        if self.out == "-":
            return Answer(text=mask.rstrip("\n"))
        content = {
            "signature": heads.gate.signature,
            "parameters": heads.parameters,
            "gated": heads.gated,
            "ffn_dims": heads.ffn_dims,
            "open_probability": heads.open_probability.layers,
            "gate": heads.gate.layers,
            "heads": open_counts(heads.gate),  # [open, all]
        }
        return Answer(text=as_text(heads), json=to_json(content), files={"out": mask})


def as_text(heads: "CheckpointHeads") -> str:
    """Return what `headgates show` prints."""
    open_heads, all_heads = open_counts(heads.gate)["total"]
    ungated = [attention_type for attention_type in heads.gate.types if attention_type not in heads.gated]
    summary = f"in total {open_heads} of {all_heads} heads open"
    if ungated:
        summary += f"; no gates on {', '.join(ungated)}"
    for side, dims in heads.ffn_dims.items():
        summary += f"\nneurons of the {side}, by layer: {' '.join(map(str, dims))}"
    return f"{text_of(*gate_tables(heads.open_probability, heads.gate))}\n\n{summary}"
