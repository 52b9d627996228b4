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
from support.fairseq_0_12_2 import COPIES, IS_0_12_2, OldEncoderLayer, as_in_0_12_2
from support.models import assert_same, logits, make_batch, make_gated, make_stock
from support.travelling import BATCH, NAMES

import fairseq_headgates
from fairseq_headgates import HeadTable, gate_values, prune, use_head_attention
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import build_model, load_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.compat import complete, copies, remove_copies, unsupported

POST_NORM = {"encoder_normalize_before": False, "decoder_normalize_before": False}


@pytest.fixture
def old():
    """A post-norm model of fairseq 0.12.2 with its weights loaded, as from a checkpoint."""
    if IS_0_12_2:
        pytest.skip("this is fairseq 0.12.2")
    weights = make_stock(**POST_NORM).state_dict()
    model = as_in_0_12_2(make_stock(seed=1, **POST_NORM))
    model.load_state_dict(copy.copy(weights))
    return model


def copied(weights):
    """The weights of a checkpoint as fairseq 0.12.2 writes it: the copies before the other weights of a layer."""
    found = {}
    for name, weight in weights.items():
        layer = name.partition(".self_attn.")[0] + "."
        if ".self_attn." in name and name.startswith("encoder.") and f"{layer}{COPIES[0]}" not in found:
            found |= {layer + copy: value.clone() for copy, value in OldEncoderLayer.copied(weights, layer).items()}
        found[name] = weight
    return found


def test_a_model_that_fairseq_0_12_2_cannot_evaluate_is_evaluated(old):
    batch = make_batch()
    with pytest.raises(RuntimeError, match="Mask Type"):
        logits(old, batch)
    names = make_stock(**POST_NORM).state_dict().keys()
    assert len(old.state_dict().keys() - names) == 2 * len(COPIES)
    use_head_attention(old)
    assert torch.equal(logits(old, batch), logits(make_stock(**POST_NORM), batch))
    assert old.state_dict().keys() == names
    assert torch.equal(logits(copy.deepcopy(old), batch), logits(old, batch))


def test_weights_of_layers_without_heads_are_loaded(old):
    """The layer of fairseq 0.12.2 asks for the projections of its attention."""
    pruned = prune(old, {"enc-self": [[0, 0, 0, 0], [1, 0, 0, 1]]})
    again = copy.deepcopy(pruned)
    for parameter in again.parameters():
        parameter.data.zero_()
    again.load_state_dict(pruned.state_dict())
    assert torch.equal(logits(again, make_batch()), logits(pruned, make_batch()))


def test_a_checkpoint_with_copies_is_loaded():
    weights = make_stock(**POST_NORM).state_dict()
    model = make_gated(seed=1, gate_heads="enc-self,dec-enc", **POST_NORM)
    model.load_state_dict(copied(weights), strict=False)
    assert all((gates == 1).all() for gates in gate_values(model).values())
    assert torch.equal(logits(model, make_batch()), logits(make_stock(**POST_NORM), make_batch()))


def test_only_copies_are_removed():
    """Weights before version 0.9 of fairseq have the same name in the attention, and a model may have any."""
    weights = make_stock().state_dict()
    with_copies = copied(weights)
    assert copies(with_copies) == with_copies.keys() - weights.keys()
    others = ["encoder.layers.0.self_attn.in_proj_weight", "decoder.out_proj_weight", "fc1_bias", "fc1.bias_scale"]
    with_copies |= {name: torch.zeros(1) for name in others}
    remove_copies(with_copies)
    assert with_copies.keys() == weights.keys() | set(others)


@pytest.mark.parametrize("flat", [False, True])
def test_the_state_of_the_optimiser_is_pruned_without_the_copies(flat):
    model = small_gated()
    trained = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    moments = {name: torch.rand(weight.shape, generator=generator) for name, weight in trained.items()}
    state = small_state(model)
    expected = prune_checkpoint(with_moments(state, moments, list(moments), flat), HeadTable(OPEN))
    with_copies = {**state, "model": copied(state["model"])}
    order = [name for name in with_copies["model"] if name in trained or name in copies(with_copies["model"])]
    shapes = {name: torch.zeros_like(weight) for name, weight in with_copies["model"].items()}
    if not flat:  # the copies have no gradient, and Adam nothing to remember of them
        shapes = {}
    found = prune_checkpoint(with_moments(with_copies, {**shapes, **moments}, order, flat), HeadTable(OPEN))
    assert_same(found["last_optimizer_state"], expected["last_optimizer_state"])
    assert found["last_optimizer_state"] is not None and found["model"].keys() == expected["model"].keys()
    assert torch.equal(logits(build_model(found), make_batch()), logits(build_model(expected), make_batch()))


def with_moments(state, moments, order, flat):
    """A checkpoint with the state of Adam: of each parameter, or of all as one vector, as with --fp16."""
    if flat:
        entries = {0: {"step": 3, "exp_avg": torch.cat([moments[name].flatten() for name in order])}}
    else:
        entries = {n: {"step": 3, "exp_avg": moments[name]} for n, name in enumerate(order) if name in moments}
    group = {"lr": 0.1, "params": list(range(1 if flat else len(order)))}
    return {**state, "last_optimizer_state": {"state": entries, "param_groups": [group]}}


def test_a_preset_fills_in_missing_options():
    """Options that are null or missing are open; what the preset does not read may be undefined."""
    args = OmegaConf.create({"encoder_layers": None, "encoder_embed_dim": 64, "data": "???"})
    complete(base_architecture, args)
    assert (args.encoder_layers, args.encoder_embed_dim, args.decoder_embed_dim) == (6, 64, 64)
    assert args.base_layers == 0 and OmegaConf.is_missing(args, "data")


# --- checkpoints of another fairseq -----------------------------------------------------------------------------------

DATA = Path(__file__).parents[1] / "data"
OTHERS = ("fairseq-0.12.2", "fairseq-fixed-0.12.3.1")


@pytest.mark.parametrize("fairseq", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_compute_the_same(name, fairseq):
    """Of support/travelling.py: to the last bit with the version of torch that computed their logits."""
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


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"torch": "2.4.1", "fairseq": "0.12.2"}, None),
        ({"torch": "2.13.0+cpu", "fairseq_fixed": "0.12.3.1"}, None),
        ({"torch": "2.11.0a0+git1234", "fairseq": "1.0.0a0+741fd13"}, None),  # builds of checkouts
        ({"torch": "2.3.1", "fairseq": "0.12.2"}, "torch 2.3.1 is too old: install torch 2.4 or later"),
        ({"torch": "1.13.1+cu117", "fairseq": "0.12.2"}, "torch 1.13.1+cu117 is too old"),
        ({"torch": "2.4.1", "fairseq": "0.10.2"}, "fairseq 0.10.2 is too old: install fairseq 0.12.2, or"),
        ({"torch": "2.4.1"}, "fairseq is missing: install fairseq 0.12.2 on Python 3.10, fairseq-fixed on later"),
        ({"fairseq": "0.12.2"}, "torch is missing: install torch 2.4 or later"),
    ],
)
def test_versions_that_are_not_supported_are_named_in_one_line(versions, words, tmp_path):
    """In an interpreter without other packages, by the command and by the import of fairseq's --user-dir."""
    root = str(Path(fairseq_headgates.__file__).parents[1])
    path = f"import sys; sys.path[:0] = [{str(installed(tmp_path, **versions))!r}, {root!r}]; "
    check = path + "from fairseq_headgates.compat import unsupported; print(unsupported())"
    command = path + f"import headgates_start; sys.argv[1:] = ['show', {root!r}]; sys.exit(headgates_start.main())"
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
