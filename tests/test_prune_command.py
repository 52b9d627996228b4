"""`headgates prune`: what it chooses, prints, writes and refuses. It runs in this process, as `main` does it."""

import json
import logging
import os
import re
import resource
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.models import assert_same, logits, make_batch, make_gated

from fairseq_headgates import HeadTable, checkpoints, head_sites, masked
from fairseq_headgates.checkpoints import build_model
from fairseq_headgates.cli import main as command
from fairseq_headgates.files import refuse_existing, replacing
from fairseq_headgates.heads import parse_scores
from fairseq_headgates.surgery import kept_mask

TYPES = ("enc-self", "dec-self", "dec-enc")
# Gates that are closed, open and between at evaluation: 0, 1, about 0.62.
C, O, F = -3.0, 3.0, 0.4  # noqa: E741
LOG_ALPHA = {
    "enc-self": [[C, O, F, O], [C, C, C, C]],
    "dec-self": [[O, C, C, F], [O, O, O, O]],
    "dec-enc": [[F, C, C, O], [F, C, O, C]],
}
OPEN = {kind: [[int(a != C) for a in row] for row in rows] for kind, rows in LOG_ALPHA.items()}
FULL = {kind: [[1] * 4] * 2 for kind in TYPES}


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def prune(capsys):
    """prune(*arguments, code=0): what the command leaves behind."""

    def prune(*arguments, code=0):
        capsys.readouterr()
        try:
            ended = command.main(["prune", *map(str, arguments)])
        except SystemExit as error:  # argparse's
            ended = error.code
        done = Done(ended, *capsys.readouterr())
        assert done.code == code, done
        return done

    return prune


@pytest.fixture
def refused(prune):
    """refused(*arguments, words): exit code 2, nothing printed but one line that holds these words."""

    def refused(*arguments, words):
        done = prune(*arguments, code=2)
        assert done.out == "" and done.err.count("\n") == 1, done
        assert done.err.startswith("headgates prune: error: ")
        assert [word for word in words if word not in done.err] == [], done.err
        return done

    return refused


def small_state(**options):
    """A checkpoint with the gates of `LOG_ALPHA`, and the optimiser of its training."""
    model = make_gated(gate_heads=",".join(TYPES), **options)
    model.args.arch = "transformer_head_gates"
    with torch.no_grad():
        for site in head_sites(model):
            site.attention.gate.theta.copy_(torch.tensor(LOG_ALPHA[site.kind][site.layer]) / 50)
    moments = {
        i: {"step": 5, "exp_avg": torch.randn_like(p), "exp_avg_sq": torch.rand_like(p)}
        for i, p in enumerate(model.parameters())
    }
    return {
        "args": None,
        "cfg": {"model": model.args},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 5, "criterion_name": "LabelSmoothedCrossEntropyL0Criterion"}],
        "extra_state": {},
        "last_optimizer_state": {"state": moments, "param_groups": [{"lr": 0.1, "params": list(moments)}]},
    }


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "gated.pt"
    torch.save(small_state(), path)
    return path


@pytest.fixture
def checkpoint(small_checkpoint, tmp_path):
    """In a folder of its own, where nothing but the outputs of the test may appear."""
    path = tmp_path / "gated.pt"
    path.write_bytes(small_checkpoint.read_bytes())
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def score_file(values, **more):
    return {"format": "headgates.scores/1", "method": "gradient", "signature": "gradient|x", "scores": values, **more}


def load(path):
    return build_model(torch.load(path))


def by_layer(rows):
    return " ".join(str(sum(row)) for row in rows)


# What it does


