"""Options of trainings, and the one line of an error."""

RESET = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]


def assert_one_line_error(finished, words):
    """Exit code 2 and one line that says what is wrong; no traceback."""
    assert finished.code == 2, finished.text
    assert "Traceback" not in finished.text and "usage:" not in finished.err
    (line,) = (line for line in finished.err.splitlines() if "error:" in line)
    assert [word for word in words if word not in line] == [], line
