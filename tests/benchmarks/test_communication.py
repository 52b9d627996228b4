"""Bytes that workers exchange (benchmarks/communication.py): gates add their gradients, and statistics of the loss."""

import json

import communication
import pytest
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from support.models import make_args

STATISTICS = ["gate_certainty", "heads_open", "heads_open_dec_enc", "heads_open_dec_self", "heads_open_enc_self", "l0"]
LAYERS, HEADS = 2, 4
GATES = 3 * LAYERS * HEADS
# Gradients of other parameters than gates: two multipliers for a target.
OTHER = {"l0": 0, "lagrangian": 4 * 2, "subset": 0}


def parameters():
    """The parameters of the stock model, built here."""
    args = make_args(encoder_ffn_embed_dim=128, decoder_ffn_embed_dim=128, encoder_normalize_before=False)
    args.decoder_normalize_before, args.src_len, args.tgt_len, args.dict_size, args.seed = False, 8, 8, 100, 1
    model = TransformerModel.build_model(args, TASK_REGISTRY["dummy_mt"].setup_task(args))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("backend", "models"),
    [
        ("legacy_ddp", ["lagrangian"]),
        pytest.param("pytorch_ddp", ["no gates", *OTHER], marks=pytest.mark.rehearsal),
    ],
)
def test_extra_bytes_are_gradients_of_gates_and_statistics(backend, models, tmp_path, monkeypatch, capsys):
    out = tmp_path / "bytes.json"
    options = ["--layers", LAYERS, "--heads", HEADS, "--ddp-backend", backend, "--workers", 2, "--updates", 2]
    monkeypatch.setattr("sys.argv", ["communication.py", *map(str, options), "--json", str(out), "--models", *models])
    communication.main()
    printed = capsys.readouterr().out
    found = json.loads(out.read_text())["models"]
    assert list(found) == ["stock", *models]
    assert found["stock"]["all"] == 4 * parameters() + 8 * 8  # five statistics of the loss, size, OOMs and time
    assert found.get("no gates", found["stock"]) == found["stock"]
    for name in (name for name in models if name in OTHER):
        gradients, statistics = (found[name]["names"][key] for key in ("gradients", "statistics"))
        of_gates = [count for key, count in gradients.items() if key.endswith("_attn.gate.theta")]
        assert of_gates == [4 * HEADS] * 3 * LAYERS
        assert sum(gradients.values()) == 4 * GATES + OTHER[name]
        assert statistics == {f"logging_outputs_{key}": 8 for key in STATISTICS}
        assert found[name]["extra"] == 4 * GATES + OTHER[name] + 8 * len(STATISTICS)
        row = [found[name]["all"], found[name]["extra"], 4 * GATES, 4 * GATES, OTHER[name], 8 * len(STATISTICS), 0]
        line = next(line for line in printed.splitlines() if line.startswith(f"{name}  "))
        assert line.removeprefix(name).split() == [f"{number:,}" for number in row]
