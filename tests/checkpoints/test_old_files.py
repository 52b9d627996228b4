"""Files that fairseq-headgates 0.1.0 wrote before its modules were rearranged (commit e5e470d) are still read.

`data/v0.1/gated.pt` is a gated model after six updates with its optimiser and moving average, whose gates were then set
by hand; that version made all other files from it: `headgates prune` (with and without --stock), show, score, ablate,
curve. `expected.json` holds the logits, gates and numbers of parameters that it computed.
"""

import json
from pathlib import Path

import pytest
import torch

from fairseq_headgates import gate_values
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.cli.main import main
from fairseq_headgates.extensions.report.inputs import read_results
from fairseq_headgates.heads import parse_mask, read_scores
from fairseq_headgates.plugin.models.building import load_model, read_heads, read_mask

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
BATCH = {
    "src_tokens": torch.tensor([[4, 5, 6, 7, 8, 2], [1, 1, 9, 10, 11, 2]]),
    "src_lengths": torch.tensor([6, 4]),
    "prev_output_tokens": torch.tensor([[2, 12, 13, 14, 15], [2, 16, 17, 1, 1]]),
}


@pytest.mark.parametrize("name", ["gated", "pruned", "stock"])
def test_old_checkpoints_compute_the_same(name):
    state, model = load_model(str(OLD / f"{name}.pt"))
    with torch.no_grad():
        torch.testing.assert_close(model(**BATCH)[0], torch.tensor(EXPECTED[name]["logits"]), atol=1e-6, rtol=0)
    gates = {attention_type: values.tolist() for attention_type, values in gate_values(model).items()}
    assert gates == EXPECTED[name]["gates"]
    assert read_heads(state, name, model).parameters == EXPECTED[name]["parameters"]


def test_pruning_gives_the_same_checkpoint():
    """Optimiser and moving average included."""
    pruned = prune_checkpoint(load_checkpoint(str(OLD / "gated.pt")), str(OLD / "mask.json"))
    old = load_checkpoint(str(OLD / "pruned.pt"))
    assert pruned["model"].keys() == old["model"].keys()
    for name, tensor in old["model"].items():
        assert torch.equal(pruned["model"][name], tensor), name
    for name, tensor in old["extra_state"]["ema"].items():
        assert torch.equal(pruned["extra_state"]["ema"][name], tensor), name
    for number, entry in old["last_optimizer_state"]["state"].items():
        assert torch.equal(pruned["last_optimizer_state"]["state"][number]["exp_avg"], entry["exp_avg"])


def test_old_masks_are_read_the_same():
    mask = parse_mask(str(OLD / "mask.json"))
    assert read_mask(str(OLD / "gated.pt")).layers == read_mask(str(OLD / "pruned.pt")).layers == mask.layers
    assert [mask.count(attention_type)[0] for attention_type in mask.types] == [3, 4, 7]


def test_old_scores_are_read_by_prune_and_correlate(capsys, tmp_path):
    scores = {table.name: table for table in read_scores(str(OLD / "scores.json"))}
    assert list(scores) == ["confidence", "gradient", "relevance", "ablation", "magnitude", "gate", "random"]
    assert main(["correlate", str(OLD / "scores.json"), "--method", "gradient,ablation", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)
    assert pair["heads"] == 24
    command = ["prune", "--path", OLD / "gated.pt", "--out", tmp_path / "pruned.pt"]
    command += ["--scores", OLD / "scores.json", "--method"]
    assert main([*map(str, command), "gradient", "--keep", "7", "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert sum(after for _, after in heads.values()) == 7


def test_old_curves_and_ablations_are_read():
    (_, curve), (_, ablation) = read_results([str(OLD / "curve.json"), str(OLD / "ablation.json")])
    table = curve.tables[0]
    assert (table.title, table.header) == ("all by gradient (out/gated.pt)", ["removed", "heads", "bits/token"])
    assert "4.8257" in [row[2] for row in table.rows]
    increase = json.loads((OLD / "ablation.json").read_text())["nll_difference"]["enc-self"][0][0]
    assert ablation.tables[0].rows[0][:2] == ["layer 0", f"{increase:.4f}"]


def test_the_report_shows_the_gates_of_an_old_checkpoint():
    """Against the gates that version 0.1.0 computed."""
    _, (_, gates) = read_results([str(OLD / "gated.pt")])
    open_heads = sum(int(row[-1]) for table in gates.tables for row in table.rows)
    assert gates.title == "Gates of gated"
    assert open_heads == sum(g > 0 for rows in EXPECTED["gated"]["gates"].values() for row in rows for g in row)
