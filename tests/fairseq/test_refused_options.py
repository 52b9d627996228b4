"""Bad options of fairseq-train end with one line and cost no checkpoint."""

import json
import shutil

import pytest
from support.commands import GATED, L0, TYPES, train_arguments
from support.sampling import sampled
from support.training import RESET, assert_one_line_error

# Of torch's data loader, about machines without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")


# Bad input


def mask(**rows):
    return json.dumps({attention_type.replace("_", "-"): layers for attention_type, layers in rows.items()})


FOUR = [1, 1, 1, 1]
SUBSET = ["--sparsity-method", "subset", "--target-heads"]
NO_CROSS = ["--no-cross-attention", "--restore-file", "none.pt"]  # which the checkpoint has
BAD_OPTIONS = {
    "a type in both options": (
        ["--gate-heads", "enc-self", "--alive-heads", mask(enc_self=[FOUR, FOUR])],
        ["enc-self", "--gate-heads", "--alive-heads"],
    ),
    "unknown type": (["--gate-heads", "enc-slef"], ["--gate-heads", "'enc-slef'", TYPES.replace(",", ", ")]),
    "a mask without end": (["--alive-heads", "/dev/zero"], ["'/dev/zero'", "not a regular file"]),
    "gate init without bound": (["--gate-init", "1e300"], ["--gate-init", "1e300", "1e+06"]),
    "stretch out of bounds": (["--gate-stretch=-1e300,1e300"], ["--gate-stretch", "-1e+300,1e+300", "1e+06"]),
    "gate rate too small": (["--gate-heads", "enc-self", "--gate-lr-scale", "1e-40"], ["--gate-lr-scale", "1e-40"]),
    "lambda out of bounds": ([*GATED, "--l0-weight", "1e300"], ["--l0-weight", "1e+300", "1e+09"]),
    "lambda is text": ([*GATED, "--l0-weight", "x"], ["--l0-weight", "'x'", "number"]),
    "unknown reduction": ([*GATED, "--l0-reduction", "mean"], ["--l0-reduction", "'mean'", "sum, layer-mean"]),
    "type named twice": (["--gate-heads", "enc-self,enc-self"], ["'enc-self'", "twice"]),
    "layers of a mask": (["--alive-heads", mask(enc_self=[FOUR])], ["enc-self", "1 layers", "has 2"]),
    "heads of a mask": (["--alive-heads", mask(dec_enc=[FOUR, [1, 1]])], ["dec-enc layer 1", "2 heads", "has 4"]),
    "a half": (["--alive-heads", mask(enc_self=[[1, 1, 1, 0.5], FOUR])], ["enc-self.0.3 must be 1 or 0, not 0.5"]),
    "missing mask file": (["--alive-heads", "no/such.json"], ["'no/such.json'", "No such file"]),
    "target without method": (["--target-heads", "3"], ["--target-heads needs a --sparsity-method other than l0"]),
    "target above all": ([*GATED, "--l0-weight", "0", *SUBSET, "99"], ["--target-heads", "99 heads", "there are"]),
    "target below 0": ([*GATED, "--l0-weight", "0", *SUBSET, "-1"], ["--target-heads", "-1", "a number of heads (12)"]),
    "target of an unknown type": (
        [*GATED, "--l0-weight", "0", *SUBSET, "enc=3"],
        ["--target-heads", "enc", "no gates"],
    ),
    "target without gates": ([*SUBSET, "3"], ["--target-heads needs gates"]),
    "target and lambda": (
        [*GATED, *RESET, *SUBSET, "3"],
        ["--l0-weight has no effect with --target-heads", "leave one out"],
    ),
    "lambda of a type without gates": (
        [*GATED, *RESET, "--gate-heads", "enc-self", "--l0-weight", "dec-enc=0.2"],
        ["--l0-weight names dec-enc, which has no gates"],
    ),
    "method without target": ([*GATED, "--sparsity-method", "lagrangian"], ["lagrangian needs --target-heads"]),
    "output scale of subsets": (
        [*GATED, "--l0-weight", "0", *SUBSET, "3", "--gate-output-scale"],
        ["--gate-output-scale", "needs --gate-hard"],
    ),
    "unknown method": (["--sparsity-method", "magic"], ["--sparsity-method", "'magic'", "l0, lagrangian, subset"]),
    "warm-up below 0": ([*GATED, "--l0-warmup-updates", "-1"], ["--l0-warmup-updates is -1", "at least 0"]),
    "settling before 0": (["--fix-gates-after", "-3"], ["--fix-gates-after", "'-3'", "whole number"]),
    "stretch above 0": (["--gate-stretch=0.1,1.1"], ["0.1,1.1", "LOW must be from"]),
    "stretch below 1": (["--gate-stretch=-0.1,0.9"], ["-0.1,0.9", "HIGH from 1 + 1e-06 to 1e+06"]),
    "one number as stretch": (["--gate-stretch=-0.1"], ["-0.1", "LOW,HIGH"]),
    "temperature 0": (["--gate-heads", "enc-self", "--gate-temperature", "0"], ["temperature", "0", "above 0"]),
    "temperature below 0": (["--gate-heads", "enc-self", "--gate-temperature=-1"], ["-1", "above 0"]),
    "temperature without bound": (["--gate-heads", "enc-self", "--gate-temperature=inf"], ["inf", "temperature"]),
    "stretch without bound": (["--gate-stretch=-inf,inf"], ["-inf,inf"]),
    "first gate nan": (["--gate-init", "nan"], ["nan", "number"]),
    "first gate": (["--gate-init", "open"], ["'open'", "glorot"]),
    "negative lambda": ([*GATED, "--l0-weight=-0.1"], ["--l0-weight", "-0.1", "from 0 to"]),
    "lambda nan": ([*GATED, "--l0-weight=nan"], ["--l0-weight", "nan"]),
    "lambda inf": ([*GATED, "--l0-weight=inf"], ["--l0-weight", "inf"]),
    "gate rate inf": (["--gate-heads", "enc-self", "--gate-lr-scale=inf"], ["inf", "scale"]),
    "gate rate 0": (["--gate-heads", "enc-self", "--gate-lr-scale", "0"], ["0", "above 0"]),
    "freezing nothing": (["--freeze-params", "decodr"], ["'decodr'", "no parameter"]),
    "freezing everything": (["--freeze-params", "."], ["'.'", "every parameter"]),
    "no regular expression": (["--freeze-params", "(enc"], ["'(enc'", "regular expression"]),
    "gates on missing attention": ([*NO_CROSS, "--gate-heads", "dec-enc"], ["no dec-enc", "enc-self"]),
    "mask on missing attention": (
        [*NO_CROSS, "--alive-heads", mask(dec_enc=[FOUR, FOUR])],
        ["no dec-enc"],
    ),
    "L0 without gates": ([*L0, *RESET], ["--gate-heads", "no stochastic gates"]),
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


@pytest.mark.parametrize(("options", "words"), sampled(BAD_OPTIONS.values(), 3), ids=BAD_OPTIONS)
def test_bad_options_end_with_one_line(options, words, save_dir, train):
    assert_one_line_error(train(save_dir, *options, updates=6, code=None), words)


def test_bad_options_end_a_process_with_one_line(save_dir, toy, either):
    options, words = BAD_OPTIONS["a type in both options"]
    command = ["fairseq-train", *train_arguments(toy, save_dir, *options)]
    assert_one_line_error(either(*command, code=None), words)


def test_starting_without_gates_of_the_checkpoint_is_refused(gated_checkpoint, tmp_path, train):
    options = [*GATED, "--gate-heads", "enc-self,dec-self", "--finetune-from-model", gated_checkpoint]
    assert_one_line_error(train(tmp_path, *options, code=None), ["gates on dec-enc", "--gate-heads"])