def test_open_heads_stay_by_default(checkpoint, prune):
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out)
    before, after = load(checkpoint), load(out)
    torch.testing.assert_close(logits(after, make_batch()), logits(before, make_batch()), atol=1e-5, rtol=1e-5)
    assert kept_mask(after).values == OPEN
    for kind, rows in OPEN.items():
        stay = sum(map(sum, rows))
        assert re.search(rf"^{kind} +8 +{stay} +{by_layer(rows)}$", done.out, re.MULTILINE), done.out
    total = sum(sum(map(sum, rows)) for rows in OPEN.values())
    assert re.search(rf"^total +24 +{total}$", done.out, re.MULTILINE)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (before, after)]
    assert f"parameters: {sizes[0]:,} -> {sizes[1]:,} ({100 * (sizes[1] / sizes[0] - 1):+.1f}%)" in done.out
    assert f"written: {out}" in done.out and done.err == ""
    assert names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    assert not re.search(r"output changes|loses all", done.out)
    (folded,) = re.findall(r"^.*gates between 0 and 1.*$", done.out, re.MULTILINE)
    assert "4" in folded


@pytest.mark.parametrize("form", [[], ["--stock"], ["--no-optimizer"]])
def test_a_dry_run_prints_the_same_and_writes_nothing(form, checkpoint, prune):
    out = checkpoint.with_name("pruned.pt")
    dry = prune(checkpoint, out, "--dry-run", *form)
    assert names(checkpoint.parent) == ["gated.pt"]
    wet = prune(checkpoint, out, *form)
    assert "nothing written (--dry-run)" in dry.out
    assert dry.out.splitlines()[:-1] == wet.out.splitlines()[:-1]
    out.write_text("mine")
    assert prune(checkpoint, out, "--dry-run", *form).out == dry.out  # it cannot hurt a file that is there
    assert prune(checkpoint, out.parent / "no" / "x.pt", "--dry-run", *form).out == dry.out
    assert out.read_text() == "mine"


@pytest.mark.parametrize("form", [[], ["--dry-run"]])
def test_the_plan_as_json(form, checkpoint, prune):
    out = checkpoint.with_name("pruned.pt")
    plan = json.loads(prune(checkpoint, out, "--json", *form).out)
    assert out.exists() == (not form)
    assert plan["mask"] == OPEN
    assert plan["heads"] == {kind: [8, sum(map(sum, rows))] for kind, rows in OPEN.items()}
    assert plan["folded_gates"] == sum(row.count(F) for rows in LOG_ALPHA.values() for row in rows)
    assert plan["removed_with_open_gate"] == 0
    before = sum(p.numel() for p in load(checkpoint).parameters())
    gone = 24 - sum(sum(map(sum, rows)) for rows in OPEN.values())
    # a head of 8 dimensions: rows of 32 weights and a bias for q, k and v, columns of the output; and every gate
    assert plan["parameters"] == [before, before - gone * 8 * (3 * 33 + 32) - 24]
    stay = {kind: sum(map(sum, rows)) for kind, rows in OPEN.items()}
    assert plan["cache_bytes_per_token"] == {kind: [8 * 64, number * 64] for kind, number in stay.items()}


def test_the_checkpoint_itself_can_be_replaced(checkpoint, prune):
    whole = load(checkpoint)
    prune(checkpoint, checkpoint, "--force")
    smaller = load(checkpoint)
    assert kept_mask(smaller).values == OPEN and names(checkpoint.parent) == ["gated.pt"]
    torch.testing.assert_close(logits(smaller, make_batch()), logits(whole, make_batch()), atol=1e-5, rtol=1e-5)


def test_the_state_of_the_optimiser_is_cut_or_left_out(checkpoint, prune):
    cut, without = checkpoint.with_name("cut.pt"), checkpoint.with_name("without.pt")
    prune(checkpoint, cut)
    prune(checkpoint, without, "--no-optimizer")
    state, bare = torch.load(cut), torch.load(without)
    shapes = [p.shape for p in build_model(state).parameters()]
    moments = state["last_optimizer_state"]["state"]
    assert [moments[i]["exp_avg"].shape for i in range(len(shapes))] == shapes
    assert bare["last_optimizer_state"] is None
    assert state["model"].keys() == bare["model"].keys()


