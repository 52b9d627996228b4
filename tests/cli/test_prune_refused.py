"""`headgates prune` refuses bad masks, scores, options and checkpoints in one line."""

import os

import pytest
import torch
from support.prune_command import OPEN, SCORES, mask, names, score_file, write

FOUR = [1, 1, 1, 1]
BAD_MASKS = {
    "layers": (mask(enc_self=[FOUR]), ["the mask does not fit", "enc-self has 1 layers, the model has 2"]),
    "heads": (mask(dec_enc=[FOUR, [1, 1]]), ["dec-enc layer 1 has 2 heads, the model has 4"]),
    "all at once": (mask(dec_enc=[FOUR, [1]], enc_self=[FOUR]), ["dec-enc layer 1", "enc-self has 1 layers"]),
    "a half": (mask(enc_self=[FOUR, [1, 1, 1, 0.5]]), ["enc-self.1.3 must be 1 or 0, not 0.5"]),
}


@pytest.mark.parametrize(("text", "words"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_bad_masks(text, words, unfit):
    unfit("--alive", text, words=words)


NAN = float("nan")
BAD_SCORES = {
    "layers": (score_file({"enc-self": [[1, 2, 3, 4]]}), ["the score file does not fit", "1 layers, the model has 2"]),
    "heads": (score_file({"dec-enc": [[1, 2, 3, 4], [1]]}), ["dec-enc layer 1 has 1 heads, the model has 4"]),
    "nan": (score_file({"enc-self": [[1, 2, NAN, 4]] * 2}), ["scores.enc-self.0.2 must be a finite number, not nan"]),
    "no scores": (score_file({}), ["has no scores"]),
    "no layers": (score_file({"enc-self": []}), ["or a type without layers"]),
    "a mask": ({"format": "headgates.heads/1", **OPEN}, ["format must be headgates.scores/1, not 'headgates.heads/1'"]),
}


@pytest.mark.parametrize(("content", "words"), BAD_SCORES.values(), ids=BAD_SCORES)
def test_bad_scores(content, words, unfit, tmp_path):
    unfit("--scores", write(tmp_path / "scores.json", content), "--keep", 3, words=words)


def test_a_bad_mask_and_bad_scores_write_nothing(checkpoint, refused):
    out, file = checkpoint.with_name("x.pt"), write(checkpoint.with_name("scores.json"), BAD_SCORES["heads"][0])
    refused(checkpoint, out, "--alive", BAD_MASKS["all at once"][0], words=BAD_MASKS["all at once"][1])
    refused(checkpoint, out, "--scores", file, "--keep", 3, words=BAD_SCORES["heads"][1])
    assert names(checkpoint.parent) == ["gated.pt", "scores.json"]


BAD_OPTIONS = {
    "keep alone": (["--keep", "3"], ["--keep given without --scores: add --scores FILE"]),
    "all of them alone": (
        ["--method", "x", "--types", "enc-self", "--min-per-layer", "1"],
        ["--method, --types, --min-per-layer given without --scores"],
    ),
    "keep with a mask": (
        ["--alive", mask(enc_self=[FOUR, FOUR]), "--keep", "3"],
        ["--keep given without --scores: add --scores FILE"],
    ),
    "keep with a threshold": (
        ["--threshold", "0.5", "--keep", "3"],
        ["--keep given without --scores: add --scores FILE"],
    ),
    "scores alone": (["--scores", "SCORES"], ["--scores without --keep", "--keep 12"]),
    "too many": (["--scores", "SCORES", "--keep", "14"], ["keep is 14: it must be from 0 to 13"]),
    "fewer than none": (["--scores", "SCORES", "--keep", "-1"], ["keep is -1"]),
    "a share above 1": (["--scores", "SCORES", "--keep", "1.5"], ["1.5", "from 0 to 1"]),
    "a share below 0": (["--scores", "SCORES", "--keep", "-0.5"], ["-0.5", "from 0 to 1"]),
    "missing type": (["--scores", "SOME", "--keep", "3", "--types", "dec-enc"], ["no scores of dec-enc", "enc-self"]),
    "unknown type": (["--scores", "SCORES", "--keep", "3", "--types", "enc"], ["'enc'", "enc-self"]),
    "too many per layer": (
        ["--scores", "SCORES", "--keep", "3", "--min-per-layer", "2"],
        ["min-per-layer is 2, which keeps 10 heads, but keep is 3"],
    ),
    "no such scores": (["--scores", "no/such.json", "--keep", "3"], ["'no/such.json'", "No such file"]),
    "threshold above 1": (["--threshold", "1.01"], ["1.01", "from 0 to 1"]),
    "threshold below 0": (["--threshold", "-0.1"], ["-0.1", "from 0 to 1"]),
    "threshold nan": (["--threshold", "nan"], ["nan", "from 0 to 1"]),
}


def with_files(options, folder):
    """SCORES and SOME as the paths of score files."""
    files = {"SCORES": score_file(SCORES), "SOME": score_file({"enc-self": SCORES["enc-self"]})}
    return [write(folder / f"{o}.json", files[o]) if o in files else o for o in options]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_invalid_options_for_a_model_are_refused(options, words, unfit, tmp_path):
    unfit(*with_files(options, tmp_path), words=words)


@pytest.mark.parametrize("name", ["all of them alone", "too many"])
def test_invalid_options_write_nothing(name, checkpoint, refused):
    options, words = BAD_OPTIONS[name]
    refused(checkpoint, checkpoint.with_name("x.pt"), *with_files(options, checkpoint.parent), words=words)
    assert not checkpoint.with_name("x.pt").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threshold", "0.5", "--alive", "{}"], ["--alive: not allowed with argument --threshold"]),
        (["--alive", "{}", "--scores", "x"], ["--scores: not allowed with argument --alive"]),
        (["--threshold", "0.5", "--scores", "x"], ["--scores: not allowed with argument --threshold"]),
        (["--scores", "x", "--keep", "many"], ["'many' is neither a number of heads (12) nor a fraction (0.5)"]),
        (["--threshold", "low"], ["invalid float value: 'low'"]),
        (["--min-per-layer", "1.5"], ["invalid int value: '1.5'"]),
    ],
)
def test_options_that_exclude_each_other(options, words, checkpoint, refused):
    """argparse's own errors, without the usage."""
    refused(checkpoint, checkpoint.with_name("x.pt"), *options, words=words)
    assert names(checkpoint.parent) == ["gated.pt"]


