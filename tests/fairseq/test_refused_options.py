"""Bad options of fairseq-train end with one line and cost no checkpoint."""

import shutil

import pytest
from support.commands import GATED, L0, train_arguments
from support.training import RESET, assert_one_line_error

SUBSET = ["--sparsity-method", "subset", "--target-heads"]
# A case for each place that finds a mistake: the parser, the model, the criterion, and the start of the training.
BAD_OPTIONS = {
    "unknown reduction": ([*GATED, "--l0-reduction", "mean"], ["--l0-reduction", "'mean'", "sum, layer-mean"]),
    "a type in both options": (
        ["--gate-heads", "enc-self", "--alive-heads", '{"enc-self": [[1, 1, 1, 1], [1, 1, 1, 1]]}'],
        ["enc-self", "--gate-heads", "--alive-heads"],
    ),
    "warm-up below 0": ([*GATED, "--l0-warmup-updates", "-1"], ["--l0-warmup-updates is -1", "at least 0"]),
    "target and lambda": (
        [*GATED, *RESET, *SUBSET, "3"],
        ["--l0-weight has no effect with --target-heads", "leave one out"],
    ),
    "lambda of a type without gates": (
        [*GATED, *RESET, "--gate-heads", "enc-self", "--l0-weight", "dec-enc=0.2"],
        ["--l0-weight names dec-enc, which has no gates"],
    ),
    "L0 without gates on a stock model": ([*L0, *RESET, "--arch", "transformer"], ["--gate-heads"]),
}


@pytest.fixture
def save_dir(checkpoints, tmp_path):
    """A folder with a checkpoint that a mistake in the options must not cost."""
    path = tmp_path / "checkpoint_last.pt"
    shutil.copyfile(checkpoints["baseline"], path)
    yield tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == checkpoints["baseline"].read_bytes()


@pytest.mark.cases(3)
@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_end_with_one_line(options, words, save_dir, train):
    assert_one_line_error(train(save_dir, *options, updates=6, code=None), words)


def test_bad_options_end_a_process_with_one_line(save_dir, toy, either):
    options, words = BAD_OPTIONS["a type in both options"]
    command = ["fairseq-train", *train_arguments(toy, save_dir, *options)]
    assert_one_line_error(either(*command, code=None), words)
