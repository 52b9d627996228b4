"""Average the last checkpoints of a training run (Vaswani et al. 2017, section 6.1).

    python3 recipes/scripts/average.py RUN_DIR OUTPUT --last N

takes the N checkpoints of RUN_DIR with the most updates, or all if there are fewer: `checkpoint_last.pt` and those of
--save-interval-updates, `checkpoint_EPOCH_UPDATES.pt` (fairseq writes none where an epoch ends). Gates are averaged
like all other parameters. OUTPUT has no optimizer state.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch import Tensor

from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.safety.checkpoint import updates_of
from script_errors import errors_in_one_line


def last_checkpoints(folder: Path, number: int) -> list[Path]:
    """Return the checkpoints with the most updates, oldest first."""
    last = folder / "checkpoint_last.pt"
    found = {}
    for path in folder.glob("checkpoint_*_*.pt"):
        if match := re.fullmatch(r"checkpoint_\d+_(\d+)\.pt", path.name):
            found[int(match[1])] = path
    found.setdefault(int(updates_of(load_checkpoint(str(last)))), last)
    return [found[updates] for updates in sorted(found)[-number:]]


def average(paths: list[Path]) -> dict:
    """Return the last state with the mean of all models, summed in double precision."""
    sums: dict[str, Tensor] = {}
    for path in paths:
        state = load_checkpoint(str(path))
        model = state["model"]
        for name, tensor in model.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
            else:
                sums[name] = tensor
    state["model"] = {
        name: (total / len(paths)).to(model[name].dtype) if total.is_floating_point() else total
        for name, total in sums.items()
    }
    state["last_optimizer_state"] = None
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("output", metavar="OUTPUT")
    parser.add_argument("--last", type=int, required=True, metavar="N")
    args = parser.parse_args()
    torch.set_num_threads(1)
    paths = last_checkpoints(args.run, args.last)
    save_checkpoint(average(paths), args.output, force=True)
    fewer = f" (--last {args.last}, but there are {len(paths)})" if len(paths) < args.last else ""
    print(f"average of {', '.join(path.name for path in paths)}{fewer}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
