"""Make checkpoints with the installed fairseq, for tests that load them with another one.

    cd tests && python -m support.travelling data/fairseq-0.12.2

writes to this folder: `stock.pt`, trained by fairseq alone; `gated.pt`, trained from it, with the optimiser and a
moving average of the weights, and then gates that are closed, open and between; `pruned.pt`, made of it by `headgates
prune`; `expected.json`, the version of torch and the logits of each.
"""

import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fairseq_headgates.checkpoints.building import load_model
from support.checkpoints import LOG_ALPHA, read, with_gates
from support.commands import run_program

NAMES = ("stock", "gated", "pruned")
LETTERS = "a b c d e f g h"
SIZES = {"layers": 2, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 4}
TRAINING = "--optimizer adam --lr 0.01 --max-tokens 60 --seed 1 --store-ema --cpu --num-workers 0 --save-interval 100"
GATES = "--arch transformer_head_gates --gate-heads enc-self,dec-self,dec-enc"
GATES += " --criterion label_smoothed_cross_entropy_l0 --l0-weight 0.05"
# Of the dictionary with the letters: 4 special symbols, then those. Padding (1) on the left of the second source.
BATCH = {
    "src_tokens": torch.tensor([[4, 5, 6, 7, 8, 2], [1, 1, 9, 10, 11, 2]]),
    "src_lengths": torch.tensor([6, 4]),
    "prev_output_tokens": torch.tensor([[2, 8, 7, 6, 5], [2, 11, 10, 1, 1]]),
}


def make(target: Path) -> None:
    with TemporaryDirectory() as name:
        work = Path(name)
        run = partial(run_program, work)
        sentences = [LETTERS.split()[i % 7 :] for i in range(24)]
        for side, step in (("src", 1), ("tgt", -1)):
            (work / f"text.{side}").write_text("".join(" ".join(words[::step]) + "\n" for words in sentences))
        text = [f"--{split}pref={work}/text" for split in ("train", "valid")]
        run("fairseq-preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary", "--destdir", work / "bin", *text)
        sizes = [f"--{side}-{key}={value}" for side in ("encoder", "decoder") for key, value in SIZES.items()]
        common = [work / "bin", *TRAINING.split(), *sizes, "--max-update"]
        run("fairseq-train", *common, 4, "--arch", "transformer", "--save-dir", work / "stock")
        stock = work / "stock" / "checkpoint_last.pt"
        state = read(stock)
        del state["extra_state"]["ema"]
        torch.save(state, target / "stock.pt")
        plugin = ["--user-dir", run("headgates", "path").out.strip(), "--finetune-from-model", stock]
        run("fairseq-train", *common, 6, *plugin, *GATES.split(), "--save-dir", work / "gated")
        gated = with_gates(read(work / "gated" / "checkpoint_last.pt"), LOG_ALPHA)
        torch.save(with_gates(gated, LOG_ALPHA, of="ema"), target / "gated.pt")
        run("headgates", "prune", target / "gated.pt", target / "pruned.pt")
    with torch.no_grad():
        logits = {name: load_model(str(target / f"{name}.pt"))[1](**BATCH)[0].tolist() for name in NAMES}
    (target / "expected.json").write_text(
        json.dumps({"torch": torch.__version__.partition("+")[0], "logits": logits}) + "\n"
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(exist_ok=True)
    make(folder)