def test_an_optimiser_that_is_not_known_is_left_out_with_a_notice(checkpoint, prune):
    state = torch.load(checkpoint, weights_only=False)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq_row"] = entry.pop("exp_avg_sq")[..., 0]
    torch.save(state, checkpoint)
    out, without = checkpoint.with_name("pruned.pt"), checkpoint.with_name("without.pt")
    done = prune(checkpoint, out)
    assert done.err == "headgates prune: the optimiser state is dropped: its form is unknown\n"
    assert "written" in done.out
    prune(checkpoint, without, "--no-optimizer")
    assert_same(torch.load(out, weights_only=False), torch.load(without, weights_only=False))
    assert prune(checkpoint, out, "--force", "--no-optimizer").err == ""


HISTORY = "optimizer_history"
ODD_STATES = {
    "an average of something else": ({"extra_state": {"ema": {"encoder.layers.0.fc1.weight": 3}}}, "ema is dropped"),
    "an average of other sizes": (
        {"extra_state": {"ema": {"encoder.layers.0.fc1.weight": torch.ones(2)}}},
        "ema is dropped: it does not have the weights of this model",
    ),
    "an average of other heads": (
        {"extra_state": {"ema": {"encoder.layers.0.self_attn.out_proj.weight": torch.ones(32, 8)}}},
        "ema is dropped: it does not have the weights of this model",
    ),
    "a number as criterion": ({HISTORY: [{"criterion_name": 3, "num_updates": 1}]}, ""),
    "a list as criterion": ({HISTORY: [{"criterion_name": ["x"]}]}, ""),
    "no history": ({HISTORY: []}, ""),
    "a list as entries": ({"last_optimizer_state": {"state": [1], "param_groups": [1]}}, "its form is unknown"),
    "text as groups": ({"last_optimizer_state": {"state": {}, "param_groups": "x"}}, "its form is unknown"),
    "text as moments": (
        {"last_optimizer_state": {"state": {0: "x"}, "param_groups": [{"params": list(range(86))}]}},
        "the optimiser state is dropped: ",
    ),
}


@pytest.mark.parametrize("kind", ODD_STATES)
def test_odd_states_beside_the_weights_do_no_harm(kind, checkpoint, prune):
    changes, notice = ODD_STATES[kind]
    torch.save({**torch.load(checkpoint, weights_only=False), **changes}, checkpoint)
    for name, form in (("pruned.pt", []), ("stock.pt", ["--stock"])):
        done = prune(checkpoint, checkpoint.with_name(name), *form)
        assert done.err.count("\n") == bool(notice) and notice in done.err or form and not done.err
        expected = logits(load(checkpoint), make_batch())
        torch.testing.assert_close(logits(load(checkpoint.with_name(name)), make_batch()), expected)


@pytest.mark.parametrize("key", ["optimizer_history", "extra_state", "last_optimizer_state", "cfg", "args"])
@pytest.mark.parametrize("value", [7, "x", [1], ["x"]])
def test_odd_parts_of_a_checkpoint_end_with_one_line(key, value, checkpoint, refused):
    torch.save({**torch.load(checkpoint, weights_only=False), key: value}, checkpoint)
    refused(checkpoint, checkpoint.with_name("pruned.pt"), words=[str(checkpoint)])
    assert names(checkpoint.parent) == ["gated.pt"]


