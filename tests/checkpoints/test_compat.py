"""Supported versions of fairseq: encoder layers of 0.12.2, which copy their weights for an inference shortcut."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import base_architecture
from omegaconf import OmegaConf
from support.checkpoints import OPEN, small_gated, small_state
from support.models import assert_same, logits, make_batch, make_stock

import fairseq_headgates
from fairseq_headgates import HeadTable, prune, use_head_attention
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.compat import COPIES, complete, copies, remove_copies, unsupported
from fairseq_headgates.plugin.models.building import build_model, load_model

POST_NORM = {"encoder_normalize_before": False, "decoder_normalize_before": False}


def copies_of(weights, layer):
    """The copies of the weights of an encoder layer."""
    found = {}
    for kind in ("weight", "bias"):
        found[f"in_proj_{kind}"] = torch.cat([weights[f"{layer}self_attn.{name}_proj.{kind}"] for name in "qkv"])
        found[f"out_proj_{kind}"] = weights[f"{layer}self_attn.out_proj.{kind}"].clone()
        found |= {f"{name}_{kind}": weights[f"{layer}{name}.{kind}"].clone() for name in ("fc1", "fc2")}
    return {layer + name: weight for name, weight in found.items()}


def copied(weights):
    """The weights of a checkpoint as fairseq 0.12.2 writes it: the copies before the other weights of a layer."""
    found = {}
    for name, weight in weights.items():
        layer = name.partition(".self_attn.")[0] + "."
        if ".self_attn." in name and name.startswith("encoder.") and f"{layer}{COPIES[0]}" not in found:
            found |= copies_of(weights, layer)
        found[name] = weight
    return found


def test_encoder_layers_lose_their_copies_and_their_shortcut():
    """A layer without heads is loaded; that of fairseq 0.12.2 asks for its projections (test_fairseq_0_12_2.py)."""
    batch, stock, old = make_batch(), make_stock(**POST_NORM), make_stock(**POST_NORM)
    for layer in old.encoder.layers:
        layer.can_use_fastpath = True
        for name, weight in copies_of(layer.state_dict(), "").items():
            setattr(layer, name, torch.nn.Parameter(weight))
    use_head_attention(old)
    assert not any(layer.can_use_fastpath for layer in old.encoder.layers)
    assert torch.equal(logits(old, batch), logits(stock, batch))
    assert old.state_dict().keys() == stock.state_dict().keys()
    pruned = prune(old, {"enc-self": [[0, 0, 0, 0], [1, 0, 0, 1]]})
    again = copy.deepcopy(pruned)
    for parameter in again.parameters():
        parameter.data.zero_()
    again.load_state_dict(pruned.state_dict())
    assert torch.equal(logits(again, batch), logits(pruned, batch))


def test_only_copies_are_removed():
    """Weights before version 0.9 of fairseq have the same name in the attention, and a model may have any."""
    weights = make_stock().state_dict()
    with_copies = copied(weights)
    assert copies(with_copies) == with_copies.keys() - weights.keys()
    others = ["encoder.layers.0.self_attn.in_proj_weight", "decoder.out_proj_weight", "fc1_bias", "fc1.bias_scale"]
    with_copies |= {name: torch.zeros(1) for name in others}
    remove_copies(with_copies)
    assert with_copies.keys() == weights.keys() | set(others)


def test_the_state_of_the_optimiser_is_pruned_without_the_copies():
    """As one vector, with --fp16; the other form is in the checkpoints below."""
    model = small_gated()
    trained = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    moments = {name: torch.rand(weight.shape, generator=generator) for name, weight in trained.items()}
    state = small_state(model)
    expected = prune_checkpoint(with_moments(state, moments), HeadTable(OPEN))
    with_copies = {**state, "model": copied(state["model"])}
    others = copies(with_copies["model"])
    of_all = {
        name: moments.get(name, torch.zeros_like(weight))
        for name, weight in with_copies["model"].items()
        if name in trained or name in others
    }
    found = prune_checkpoint(with_moments(with_copies, of_all), HeadTable(OPEN))
    assert_same(found["last_optimizer_state"], expected["last_optimizer_state"])
    assert found["last_optimizer_state"] is not None and found["model"].keys() == expected["model"].keys()
    assert torch.equal(logits(build_model(found), make_batch()), logits(build_model(expected), make_batch()))


def with_moments(state, moments):
    """A checkpoint with the state of Adam of all parameters as one vector."""
    entry = {"step": 3, "exp_avg": torch.cat([moment.flatten() for moment in moments.values()])}
    return {**state, "last_optimizer_state": {"state": {0: entry}, "param_groups": [{"lr": 0.1, "params": [0]}]}}


def test_a_preset_fills_in_missing_options():
    """Options that are null or missing are open; what the preset does not read may be undefined."""
    args = OmegaConf.create({"encoder_layers": None, "encoder_embed_dim": 64, "data": "???"})
    complete(base_architecture, args)
    assert (args.encoder_layers, args.encoder_embed_dim, args.decoder_embed_dim) == (6, 64, 64)
    assert args.base_layers == 0 and OmegaConf.is_missing(args, "data")


# --- checkpoints of another fairseq -----------------------------------------------------------------------------------

# Of each version: `stock.pt`, trained by fairseq alone; `gated.pt`, trained from it, with the optimiser and a moving
# average, whose gates were then set by hand; `pruned.pt`, made of it; `expected.json`, the logits of each.
DATA = Path(__file__).parents[1] / "fixtures"
OTHERS = ("fairseq-0.12.2", "fairseq-fixed-0.12.3.1")
BATCH = {
    "src_tokens": torch.tensor([[4, 5, 6, 7, 8, 2], [1, 1, 9, 10, 11, 2]]),
    "src_lengths": torch.tensor([6, 4]),
    "prev_output_tokens": torch.tensor([[2, 8, 7, 6, 5], [2, 11, 10, 1, 1]]),
}


@pytest.mark.parametrize("fairseq", OTHERS)
@pytest.mark.parametrize("name", ["stock", "gated", "pruned"])
def test_checkpoints_compute_the_same(name, fairseq):
    """To the last bit with the version of torch that computed their logits."""
    expected = json.loads((DATA / fairseq / "expected.json").read_text())
    _, model = load_model(str(DATA / fairseq / f"{name}.pt"))
    with torch.no_grad():
        found = model(**BATCH)[0]
    same = torch.__version__.partition("+")[0] == expected["torch"]
    torch.testing.assert_close(found, torch.tensor(expected["logits"][name]), rtol=0, atol=0 if same else 1e-5)


@pytest.mark.parametrize("fairseq", OTHERS)
def test_pruning_gives_the_same_with_every_fairseq_version(fairseq):
    """Weights, optimiser and moving average."""
    pruned = prune_checkpoint(load_checkpoint(str(DATA / fairseq / "gated.pt")), HeadTable(OPEN))
    theirs = load_checkpoint(str(DATA / fairseq / "pruned.pt"))
    for weights, others in (
        (pruned["model"], theirs["model"]),
        (pruned["extra_state"]["ema"], theirs["extra_state"]["ema"]),
    ):
        names = {name for name in {**weights, **others} if not name.endswith("_float_tensor")}
        assert_same({name: weights[name] for name in names}, {name: others[name] for name in names})
    assert_same(pruned["last_optimizer_state"], theirs["last_optimizer_state"])
    assert pruned["last_optimizer_state"]["state"]


@pytest.mark.parametrize("fairseq", OTHERS)
def test_the_optimiser_of_a_stock_checkpoint_is_kept(fairseq):
    notices = []
    state = load_checkpoint(str(DATA / fairseq / "stock.pt"))
    pruned = prune_checkpoint(state, HeadTable({"enc-self": OPEN["enc-self"]}), notice=notices.append)
    assert notices == [] and not copies(pruned["model"])
    entries = pruned["last_optimizer_state"]["state"]
    assert len(entries) == len(list(build_model(pruned).parameters()))


# --- versions ------------------------------------------------------------------------------------------------------


def installed(folder, **versions):
    """A folder of packages with nothing in them."""
    for name, number in versions.items():
        (folder / name.replace("fairseq_fixed", "fairseq")).mkdir(parents=True, exist_ok=True)
        (folder / name.replace("fairseq_fixed", "fairseq") / "__init__.py").touch()
        info = folder / f"{name}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {number}\n")
    return folder


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"torch": "2.4.1", "fairseq": "0.12.2"}, None),
        ({"torch": "2.13.0+cpu", "fairseq_fixed": "0.12.3.1"}, None),
        ({"torch": "2.11.0a0+git1234", "fairseq": "1.0.0a0+741fd13"}, None),  # builds of checkouts
        ({"torch": "2.3.1", "fairseq": "0.12.2"}, "torch 2.3.1 is too old: install torch 2.4 or later"),
        ({"torch": "2.4.1", "fairseq": "0.10.2"}, "fairseq 0.10.2 is too old: install fairseq 0.12.2, or"),
        ({"torch": "2.4.1"}, "fairseq is missing: install fairseq 0.12.2 on Python 3.10, fairseq-fixed on later"),
    ],
)
def test_versions_that_are_not_supported_are_named_in_one_line(versions, words, tmp_path):
    """In an interpreter without other packages, by the command and by the import of fairseq's --user-dir."""
    root = str(Path(fairseq_headgates.__file__).parents[1])
    path = f"import sys; sys.path[:0] = [{str(installed(tmp_path, **versions))!r}, {root!r}]; "
    check = path + "from fairseq_headgates.compat import unsupported; print(unsupported())"
    command = (
        path
        + f"import headgates_start; sys.argv[1:] = ['show', '--path', {__file__!r}]; sys.exit(headgates_start.main())"
    )
    refused = [(command, 2), (path + "import fairseq_headgates", 1)] if words else []
    for code, status in (("import headgates_start; " + check, 0), *refused):
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
        if status == 0:
            assert done.returncode == 0 and (words or "None") in done.stdout, done.stderr
        else:
            assert done.returncode == status and words in done.stderr.splitlines()[-1], done.stderr
            assert status == 1 or len(done.stderr.splitlines()) == 1


def test_this_environment_is_supported():
    assert unsupported() is None