@pytest.mark.parametrize(
    "options",
    [
        ["--alive", ""],
        ["--scores", ""],
        ["--scores", "", "--keep", "3"],
        ["--scores", "SCORES", "--keep", "3", "--types", ""],
        ["--scores", "SCORES", "--keep", "3", "--method", ""],
    ],
)
def test_empty_options_are_refused(options, checkpoint, refused):
    """`--alive "$HEADS"` with no $HEADS must not prune by something else."""
    refused(checkpoint, checkpoint.with_name("x.pt"), *with_files(options, checkpoint.parent), words=[])


def test_a_negative_number_of_heads_per_layer(unfit, tmp_path):
    unfit(*with_files(["--scores", "SCORES", "--keep", "3", "--min-per-layer", "-1"], tmp_path), words=["-1"])


class RunsCode:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


def test_a_checkpoint_that_would_run_code(checkpoint, prune, refused):
    marker, out = checkpoint.with_name("marker"), checkpoint.with_name("out.pt")
    state = {**torch.load(checkpoint), "extra_state": {"x": RunsCode(marker)}}
    torch.save(state, checkpoint)
    refused(checkpoint, out, words=["posix.mkdir", "could run code", "--trust"])
    assert names(checkpoint.parent) == ["gated.pt"]
    prune(checkpoint, out, "--trust")
    assert names(checkpoint.parent) == ["gated.pt", "marker", "out.pt"]


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "folder", "missing", "no transformer"])
def test_files_that_are_not_checkpoints_are_refused(kind, checkpoint, refused, tmp_path):
    path = tmp_path / "in"
    content = checkpoint.read_bytes()
    writers = {
        "truncated": lambda: path.write_bytes(content[: len(content) // 3]),
        "empty": path.touch,
        "text": lambda: path.write_text("hello\n"),
        "folder": path.mkdir,
        "missing": lambda: None,
        "no transformer": lambda: torch.save({"model": {}, "cfg": {"model": {"arch": "lstm"}}}, path),
    }
    writers[kind]()
    words = ["'lstm'", "no attention layer"] if kind == "no transformer" else [str(path)]
    refused(path, tmp_path / "out.pt", words=words)
    assert not (tmp_path / "out.pt").exists()