def test_a_mask_from_a_file_or_inline(checkpoint, prune):
    """Heads with a closed gate go in any case; that open ones go is said."""
    mask = {"enc-self": [[1, 1, 0, 0], [1, 1, 1, 1]], "dec-enc": [[0, 0, 0, 0], [1, 1, 1, 1]]}
    expected = {
        kind: [
            [a * b for a, b in zip(*pair, strict=True)]
            for pair in zip(OPEN[kind], mask.get(kind, FULL[kind]), strict=True)
        ]
        for kind in TYPES
    }
    file = write(checkpoint.with_name("heads.json"), {"format": "headgates.heads/1", **mask})
    for i, given in enumerate((file, json.dumps(mask))):
        out = checkpoint.with_name(f"{i}.pt")
        done = prune(checkpoint, out, "--alive", given)
        assert kept_mask(load(out)).values == expected
        assert "the output changes" in done.out
        (line,) = (line for line in done.out.splitlines() if "the output changes" in line)
        assert "4" in line  # two of layer 0 of the encoder, two of layer 0 of the decoder
    model = load(checkpoint)
    with masked(model, HeadTable(mask)):
        torch.testing.assert_close(logits(load(out), make_batch()), logits(model, make_batch()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("threshold", "values"), [(0, (C, O, F)), (0.5, (O, F)), (0.9, (O,)), (1, ())])
def test_a_threshold_on_the_probability(threshold, values, checkpoint, prune):
    """P(open) is about 0.10, 0.77 and 0.98; a gate that is 0 at evaluation goes in any case."""
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out, "--threshold", threshold)
    expected = {k: [[int(a in values and a != C) for a in row] for row in rows] for k, rows in LOG_ALPHA.items()}
    assert kept_mask(load(out)).values == expected
    assert ("the output changes" in done.out) == (threshold > 0.5)
    assert done.out.count("loses all its heads") == (3 if threshold == 1 else 0)


SCORES = {
    "enc-self": [[9, 1, 2, 3], [9, 9, 9, 9]],
    "dec-self": [[4, 9, 9, 5], [6, 7, 8, 0.5]],
    "dec-enc": [[0.1, 9, 9, 0.2], [0.3, 9, 0.4, 9]],
}
RANKED = sorted(  # of the heads whose gate is open, the best first
    (
        (kind, i, j)
        for kind in TYPES
        for i, row in enumerate(OPEN[kind])
        for j, there in enumerate(row)
        if there
    ),
    key=lambda head: -SCORES[head[0]][head[1]][head[2]],
)  # fmt: skip


def mask_of(heads):
    return {kind: [[int((kind, i, j) in heads) for j in range(4)] for i in range(2)] for kind in TYPES}


@pytest.mark.parametrize(
    ("keep", "number"), [("5", 5), ("0.5", 6), ("1.0", 13), ("13", 13), ("1", 1), ("0", 0), ("0.0", 0)]
)
def test_the_best_by_their_scores(keep, number, checkpoint, prune):
    """Of the 13 heads that are open; closed ones are no candidates, however high their score is."""
    assert len(RANKED) == 13
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    out = checkpoint.with_name("pruned.pt")
    prune(checkpoint, out, "--scores", scores, "--keep", keep)
    assert kept_mask(load(out)).values == mask_of(RANKED[:number])


def test_the_best_of_some_types_and_of_every_layer(checkpoint, prune):
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    some, each = checkpoint.with_name("some.pt"), checkpoint.with_name("each.pt")
    prune(checkpoint, some, "--scores", scores, "--keep", 2, "--types", "dec-self")
    best = [head for head in RANKED if head[0] == "dec-self"][:2]
    others = [head for head in RANKED if head[0] != "dec-self"]
    assert kept_mask(load(some)).values == mask_of([*best, *others])
    prune(checkpoint, each, "--scores", scores, "--keep", 6, "--min-per-layer", 1)
    first = {head[:2]: head for head in reversed(RANKED)}  # one of each layer: 5 layers have heads
    rest = [head for head in RANKED if head not in first.values()]
    assert len(first) == 5
    assert kept_mask(load(each)).values == mask_of([*first.values(), rest[0]])


def test_a_type_may_lose_all_its_heads_and_that_is_said(checkpoint, prune):
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out, "--scores", scores, "--keep", 5)
    lost = [line for line in done.out.splitlines() if "loses all its heads" in line]
    assert len(lost) == 2 and lost[0].startswith("enc-self") and lost[1].startswith("dec-enc")
    assert logits(load(out), make_batch()).isfinite().all()


