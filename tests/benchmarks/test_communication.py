"""Bytes that workers exchange (benchmarks/communication.py): gates add their gradients, and statistics of the loss."""

import json
import subprocess
import sys
from pathlib import Path

import communication
import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from support.models import make_args

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "communication.py"
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
    ("backend", "workers", "models"),
    [
        ("legacy_ddp", 2, ["lagrangian"]),
        pytest.param("pytorch_ddp", 2, ["no gates", *OTHER], marks=pytest.mark.rehearsal),
        pytest.param("legacy_ddp", 8, ["no gates", *OTHER], marks=[pytest.mark.rehearsal, pytest.mark.release]),
    ],
)
def test_extra_bytes_are_gradients_of_gates_and_statistics(backend, workers, models, tmp_path, monkeypatch, capsys):
    out = tmp_path / "bytes.json"
    options = ["--layers", LAYERS, "--heads", HEADS, "--ddp-backend", backend, "--workers", workers, "--updates", 2]
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


def test_bytes_without_a_known_purpose_are_in_the_table():
    """A broadcast that nobody has named, before the first update and in two updates."""
    record = communication.Record()
    send = communication.counted(record, "broadcast", lambda tensors: tensors)
    send(torch.zeros(9))
    for size in (2, 5):
        with record.update():
            for purpose in ("gradients", "statistics"):
                with record.purpose(purpose, {"weight": 8}):
                    pass
            send([torch.zeros(size), torch.zeros(1, dtype=torch.double)])
    stock, other = record.updates
    rows = {"stock": communication.figures(stock, stock), "other": communication.figures(other, stock)}
    assert [line.split() for line in communication.sizes_table(rows, 3).splitlines()[2:]] == [
        ["stock", "16", "0", "0", "0", "0", "0", "0"],
        ["other", "28", "12", "0", "0", "0", "0", "12"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", 1], "--workers is 1: it must be at least 2"),
        (["--ddp-backend", "slowmo"], "argument --ddp-backend: invalid choice: 'slowmo' (choose from"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["communication.py", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        communication.main()
    out, error = capsys.readouterr()
    assert ended.value.code == 2 and not out
    assert error.startswith(f"communication.py: error: {message}") and error.count("\n") == 1


@pytest.mark.rehearsal
def test_a_failed_worker_is_reported_in_one_line():
    options = "['--arch', 'transformer', '--max-source-positions', '1']"
    code = f"import communication; communication.VARIANTS['stock'] = {options}; communication.main()"
    command = [sys.executable, "-c", code, "--workers", "2", "--models", "stock"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parent, check=False, timeout=300)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines()[-1].startswith("communication.py: stock: a worker failed: ")
