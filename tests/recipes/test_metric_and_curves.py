"""The table of curves, and metrics of the user."""

import json
import shlex
import sys

import pytest

from results import curves, metric


def write_curve(path, found):
    names = ["checkpoint", "by", "types", "removed", "heads", "nll", "bleu"]
    path.write_text("\n".join("\t".join(map(str, row)) for row in [names, *found]) + "\n")
    return str(path)


def test_curves_over_training_have_a_row_for_each_epoch(tmp_path, capsys):
    points = [(f"a/checkpoint{e}.pt", "x", "all", p, 9, 1.0, e + p / 100) for e in (1, 30) for p in (0, 50)]
    curves.main([write_curve(tmp_path / "c.tsv", points), "--paper"])
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert found[2:] == [["1", "1.00", "1.50", "3.0"], ["30", "30.00", "30.50", "34.7"]]


def test_curves_of_one_model_have_a_row_for_each_score(tmp_path, capsys):
    files = [
        write_curve(tmp_path / f"{by}.tsv", [("m.pt", by, "all", 0, 9, 1.0, 20), ("m.pt", by, "all", step, 5, 1.0, 10)])
        for by, step in (("gradient", 50), ("ablation", 25))
    ]
    curves.main(files)
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert found[0] == ["by", "-0%", "-25%", "-50%"]
    assert found[2:] == [["gradient", "20.00", "-", "10.00"], ["ablation", "20.00", "10.00", "-"]]


def test_curves_without_bleu_are_refused(tmp_path):
    (tmp_path / "c.tsv").write_text("checkpoint\tby\ttypes\tremoved\tnll\nm.pt\tx\tall\t0\t1.0\n")
    with pytest.raises(ValueError, match="c.tsv has no BLEU: run headgates curve with --metric bleu"):
        curves.read([str(tmp_path / "c.tsv")])


@pytest.fixture
def metric_of(tmp_path):
    """metric_of(CODE): a command that runs some Python; its path has a blank."""

    def command(code):
        (tmp_path / "my metric.py").write_text("import sys\n" + code)
        return shlex.join([sys.executable, str(tmp_path / "my metric.py")])

    return command


def test_a_metric_gets_three_files_and_prints_a_number(metric_of, capsys):
    command = metric_of("print('loading'); print(len(sys.argv[1:]) + 0.5); print(sys.argv, file=sys.stderr)")
    metric.main([command, "a", "b", "c"])
    assert json.loads(capsys.readouterr().out)["score"] == 3.5


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('good')", "printed 'good': the last line must be one number"),
        ("print('nan')", "printed 'nan'"),
        ("raise OSError('no model')", "failed with exit code 1: OSError: no model"),
    ],
)
def test_a_metric_that_fails_is_quoted_in_one_line(code, words, metric_of):
    with pytest.raises(ValueError) as error:
        metric.main([metric_of(code), "a", "b", "c"])
    assert len(str(error.value).splitlines()) == 1 and words in str(error.value)