def test_one_of_several_methods(checkpoint, prune, refused):
    other = {kind: [[-v for v in row] for row in rows] for kind, rows in SCORES.items()}
    tables = [score_file(SCORES), score_file(other, method="ablation")]
    scores = write(checkpoint.with_name("scores.json"), tables)
    out = checkpoint.with_name("pruned.pt")
    refused(checkpoint, out, "--scores", scores, "--keep", 3, words=["gradient, ablation", "--method"])
    refused(checkpoint, out, "--scores", scores, "--keep", 3, "--method", "x", words=["'x'", "gradient, ablation"])
    prune(checkpoint, out, "--scores", scores, "--keep", 3, "--method", "ablation")
    assert kept_mask(load(out)).values == mask_of(RANKED[-3:])


def test_pruned_again_heads_keep_their_numbers(checkpoint, prune, refused):
    first, second = checkpoint.with_name("1.pt"), checkpoint.with_name("2.pt")
    prune(checkpoint, first)
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    done = prune(first, second, "--scores", scores, "--keep", 4)
    assert kept_mask(load(second)).values == mask_of(RANKED[:4])
    assert re.search(r"^total +13 +4$", done.out, re.MULTILINE)
    refused(first, checkpoint.with_name("3.pt"), "--scores", scores, "--keep", 14, words=["14", "from 0 to 13"])


def test_show_reads_what_prune_writes(checkpoint, prune, capsys):
    out, heads = checkpoint.with_name("pruned.pt"), checkpoint.with_name("heads.json")
    prune(checkpoint, out)
    assert command.main(["show", str(out), "--json", "--out", str(heads)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gate"] == OPEN and shown["gated"] == []
    assert {kind: shown["heads"][kind] for kind in TYPES} == {k: [sum(map(sum, v)), 8] for k, v in OPEN.items()}
    again = checkpoint.with_name("again.pt")
    prune(checkpoint, again, "--alive", heads)
    first, second = torch.load(out), torch.load(again)
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])


# What it refuses


@pytest.mark.parametrize("form", [[], ["--dry-run"], ["--stock"]])
def test_a_checkpoint_is_not_printed(form, checkpoint, refused, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    refused(checkpoint, "-", *form, words=["'-'", "standard output", "./-"])
    refused(checkpoint, "", *form, words=["OUT", "empty"])
    refused("", "x.pt", *form, words=["CKPT", "empty"])
    assert names(checkpoint.parent) == ["gated.pt"]


def test_a_link_is_written_through(checkpoint, prune, refused):
    folder, link = checkpoint.with_name("folder"), checkpoint.with_name("link.pt")
    folder.mkdir()
    link.symlink_to("folder/pruned.pt")
    prune(checkpoint, link)
    assert link.is_symlink() and kept_mask(load(folder / "pruned.pt")).values == OPEN
    refused(checkpoint, link, words=["link.pt exists", "--force"])
    device = checkpoint.with_name("null")
    device.symlink_to("/dev/null")
    refused(checkpoint, device, "--force", words=["not a file"])
    assert device.is_symlink() and names(folder) == ["pruned.pt"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_and_says_so(number, checkpoint, prune, monkeypatch):
    def save(state, path):
        Path(path).write_bytes(b"half of it")
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr(torch, "save", save)
    done = prune(checkpoint, checkpoint.with_name("pruned.pt"), code=128 + number)
    assert done.err == "headgates prune: stopped\n" and names(checkpoint.parent) == ["gated.pt"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_ignored_signal_stays_ignored(checkpoint, prune, monkeypatch):
    """As under nohup."""

    def save(state, path, original=torch.save):
        os.kill(os.getpid(), signal.SIGHUP)
        original(state, path)

    monkeypatch.setattr(torch, "save", save)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        prune(checkpoint, checkpoint.with_name("pruned.pt"))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_existing_file_is_kept_and_nothing_is_done_first(checkpoint, refused, prune, monkeypatch):
    out = write(checkpoint.with_name("pruned.pt"), "mine")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "load_model", lambda *args: pytest.fail("it began to work"))
        refused(checkpoint, out, words=[str(out), "exists", "--force"])
    assert out.read_text() == "mine"
    prune(checkpoint, out, "--force")
    assert kept_mask(load(out)).values == OPEN


def break_off(error):
    def save(state, path):
        Path(path).write_bytes(b"half of it")
        raise error

    return save


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("file write failed\nat inline_container.cc")]
)
def test_a_full_disk_leaves_nothing(error, existing, checkpoint, refused, monkeypatch):
    out = checkpoint.with_name("pruned.pt")
    if existing:
        out.write_text("mine")
    monkeypatch.setattr(torch, "save", break_off(error))
    refused(checkpoint, out, "--force", words=["cannot write", str(out)])
    assert names(checkpoint.parent) == ["gated.pt", *(["pruned.pt"] if existing else [])]
    assert not existing or out.read_text() == "mine"


