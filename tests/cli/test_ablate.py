"""`headgates ablate` as a user runs it, on toy models; stopped work is resumed."""

import json
import os
import re
import shutil

import pytest
from support.analysis import FULL, SEARCH, one_line
from support.commands import EVALUATION

from fairseq_headgates.data import metrics
from fairseq_headgates.scores import curves


def test_loss_is_the_one_that_fairseq_logs(on_toy, run, toy, checkpoints):
    found = json.loads(on_toy("ablate", "--json", checkpoint=checkpoints["baseline"]))
    validated = run(
        "fairseq-validate", toy.data, "--task", "translation", "--path", checkpoints["baseline"],
        "--valid-subset", "valid", "--criterion", "cross_entropy", "--batch-size", 8, *EVALUATION,
    )  # fmt: skip
    assert f"{found['nll']:.3f}" == re.search(r"nll_loss ([\d.]+)", validated.text).group(1)
    assert {each: [len(row) for row in rows] for each, rows in found["nll_difference"].items()} == FULL


@pytest.mark.usefixtures("all_resamplings")
def test_bleu_is_that_of_fairseq_generate(on_toy, run, toy, gated_checkpoint, tmp_path):
    search, out = [*SEARCH, "--prefix-size", "2", "--lenpen", "0.3"], tmp_path / "ablation.json"
    options = ["--metric", "bleu", *search, "--mode", "all-but-one", "--out", out]
    text = on_toy("ablate", *options, subset="test")
    found = json.loads(out.read_text())
    generated = run(
        "fairseq-generate", toy.data, "--path", gated_checkpoint, "--gen-subset", "test", *search,
        "--scoring", "sacrebleu", *EVALUATION,
    )  # fmt: skip
    assert f"{found['bleu']:.2f}" == re.search(r"BLEU = ([\d.]+)", generated.out).group(1)
    assert len(found["bleu_difference"]) == len(found["p_value"]) == 6  # the best head of every layer
    assert len(re.findall(r"\(head \d\)", text)) == 6
    assert "|bs:1000|seed:12345|" in found["bleu_signature"] and "|split:valid|" in found["selected_on"]
    assert any(found["bleu_difference"].values())
    for head, difference in found["bleu_difference"].items():
        assert found["p_value"][head] == 1.0 if difference == 0 else 1 / 1001 <= found["p_value"][head] < 1


def test_masking_a_closed_head_changes_nothing(on_toy, checkpoints, tmp_path):
    """The same translations have p = 1, in the table no stars."""
    out = tmp_path / "ablation.json"
    text = on_toy("ablate", "--metric", "bleu", *SEARCH, "--out", out, checkpoint=checkpoints["fixed"], subset="test")
    found = json.loads(out.read_text())
    assert len(found["bleu_difference"]) == 24 and found["mode"] == "single"
    assert "dec-enc (cross-attention)" in text and "paired bootstrap" in text
    closed = [f"enc-self 1 {head}" for head in range(4)]
    assert {head: (found["bleu_difference"][head], found["p_value"][head]) for head in closed} == dict.fromkeys(
        closed, (0.0, 1.0)
    )
    bleu = text.partition("BLEU of the whole model")[2]
    assert bleu.partition("layer 1")[2].splitlines()[0].split() == ["+0.00"] * 4 and "+0.00*" not in bleu
    assert not list(tmp_path.glob("*.part*"))


def test_a_stopped_ablation_goes_on(on_toy, tmp_path, monkeypatch):
    translate, calls = metrics.translate, []

    def stop_at_the_fifth(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return translate(*arguments)

    options = ["--mode", "all-but-one", "--metric", "bleu", *SEARCH, "--out", tmp_path / "out.json"]
    expected = tmp_path / "expected.json"
    on_toy("ablate", *options[:-1], expected, subset="test")
    monkeypatch.setattr(metrics, "translate", stop_at_the_fifth)
    assert on_toy("ablate", *options, subset="test", code=130) == "headgates ablate: stopped\n"
    assert [path.name for path in tmp_path.glob("out*")] == ["out.json.part"]
    on_toy("ablate", *options, subset="test")
    assert len(calls) == 5 + 3
    assert (tmp_path / "out.json").read_text() == expected.read_text()


@pytest.mark.release
def test_partial_results_of_other_data_are_not_resumed(on_toy, copied, checkpoints, tmp_path, monkeypatch):
    """A stopped command goes on with copies of its data and checkpoint, not with others in their place."""
    data, model = copied(), tmp_path / "model.pt"
    shutil.copy(checkpoints["baseline"], model)
    options = ["--by", "magnitude", "--steps", "0,50", "--types", "all", *SEARCH, "--out", tmp_path / "out.json"]

    def curve(code=0):
        return on_toy("curve", *options, checkpoint=model, data=data, subset="test", code=code)

    with monkeypatch.context() as patched:
        patched.setattr(metrics, "translate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        curve(code=130)
    kept = (tmp_path / "out.json.part").read_text()
    assert kept.count("\n") == 2
    for path in (data / "test.src-tgt.tgt.bin", model):  # of the same size and time
        content, stamps = path.read_bytes(), os.stat(path)
        path.write_bytes(checkpoints["gated"].read_bytes() if path == model else bytes([content[0] ^ 1]) + content[1:])
        os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
        words = (
            "out.json.part has the partial results of a command with other data, another checkpoint or other options"
        )
        assert words in one_line(curve(code=2)) and (tmp_path / "out.json.part").read_text() == kept
        path.write_bytes(content)
    data, model = copied("elsewhere"), model.rename(tmp_path / "moved.pt")
    with monkeypatch.context() as patched:
        translated, translate = [], metrics.translate
        patched.setattr(curves, "mean_loss", lambda *_: translated.append("loss") or 1.0)
        patched.setattr(metrics, "translate", lambda *args: translated.append("text") or translate(*args))
        curve()
    assert translated == ["text", "loss", "text"]  # the first loss was kept
    assert not (tmp_path / "out.json.part").exists()
