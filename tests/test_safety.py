"""Checkpoints from strangers: nothing in them runs code, opens a file, hangs or crashes.

Hostile files are tried in child processes with limits; code that ran would leave a file behind.
"""

import argparse
import ast
import collections
import copy
import importlib.util
import os
import pickle
import re
import struct
import typing
import zipfile
from pathlib import Path

import numpy
import omegaconf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.commands import EVALUATION
from support.models import make_args, make_gated, make_stock, make_task

from fairseq_headgates.checkpoints import build_model, load_checkpoint
from fairseq_headgates.checkpoints.sizes import check_sizes
from fairseq_headgates.safety import check_evaluated, load_file, model_options
from fairseq_headgates.safety.objects import STORED, safe_globals
from fairseq_headgates.safety.options import EVALUATED, LITERAL, NUMBERS, transformer_options


def small_state(form="args", **options):
    """A checkpoint of a small model whose options are a Namespace (`args`, or in `cfg`) or a dictionary (`dict`)."""
    model = make_gated(gate_heads="enc-self") if form == "gated" else make_stock()
    own = {"arch": "transformer_head_gates", "gate_heads": "enc-self"} if form == "gated" else {"arch": "transformer"}
    args = argparse.Namespace(**{**vars(make_args()), "task": "translation", **own, **options})
    state = {
        "args": None,
        "cfg": None,
        "model": model.state_dict(),
        "optimizer_history": [
            {"criterion_name": "X", "optimizer_name": "Y", "lr_scheduler_state": {}, "num_updates": 3}
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
    if form == "args":
        state["args"] = args
    elif form == "cfg":
        state["cfg"] = {"model": args, "task": {"_name": "translation"}}
    else:
        state["cfg"] = {"model": {**vars(args), "_name": args.arch}, "task": {"_name": "translation"}}
    return state


def save(state, path):
    torch.save(state, path)
    return path


def touch(trace):
    """Python text that leaves `trace` behind."""
    return f"__import__('pathlib').Path({str(trace)!r}).touch() or [10]"


# --- code ------------------------------------------------------------------------------------------------------------

BY_TRANSFORMERS = (
    "adaptive_softmax_cutoff adaptive_input_cutoff encoder_xformers_att_config decoder_xformers_att_config "
    "encoder_layers decoder_layers"
).split()


@pytest.mark.parametrize("form", ["args", "cfg", "dict", "gated"])
@pytest.mark.parametrize("option", BY_TRANSFORMERS)
def test_options_that_fairseq_evaluates_run_no_code(option, form, attempts, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    save(small_state(form, **{option: touch(trace)}), path)
    shown = attempts.run("headgates", "show", path)
    assert shown.refused and option in shown.err and "evil.pt" in shown.err, shown
    assert not trace.exists()


@pytest.mark.parametrize("option", ["adaptive_softmax_cutoff", "xformers_att_config"])
def test_nested_options_run_no_code(option, attempts, tmp_path):
    """As hydra stores them: `encoder` and `decoder` are dictionaries of their own."""
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    for side in ("encoder", "decoder"):
        state = small_state("dict")
        state["cfg"]["model"][side] = {option: touch(trace)}
        assert attempts.run("headgates", "show", save(state, path)).refused
    assert not trace.exists()


OTHERS = ["adam_betas", "adafactor_eps", "lamb_betas", "wer_args", "conv_feature_layers", "left_pad_source"]


@pytest.mark.parametrize("option", [*BY_TRANSFORMERS, *OTHERS])
@pytest.mark.parametrize("form", ["args", "cfg"])
def test_fairseqs_own_commands_refuse_a_namespace_that_runs_code(form, option, toy, attempts, tmp_path):
    """torch refuses a Namespace; that it is allowed with --user-dir must not open a way."""
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    save(small_state(form, **{option: touch(trace)}), path)
    ended = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
    assert ended.code != 0 and option in ended.err, ended
    assert not trace.exists()


def test_fairseqs_own_commands_refuse_our_architecture_with_code_in_a_dictionary(toy, attempts, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    for option in BY_TRANSFORMERS:
        save(small_state("gated", **{option: touch(trace)}), path)
        ended = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
        assert ended.code == 2 and option in ended.err, ended
        assert not trace.exists()


def test_a_configuration_of_omegaconf_is_checked_as_a_namespace_is(tmp_path):
    """It is allowed for several workers, which send options to each other."""
    for good in ({"a": 1, "b": [1, {"c": "${a}"}], "n": None}, {"m": argparse.Namespace(x=1)}):
        config = OmegaConf.create(good, flags={"allow_objects": True})
        loaded = torch.load(save(config, tmp_path / "c.pt"))
        assert type(loaded) is omegaconf.DictConfig and loaded == config
        assert torch.load(save(loaded, tmp_path / "again.pt")) == config
    loaded = torch.load(save(OmegaConf.create({"a": 1, "b": "${a}"}), tmp_path / "c.pt"))
    assert loaded.b == 1 and loaded.a == 1
    for evil in (
        {"adam_betas": "print(1)"},
        {"m": {"character_filters": "print(1)"}},
        {"l": [{"wer_args": "print(1)"}]},
    ):
        with pytest.raises(ValueError, match="fairseq passes it to eval"):
            torch.load(save(OmegaConf.create(evil), tmp_path / "c.pt"))


def test_what_is_checked_cannot_be_changed_afterwards(tmp_path):
    """Later instructions of a pickle reach the containers that were checked, unless they were copied."""
    inner = {"encoder_layers": 2}
    raw = pickle.dumps([argparse.Namespace(encoder=inner), inner], protocol=2)
    assert raw.endswith(b"e.")  # the list of both is complete; `inner` is the last on the stack before
    raw = raw[:-2] + b"X\x0e\x00\x00\x00encoder_layersX\x08\x00\x00\x00print(1)se."
    path = tmp_path / "late.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("late/data.pkl", raw)
        archive.writestr("late/version", "3\n")
        archive.writestr("late/byteorder", "little")
    namespace, changed = torch.load(path, weights_only=True)
    assert changed["encoder_layers"] == "print(1)" and namespace.encoder["encoder_layers"] == 2


def test_every_option_that_fairseq_evaluates_is_known():
    """Calls of eval in the installed fairseq, examples aside, take options that `EVALUATED` names."""
    folder = Path(importlib.util.find_spec("fairseq").origin).parent
    found = set()
    for path in folder.rglob("*.py"):
        if "examples" in path.relative_to(folder).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            is_builtin = isinstance(node.func, ast.Name) and name == "eval"
            if is_builtin or name in ("eval_str_list", "eval_str_dict", "eval_bool"):
                argument = node.args[0]
                found.add(argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "?"))
    # x, uf: of these functions themselves and of the command line; ?: a line of a data file (data/codedataset.py)
    assert found - {"x", "uf", "?"} <= set(EVALUATED), found - set(EVALUATED)
    assert {"adaptive_softmax_cutoff", "adam_betas", "xformers_att_config", "decoder_layers"} <= found


LITERALS = ["10000,20000", "[1, 2]", "(0.9, 0.98)", "5", " 7 ", "-1", "1e-30,1e-3"]
PRODUCTS = ["[(512, 3)] * 20", "[(512, 3)] * 20 + [(1, 1)]", "'text'", "{'a': [1]}", "True", "None"]
CODE = [
    "print(1)", "__import__('os')", "[].__class__", "x", "lambda: 0", "[i for i in (1,)]", "f'{1}'", "(yield)",
    "1 if 1 else 2", "9**9**9", "{**x}", "1;2", "", "\0", "*[1]", "a.b", "a[0]", "not 1", "~1", "1 < 2", "...",
    "b'' % 1", "1 and 2", "None or print(1)", "-print(1)", "{print(1): 1}", "[print(1)] * 2",
]  # fmt: skip
BOMBS = [
    "[1] * 10**9", "[1] * 99999999", "[[1] * 9999] * 9999", "(" * 500, "[" * 9000, "1" * 20_000, "'a' * 99999",
    "-" * 9000 + "1", "1+" * 4999 + "1", "not " * 2000 + "1",
]  # fmt: skip


@pytest.mark.parametrize("text", LITERALS)
def test_numbers_are_accepted(text):
    check_evaluated({"adam_betas": text, "adaptive_softmax_cutoff": text, "wer_args": text})


@pytest.mark.parametrize("text", PRODUCTS)
def test_other_literals_are_accepted_where_fairseq_has_them(text):
    check_evaluated({"conv_feature_layers": text, "decoder_attention": text})
    if "[(" not in text:
        with pytest.raises(ValueError, match="must be a number"):
            check_evaluated({"adam_betas": text if text != "True" else "'True'"})


@pytest.mark.parametrize("text", [*CODE, *BOMBS], ids=lambda text: text[:20])
def test_anything_else_is_refused(text):
    for name in ("adam_betas", "conv_feature_layers", "adaptive_softmax_cutoff"):
        with pytest.raises(ValueError, match=f"stored option {name} is .*must be"):
            check_evaluated({"deep": [{"er": {name: text}}]})


@given(st.text(max_size=60))
def test_whatever_is_accepted_is_a_literal(text):
    for name, kind in (("adam_betas", NUMBERS), ("wer_args", LITERAL)):
        try:
            check_evaluated({name: text})
        except ValueError:
            continue
        value = eval(text, {"__builtins__": {}})  # without names there is nothing that it could call
        assert kind == LITERAL or numpy.asarray(value, dtype=float).size >= 0


@pytest.mark.parametrize(
    "value", [b"print(1)", bytearray(b"print(1)"), numpy.array([112], "u1"), [b"1"], {b"a": 1}, {1}]
)
def test_what_eval_takes_beside_text_is_refused(value, tmp_path):
    """`eval` reads code from anything that has bytes."""
    for name in ("adam_betas", "left_pad_source", "decoder_layers"):
        with pytest.raises(ValueError, match=f"stored option {name}"):
            check_evaluated({"task": {name: value}})
    state = small_state("dict")
    state["cfg"]["task"] = {"_name": "multilingual_translation", "left_pad_source": value}
    with pytest.raises(ValueError, match="is not loaded: "):
        load_checkpoint(str(save(state, tmp_path / "a.pt")))
    with pytest.raises(ValueError, match="passes it to eval|BUILD"):
        torch.load(save(argparse.Namespace(encoder_layers=value), tmp_path / "b.pt"))


def test_options_that_are_too_many_or_too_deep_are_refused():
    laughs = deep = []
    for _ in range(12):
        laughs = [laughs] * 10
    for _ in range(100):
        deep = [deep]
    for options in (laughs, deep):
        with pytest.raises(ValueError, match="stored"):
            check_evaluated({"options": options})


# --- objects ---------------------------------------------------------------------------------------------------------


def test_the_allow_list_is_no_wider_than_fairseqs_files_need(tmp_path):
    """The whole list. A name may be added only with a file of fairseq's own that needs it."""
    assert set(STORED) == {
        "argparse.Namespace",
        "numpy.ndarray", "numpy.dtype",
        "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
        "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.nodes.AnyNode",
        "omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata",
        "typing.Any", "collections.defaultdict", "builtins.dict", "builtins.list", "builtins.int",
    }  # fmt: skip
    load_file(save({}, tmp_path / "x.pt"))  # which must leave the list as it is
    allowed = {f"{item.__module__}.{item.__qualname__}": item for item in torch.serialization.get_safe_globals()}
    ours = {f"{item.__module__}.{item.__qualname__}" for item in safe_globals()}
    assert ours - set(STORED) == {"fairseq.distributed.utils._TensorPlaceholder"}
    assert ours <= set(allowed)
    real = {argparse.Namespace, numpy.ndarray, numpy.dtype, collections.defaultdict, typing.Any, list, dict, int}
    assert not real & set(allowed.values()), "the real class takes what is not checked"


def raw_pickle(path, *instructions):
    """A checkpoint whose pickle is made of these instructions."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"".join(instructions) + b".")
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")
    return path


def bytes_of(data):
    return b"U" + bytes([len(data)]) + data


DTYPE = b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R"
POINTERS = {
    "the constructor": [b"cbuiltins\nlist\ncnumpy\nndarray\nK\x01\x85", DTYPE, bytes_of(b"ABCDEFGH"), b"\x87R\x85R"],
    "its state": [
        b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85", bytes_of(b"b"), b"\x87R",
        b"(K\x01K\x01\x85", DTYPE, b"\x89", bytes_of(b"ABCDEFGH"), b"tb",
    ],
    "a scalar": [b"cnumpy._core.multiarray\nscalar\n", DTYPE, bytes_of(b"ABCDEFGH"), b"\x86R"],
}  # fmt: skip


@pytest.mark.parametrize("kind", POINTERS)
def test_numpy_takes_no_pointers_from_a_file(kind, toy, attempts, tmp_path):
    path = raw_pickle(tmp_path / "pointer.pt", *POINTERS[kind])
    shown = attempts.run("headgates", "show", path)
    assert shown.refused, shown
    generated = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
    assert generated.code == 1 and "only numbers are allowed" in generated.err, generated  # no signal


ARRAYS = [
    numpy.array(5), numpy.arange(6).reshape(2, 3), numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    numpy.array([True, False]), numpy.array(2.5, dtype=">f4"), numpy.zeros((1, 3), dtype="u2"),
]  # fmt: skip


@pytest.mark.parametrize("value", [*ARRAYS, numpy.float64(1.5), numpy.int32(-7), numpy.bool_(True)])
def test_counters_of_numpy_come_back_as_they_were(value, tmp_path):
    path = tmp_path / "counter.pt"
    for _ in range(2):  # what was loaded is saved as an ordinary array
        value = torch.load(save({"x": value}, path))["x"]
        names = re.findall(rb"c([\w.]+)\n(\w+)\n", zipfile.ZipFile(path).read("counter/data.pkl"))
        assert {module.split(b".")[0] for module, _ in names} <= {b"numpy", b"_codecs"}


@pytest.mark.parametrize("value", [*ARRAYS, numpy.float64(1.5)])
def test_counters_of_numpy_are_equal(value, tmp_path):
    loaded = torch.load(save(value, tmp_path / "counter.pt"))
    numpy.testing.assert_array_equal(loaded, value)
    assert loaded.dtype == value.dtype.newbyteorder("=") and (loaded + 1 == value + 1).all()


@pytest.mark.parametrize(
    "value",
    [
        numpy.array(["a"]),
        numpy.array([None]),
        numpy.array([1], dtype=[("a", "i4")]),
        numpy.array(["2020-01-01"], "M8[D]"),
        numpy.zeros(2**18),
    ],
)
def test_other_arrays_are_refused(value, tmp_path):
    with pytest.raises(ValueError, match="numpy"):
        load_file(save({"x": value}, tmp_path / "a.pt"))


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["alive_heads", "encoder_embed_path", "decoder_embed_path", "data", "user_dir"])
def test_stored_options_open_nothing(option, attempts, tmp_path):
    """A pipe that nobody writes to: whoever opens it waits for ever. As a module, the folder would leave a trace."""
    pipe, trace, path = tmp_path / "pipe", tmp_path / "trace", tmp_path / "evil.pt"
    os.mkfifo(pipe)
    value = pipe
    if option == "user_dir":
        value = tmp_path / "plugin"
        value.mkdir()
        (value / "__init__.py").write_text(touch(trace))
    for form in ("args", "dict", "gated"):
        state = small_state(form, **{option: str(value)})
        if state["cfg"]:
            state["cfg"] |= {"common": {"user_dir": str(value)}, "task": {"_name": "translation", "data": str(value)}}
        save(state, path)
        for command in (["show", path], ["prune", path, tmp_path / "out.pt", "--force"],
                        ["prune", path, tmp_path / "out.pt", "--force", "--stock"],
                        ["convert", path, tmp_path / "out", "--to", "ctranslate2"]):  # fmt: skip
            ended = attempts.run("headgates", *command)
            assert ended.orderly, (command, ended)
            assert ended.code == (2 if option == "alive_heads" or command[0] == "convert" else 0), (command, ended)
    assert not trace.exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_only_regular_files_are_read(kind, attempts, tmp_path):
    path = {"device": Path("/dev/zero"), "folder": tmp_path}.get(kind, tmp_path / "x.pt")
    if kind == "pipe":
        os.mkfifo(path)
    ended = attempts.run("headgates", "show", path)
    assert ended.refused and "cannot read the checkpoint" in ended.err, ended


# --- sizes -----------------------------------------------------------------------------------------------------------

WRONG = {
    "encoder_layers": [10**9, 3, -1, 0, 2.0, "2", [2]],
    "decoder_layers": [10**9, 1],
    "encoder_attention_heads": [-4, 0, 3, 10**12],
    "decoder_attention_heads": [-1, 2.5],
    "encoder_embed_dim": [10**6, -32, 0, 2**40],
    "decoder_embed_dim": [64, "32"],
    "encoder_ffn_embed_dim": [10**9, 65],
    "decoder_ffn_embed_dim": [-64],
    "decoder_output_dim": [10**8],
    "decoder_input_dim": [10**8],
    "max_source_positions": [10**15, -1, 0, 2**24],
    "max_target_positions": [10**15],
    "base_layers": [3],
    "encoder_layers_to_keep": ["0,1,2,3", "x"],
    "adaptive_softmax_cutoff": [[10**12], "10000000000", [-5], ["a"]],
    "activation_fn": ["nothing", 3],
    "dropout": ["x", float("nan"), -1.0, 2.0],
    "gate_temperature": ["x", -1],
    "gate_stretch": ["1", "-1e300,1e300", 3],
    "gate_init": ["x"],
    "gate_lr_scale": [0, "x"],
    "gate_heads": [3, "enc"],
    "quant_noise_pq": [0.5],
    "encoder_layerdrop": ["x"],
}


@pytest.mark.parametrize("option", WRONG)
def test_options_that_the_weights_contradict_are_refused_at_once(option, attempts, tmp_path):
    path = tmp_path / "evil.pt"
    for value in WRONG[option]:
        for form in ("args", "gated"):
            ended = attempts.run("headgates", "show", save(small_state(form, **{option: value}), path))
            # what a transformer without gates does not use is not looked at; a wrong rate of dropout hurts nobody
            unused = option == "dropout" and isinstance(value, float) and value == value
            unused |= form == "args" and option.startswith("gate_") and option != "gate_heads"
            assert ended.code == 0 if unused and ended.code == 0 else ended.refused, (value, form, ended)
            assert ended.seconds < 10


def test_tensors_larger_than_the_file_are_refused(attempts, tmp_path):
    """A tensor of one stored number can claim any shape; its options may agree."""
    path = tmp_path / "evil.pt"
    state = small_state("args", encoder_embed_dim=2**20, decoder_embed_dim=2**20)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        state["model"][name] = torch.zeros(1).expand(44, 2**20)
    ended = attempts.run("headgates", "show", save(state, path))
    assert ended.refused and "larger than its storage" in ended.err, ended


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta", "scalar embedding", "no embedding", "integer weights"])
def test_weights_that_are_no_plain_arrays(kind, attempts, tmp_path):
    state, name = small_state("args"), "encoder.embed_tokens.weight"
    weight = state["model"][name]
    state["model"][name] = {
        "sparse": weight.to_sparse(),
        "quantized": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        "meta": weight.to("meta"),
        "scalar embedding": torch.tensor(1.0),
        "integer weights": weight.to(torch.int8),
    }.get(kind)
    if kind == "no embedding":
        del state["model"][name]
    ended = attempts.run("headgates", "show", save(state, tmp_path / "evil.pt"))
    assert ended.orderly if kind == "integer weights" else ended.refused, ended


def test_archives_that_unpack_to_more_than_the_file(attempts, tmp_path):
    path, bomb = tmp_path / "x.pt", tmp_path / "bomb.pt"
    save(small_state("args"), path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    ended = attempts.run("headgates", "show", bomb)
    assert ended.refused and "compressed" in ended.err


def test_a_file_that_is_read_in_two_ways(attempts, tmp_path):
    """torch looks at the first bytes of a file, zip programs at the last ones."""
    path = tmp_path / "x.pt"
    torch.save({**small_state("args"), "x": collections.Counter()}, path, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}, protocol=2))
    ended = attempts.run("headgates", "show", path)
    assert ended.refused and "it holds collections.Counter" in ended.err, ended


def test_a_list_of_instructions_without_end(attempts, tmp_path):
    path = raw_pickle(tmp_path / "x.pt", b"]" * 20_000_000)
    ended = attempts.run("headgates", "show", path, seconds=60)
    assert ended.refused and "instructions" in ended.err, ended
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + b"\x80\x02" + b"]" * 20_000_000)
    assert attempts.run("headgates", "show", path, seconds=60).refused


def test_a_stored_expression_that_backtracks_does_not_hang(attempts, tmp_path):
    """Nothing but training and the numbers of an optimiser's parameters depends on it."""
    for number, pattern in enumerate(
        ["(x+x+)+y", "(([a-z.])+.)+[A-Z]([a-z.])+$", "(", "(?:(a{99}){99}){999}", "x" * 100_000, 3, ["a"]]
    ):
        path = save(small_state("gated", freeze_params=pattern), tmp_path / f"{number}.pt")
        for command in (["show", path], ["prune", path, tmp_path / "out.pt", "--force"]):
            ended = attempts.run("headgates", *command)
            assert ended.orderly and ended.seconds < 12, (pattern, ended)


# --- forms -----------------------------------------------------------------------------------------------------------


def change(state, where, value):
    """`state` with `value` at the path `where`."""
    changed = copy.copy(state)
    inner = changed
    for key in where[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    inner[where[-1]] = value
    return changed


ODD_VALUES = [None, 3, -1.5, "text", [], [1, [2]], {}, {"a": {"b": 1}}, b"bytes", torch.zeros(2), (1,), True, {1: 2}]
SHARES = [
    pytest.param(ODD_VALUES[::4], id="some"),
    pytest.param([v for i, v in enumerate(ODD_VALUES) if i % 4], id="others", marks=pytest.mark.rehearsal),
]
PLACES = [
    ("args",), ("cfg",), ("model",), ("optimizer_history",), ("extra_state",), ("last_optimizer_state",),
    ("optimizer_history", 0), ("optimizer_history", 0, "num_updates"), ("optimizer_history", 0, "criterion_name"),
    ("extra_state", "ema"), ("extra_state", "train_iterator"), ("cfg", "model"), ("cfg", "model", "arch"),
    ("cfg", "model", "_name"), ("cfg", "task"), ("cfg", "common"), ("cfg", "criterion"),
    ("cfg", "model", "alive_heads"), ("cfg", "model", "freeze_params"), ("cfg", "model", "criterion"),
    ("model", "encoder.layers.0.self_attn.q_proj.weight"), ("model", "encoder.layers.0.self_attn.gate.log_alpha"),
]  # fmt: skip


@pytest.mark.parametrize("values", SHARES)
@pytest.mark.parametrize("where", PLACES, ids=lambda where: ".".join(map(str, where)))
def test_odd_forms_give_one_line_or_are_read(where, values, attempts, tmp_path):
    state = small_state("gated")
    path, out = tmp_path / "odd.pt", tmp_path / "out.pt"
    for value in values:
        save(change(state, where, value), path)
        for options in [["--force"], *([["--force", "--stock"]] if where[0] == "cfg" else [])]:
            ended = attempts.run("headgates", "prune", path, out, *options)
            assert ended.orderly, (value, options, ended)


# --- what is valid ---------------------------------------------------------------------------------------------------


def test_the_options_of_every_preset_are_accepted():
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.models import HeadGatesMixin

    presets = [
        name
        for name, model in ARCH_MODEL_REGISTRY.items()
        if model is TransformerModel or issubclass(model, HeadGatesMixin)
    ]
    assert len(presets) > 10
    for name in presets:
        args = argparse.Namespace(arch=name)
        ARCH_CONFIG_REGISTRY[name](args)
        kept = vars(model_options(vars(args)))
        known = transformer_options()
        assert kept == {key: value for key, value in vars(args).items() if key in known}
        dropped = set(vars(args)) - set(kept)
        assert dropped <= {"encoder_embed_path", "decoder_embed_path", "char_inputs"}, dropped
        with torch.device("meta"):  # at its full size, without memory
            weights = TransformerModel.build_model(copy.deepcopy(args), make_task()).state_dict()
        check_sizes(model_options(vars(args)), weights, make_task())


@pytest.mark.parametrize("cutoff", ["10,20", [10, 20], "[10, 20]", "(10,20)"])
@pytest.mark.parametrize("form", ["args", "cfg", "dict"])
def test_adaptive_softmax_loads_in_every_form(cutoff, form, tmp_path):
    state = small_state(form, adaptive_softmax_cutoff=cutoff)
    state["model"] = make_stock(adaptive_softmax_cutoff="10,20").state_dict()
    model = build_model(load_checkpoint(str(save(state, tmp_path / "a.pt"))))
    assert model.decoder.adaptive_softmax.cutoff[:2] == [10, 20]


def test_a_file_of_torch_before_1_6_loads(tmp_path):
    state, path = small_state("args"), tmp_path / "old.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    build_model(load_checkpoint(str(path)))
    state["args"].adaptive_softmax_cutoff = "print(1)"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="adaptive_softmax_cutoff"):
        load_checkpoint(str(path))
    path.write_bytes(path.read_bytes().replace(b"argparse\nNamespace", b"subprocess\nPopenxx"))
    with pytest.raises(ValueError, match="it holds subprocess.Popenxx"):
        load_checkpoint(str(path))


def test_damaged_tails_and_heads(attempts, tmp_path):
    path = save(small_state("gated"), tmp_path / "x.pt")
    whole = path.read_bytes()
    for keep in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        assert attempts.run("headgates", "show", path).refused
    path.write_bytes(struct.pack("<Q", 2**63) + whole)
    assert attempts.run("headgates", "show", path).orderly