def test_a_file_that_may_not_grow_leaves_nothing(checkpoint, refused):
    """A failure of the system itself."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        refused(checkpoint, checkpoint.with_name("pruned.pt"), words=["cannot write", "pruned.pt"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(checkpoint.parent) == ["gated.pt"]


def test_an_interruption_leaves_nothing(checkpoint, monkeypatch, prune):
    monkeypatch.setattr(torch, "save", break_off(KeyboardInterrupt()))
    assert prune(checkpoint, checkpoint.with_name("pruned.pt"), code=130).err == "headgates prune: stopped\n"
    assert names(checkpoint.parent) == ["gated.pt"]


def test_folders_that_cannot_be_written_to(checkpoint, refused):
    refused(checkpoint, checkpoint.parent / "no" / "x.pt", words=["cannot write", "/no/x.pt"])
    refused(checkpoint, "/proc/headgates.pt", words=["cannot write", "/proc/headgates.pt"])  # not even root may
    folder = checkpoint.with_name("folder")
    folder.mkdir()
    refused(checkpoint, folder, words=["exists"])
    refused(checkpoint, folder, "--force", words=["not a file"])
    assert names(checkpoint.parent) == ["folder", "gated.pt"] and names(folder) == []


@pytest.mark.parametrize("name", ["gated.pt/x.pt", "x" * 250, "x" * 300], ids=["in a file", "long", "too long"])
def test_names_that_cannot_be_written_to(name, checkpoint, refused):
    refused(checkpoint, checkpoint.parent / name, words=["cannot write"])


def test_what_is_no_file_is_not_replaced(checkpoint, refused):
    pipe = checkpoint.with_name("pipe")
    os.mkfifo(pipe)
    refused(checkpoint, pipe, "--force", words=["pipe", "not a file"])
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def mask(**rows):
    return json.dumps({kind.replace("_", "-"): layers for kind, layers in rows.items()})


FOUR = [1, 1, 1, 1]
BAD_MASKS = {
    "layers": (mask(enc_self=[FOUR]), ["the mask does not fit", "enc-self has 1 layers, the model has 2"]),
    "heads": (mask(dec_enc=[FOUR, [1, 1]]), ["dec-enc layer 1 has 2 heads, the model has 4"]),
    "all at once": (mask(dec_enc=[FOUR, [1]], enc_self=[FOUR]), ["dec-enc layer 1", "enc-self has 1 layers"]),
    "a half": (mask(enc_self=[FOUR, [1, 1, 1, 0.5]]), ["layer 1", "0.5"]),
    "unknown type": (mask(encoder=[FOUR, FOUR]), ["'encoder'", "enc-self"]),
    "no file": ("no/such.json", ["'no/such.json'", "No such file"]),
    "no JSON": ('{"enc-self"', ["JSON"]),
}


@pytest.mark.parametrize(("text", "words"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_bad_masks(text, words, checkpoint, refused):
    refused(checkpoint, checkpoint.with_name("x.pt"), "--alive", text, words=words)
    assert names(checkpoint.parent) == ["gated.pt"]


NAN = float("nan")
BAD_SCORES = {
    "layers": (score_file({"enc-self": [[1, 2, 3, 4]]}), ["the score file does not fit", "1 layers, the model has 2"]),
    "heads": (score_file({"dec-enc": [[1, 2, 3, 4], [1]]}), ["dec-enc layer 1 has 1 heads, the model has 4"]),
    "unknown type": (score_file({"encoder": [[1]]}), ["'encoder'", "enc-self"]),
    "nan": (score_file({"enc-self": [[1, 2, NAN, 4]] * 2}), ["enc-self layer 0", "nan", "finite"]),
    "infinite": (score_file({"enc-self": [[1, 2, 3, 4], [1, 2, 3, float("inf")]]}), ["layer 1", "inf"]),
    "true": (score_file({"enc-self": [[1, 2, 3, True]] * 2}), ["True", "finite numbers"]),
    "text": (score_file({"enc-self": [[1, 2, 3, "4"]] * 2}), ["'4'"]),
    "no lists": (score_file({"enc-self": [1, 2]}), ["one list of numbers for every layer"]),
    "no scores": (score_file({}), ["holds no scores"]),
    "no format": ({"scores": SCORES}, ["not a score file", "'headgates.scores/1'"]),
    "a mask": ({"format": "headgates.heads/1", **OPEN}, ["not a score file"]),
    "a number": ("7", ["not a score file"]),
    "no JSON": ("{", ["not JSON"]),
    "two of the same": ([score_file(SCORES)] * 2, ["gradient", "--method"]),
}


@pytest.mark.parametrize(("content", "words"), BAD_SCORES.values(), ids=BAD_SCORES)
def test_bad_scores(content, words, checkpoint, refused):
    file = write(checkpoint.with_name("scores.json"), content)
    refused(checkpoint, checkpoint.with_name("x.pt"), "--scores", file, "--keep", 3, words=words)
    assert names(checkpoint.parent) == ["gated.pt", "scores.json"]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, json.dumps(score_file({"enc-self": [[1, 2, 3, 10**400]] * 2}))],
    ids=["nested", "a number without end"],
)
def test_monstrous_scores(text, checkpoint, refused):
    file = write(checkpoint.with_name("scores.json"), text)
    refused(checkpoint, checkpoint.with_name("x.pt"), "--scores", file, "--keep", 3, words=["scores.json"])


BAD_OPTIONS = {
    "keep alone": (["--keep", "3"], ["--keep without --scores"]),
    "all of them alone": (
        ["--method", "x", "--types", "enc-self", "--min-per-layer", "1"],
        ["--method, --types, --min-per-layer without --scores"],
    ),
    "keep with a mask": (["--alive", mask(enc_self=[FOUR, FOUR]), "--keep", "3"], ["--keep without --scores"]),
    "keep with a threshold": (["--threshold", "0.5", "--keep", "3"], ["--keep without --scores"]),
    "scores alone": (["--scores", "SCORES"], ["--scores without --keep", "--keep 12"]),
    "too many": (["--scores", "SCORES", "--keep", "14"], ["keep is 14: it must be from 0 to 13"]),
    "fewer than none": (["--scores", "SCORES", "--keep", "-1"], ["keep is -1"]),
    "a share above 1": (["--scores", "SCORES", "--keep", "1.5"], ["1.5", "from 0 to 1"]),
    "a share below 0": (["--scores", "SCORES", "--keep", "-0.5"], ["-0.5", "from 0 to 1"]),
    "missing type": (["--scores", "SOME", "--keep", "3", "--types", "dec-enc"], ["no scores of dec-enc", "enc-self"]),
    "unknown type": (["--scores", "SCORES", "--keep", "3", "--types", "enc"], ["'enc'", "enc-self"]),
    "too many per layer": (
        ["--scores", "SCORES", "--keep", "3", "--min-per-layer", "2"],
        ["min-per-layer 2 keeps 10 heads, more than keep, 3"],
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
def test_options_that_do_not_fit(options, words, checkpoint, refused):
    refused(checkpoint, checkpoint.with_name("x.pt"), *with_files(options, checkpoint.parent), words=words)
    assert not checkpoint.with_name("x.pt").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threshold", "0.5", "--alive", "{}"], ["--alive: not allowed with argument --threshold"]),
        (["--alive", "{}", "--scores", "x"], ["--scores: not allowed with argument --alive"]),
        (["--threshold", "0.5", "--scores", "x"], ["--scores: not allowed with argument --threshold"]),
        (["--scores", "x", "--keep", "many"], ["'many' is neither a number of heads (12) nor a share (0.5)"]),
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
def test_a_variable_that_is_not_set_is_no_wish(options, checkpoint, refused):
    """`--alive "$HEADS"` with no $HEADS must not prune by something else."""
    refused(checkpoint, checkpoint.with_name("x.pt"), *with_files(options, checkpoint.parent), words=[])


def test_a_negative_number_of_heads_per_layer(checkpoint, refused):
    options = with_files(["--scores", "SCORES", "--keep", "3", "--min-per-layer", "-1"], checkpoint.parent)
    refused(checkpoint, checkpoint.with_name("x.pt"), *options, words=["-1"])


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
def test_no_checkpoint(kind, checkpoint, refused, tmp_path):
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


def test_the_command_gives_the_level_of_messages_back(prune, tmp_path):
    logger = logging.getLogger("fairseq_headgates")
    before = logger.level
    prune(tmp_path / "missing.pt", tmp_path / "out.pt", code=2)
    assert logger.level == before


def test_the_program_itself(checkpoint, run):
    """The same as a command of its own: exit codes and streams."""
    out = checkpoint.with_name("out.pt")
    assert "written" in run("headgates", "prune", checkpoint, out).out
    failed = run("headgates", "prune", checkpoint, out, code=2)
    assert failed.out == "" and failed.err.splitlines()[-1].startswith("headgates prune: error: ")
    assert "Traceback" not in failed.err
    usage = run("headgates", "prune", "--help").out
    assert all(option in usage for option in ("--alive", "--threshold", "--scores", "--keep", "--stock", "--dry-run"))


# The parts


def test_scores_are_read(tmp_path):
    file = write(tmp_path / "s.json", score_file({"dec-enc": [[0.5, -1]], "enc-self": [[1, 2]]}))
    table = parse_scores(str(file))
    assert table == HeadTable({"enc-self": [[1, 2]], "dec-enc": [[0.5, -1]]}, "gradient", "gradient|x")
    assert parse_scores(str(file), "gradient") == table
    both = write(tmp_path / "b.json", [score_file({"enc-self": [[1]]}), score_file({"enc-self": [[2]]}, method="b")])
    assert parse_scores(str(both), "b").values == {"enc-self": [[2]]}
    bare = write(tmp_path / "c.json", {"format": "headgates.scores/1", "scores": {"enc-self": [[1]]}})
    assert parse_scores(str(bare)) == HeadTable({"enc-self": [[1]]}, "", "")


def test_an_empty_list_of_scores_is_said_to_be_empty(tmp_path):
    with pytest.raises(ValueError, match="holds no scores"):
        parse_scores(str(write(tmp_path / "s.json", [])))


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as temporary:
        temporary.write_text("first")
        assert not path.exists() and temporary.parent == path.parent  # the same file system: renaming is one step
    assert path.read_text() == "first"
    with pytest.raises(ValueError, match="exists.*--force"), replacing(path):
        pytest.fail("it should not begin")
    for error in (KeyboardInterrupt(), ZeroDivisionError(), SystemExit(1)):
        with pytest.raises(type(error)), replacing(path, force=True) as temporary:
            temporary.write_text("half")
            raise error
    assert path.read_text() == "first" and names(tmp_path) == ["a"]
    with replacing(path, force=True) as temporary:
        temporary.write_text("second")
    assert path.read_text() == "second" and names(tmp_path) == ["a"]


def test_existing_files_are_refused(tmp_path):
    refuse_existing(tmp_path / "a", force=False)
    write(tmp_path / "a", "x")
    refuse_existing(tmp_path / "a", force=True)
    with pytest.raises(ValueError, match="exists: choose another name, or pass --force"):
        refuse_existing(tmp_path / "a", force=False)
