"""Print the gates of a checkpoint, or write its open heads as a mask."""

from fairseq_headgates.cli.commands.show import ShowOptions
from fairseq_headgates.cli.output import say
from fairseq_headgates.drawing.tables import gate_tables, open_counts, text_of
from fairseq_headgates.files import to_json, write_whole
from fairseq_headgates.heads import mask_to_json
from fairseq_headgates.plugin.models.building import CheckpointHeads, load_model, read_heads, warn_unfinished


def run(options: ShowOptions) -> None:
    """Run `headgates show`."""
    if options.json and options.out == "-":
        raise ValueError("--json and --out - both go to standard output: choose one, or give --out a file")
    state, model = load_model(options.checkpoint, options.trust, options.arch)
    warn_unfinished(state, model)
    heads = read_heads(state, options.checkpoint, model)
    alive = heads.gate.map(lambda g: int(g > 0), "alive")
    if options.out == "-":
        say(mask_to_json(alive).rstrip("\n"))
        return
    if options.out is not None:
        write_whole(options.out, mask_to_json(alive), options.force)
    content = {
        "signature": heads.gate.signature,
        "parameters": heads.parameters,
        "gated": heads.gated,
        "ffn_dims": heads.ffn_dims,
        "open_probability": heads.open_probability.layers,
        "gate": heads.gate.layers,
        "heads": open_counts(heads.gate),  # [open, all]
    }
    say(to_json(content) if options.json else as_text(heads))


def as_text(heads: CheckpointHeads) -> str:
    """Return what `headgates show` prints."""
    open_heads, all_heads = open_counts(heads.gate)["total"]
    ungated = [attention_type for attention_type in heads.gate.types if attention_type not in heads.gated]
    summary = f"in total {open_heads} of {all_heads} heads open"
    if ungated:
        summary += f"; no gates on {', '.join(ungated)}"
    for side, dims in heads.ffn_dims.items():
        summary += f"\nneurons of the {side}, by layer: {' '.join(map(str, dims))}"
    return f"{text_of(*gate_tables(heads.open_probability, heads.gate))}\n\n{summary}"
