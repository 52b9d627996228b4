"""Two published checkpoints, whose architecture and criterion are their authors' own (benchmarks/antibodies.sh)."""

import json
import subprocess

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.roberta import RobertaModel
from support.models import make_task
from support.recipes import ROOT, environment

from fairseq_headgates.checkpoints import build_model, load_checkpoint, save_checkpoint
from fairseq_headgates.checkpoints.pruned import stock_checkpoint
from fairseq_headgates.plugin.models.building import Vocabulary

MASK = {"enc-self": [[1, 0, 1, 0, 1, 1, 1, 1]] * 4}
SYMBOLS = 25


@pytest.mark.release
def test_they_are_fairseqs_roberta_and_lose_heads(tmp_path):
    done = subprocess.run(["benchmarks/antibodies.sh", tmp_path], cwd=ROOT, env=environment({}), check=False)
    assert done.returncode == 0
    task = make_task()
    task.source_dictionary = Vocabulary(SYMBOLS)
    for chain in ("heavy", "light"):
        state = load_checkpoint(str(tmp_path / f"sapiens/models/v1/checkpoint_v{chain[0]}.pt"))
        stock = RobertaModel.build_model(state["args"], task).eval()
        weights = {name.replace("decoder.", "encoder.", 1): weight for name, weight in state["model"].items()}
        stock.upgrade_state_dict(weights)
        stock.load_state_dict(weights)
        tokens = torch.randint(4, SYMBOLS, (3, 100), generator=torch.Generator().manual_seed(0))
        assert torch.equal(stock(tokens)[0], build_model(state)(tokens)[0])
        save_checkpoint(stock_checkpoint(state, MASK), str(tmp_path / f"{chain}-stock.pt"))
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / f"{chain}-stock.pt"))  # fairseq knows all names

        rows = json.loads((tmp_path / f"{chain}-losses.json").read_text())
        assert [row["heads"]["total"][0] for row in rows[:7]] == [32, 24, 24, 16, 16, 8, 8]
        whole, *smaller = [row["losses"]["test"]["mean"] for row in rows]
        assert whole == pytest.approx({"heavy": 1.34, "light": 0.93}[chain], abs=0.02)
        assert smaller[3] < whole + 0.05  # half of the heads, refitted
