"""`headgates prune` refuses bad masks, scores, options and checkpoints in one line."""

import pytest
from support.checkpoints import names
from support.prune_command import SCORES, score_file, write

from fairseq_headgates.heads import parse_scores

NAN = float("nan")
BAD_SCORES = {
    "nan": (score_file({"enc-self": [[1, 2, NAN, 4]] * 2}), "it holds 'NaN', which is not finite"),
    "no scores": (score_file({}), "has no scores"),
    "no layers": (score_file({"enc-self": []}), "or a type without layers"),
    "a mask": ({"format": "headgates.heads/1"}, "format must be headgates.scores/1, not 'headgates.heads/1'"),
}


@pytest.mark.parametrize(("content", "message"), BAD_SCORES.values(), ids=BAD_SCORES)
def test_bad_score_files_are_refused(content, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        parse_scores(str(write(tmp_path / "scores.json", content)))
    assert "\n" not in str(error.value)


BAD_OPTIONS = {
    "a mask that does not fit": (
        ["--alive", '{"dec-enc": [[1, 1]]}'],
        ["the mask does not fit", "1 layers"],
    ),
    "scores that do not fit": (["--scores", "OTHER", "--keep", "1"], ["the score file does not fit", "has 1 layers"]),
    "all of them alone": (
        ["--method", "x", "--types", "enc-self", "--min-per-layer", "1"],
        ["--method, --types, --min-per-layer given without --scores"],
    ),
    "keep with a threshold": (["--threshold", "0.5", "--keep", "3"], ["--keep given without --scores: add --scores"]),
    "scores alone": (["--scores", "SCORES"], ["--scores without --keep", "--keep 12"]),
    "too many": (["--scores", "SCORES", "--keep", "12"], ["keep is 12: it must be from 0 to 11"]),
    "threshold above 1": (["--threshold", "1.01"], ["1.01", "from 0 to 1"]),
    "two choices": (["--threshold", "0.5", "--alive", "{}"], ["--alive: not allowed with argument --threshold"]),
    "no number": (["--scores", "x", "--keep", "many"], ["'many' is neither a number of heads (12) nor a fraction"]),
    # `--alive "$HEADS"` with no $HEADS must not prune by something else.
    "an empty mask": (["--alive", ""], ["--alive", "empty"]),
    "an empty score file": (["--scores", "", "--keep", "3"], ["--scores", "empty"]),
    "empty types": (["--scores", "SCORES", "--keep", "3", "--types", ""], ["--types", "names no attention type"]),
}


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_refused_and_nothing_is_written(options, words, checkpoint, refused, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    files = {"SCORES": score_file(SCORES), "OTHER": score_file({"enc-self": [[1, 2, 3, 4]]})}
    given = [write(folder / "scores.json", files[word]) if word in files else word for word in options]
    refused(checkpoint, checkpoint.with_name("x.pt"), *given, words=words)
    assert names(checkpoint.parent) == ["gated.pt"]


def test_a_file_that_is_not_a_checkpoint_is_refused(refused, tmp_path):
    (tmp_path / "in").write_text("hello\n")
    refused(tmp_path / "in", tmp_path / "out.pt", words=[str(tmp_path / "in")])
    assert names(tmp_path) == ["in"]
