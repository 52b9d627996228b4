"""No stored option runs code, in our commands or in fairseq's."""

import argparse
import ast
import importlib.util
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy
import omegaconf
import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu, load_model_ensemble_and_task
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.commands import EVALUATION
from support.hostile import NEEDS_CAREFUL_FAIRSEQ, TORCH_2_6, save, small_state, touch

from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.compat import configuration
from fairseq_headgates.plugin.models.building import load_model
from fairseq_headgates.safety.literals import EVALUATED, LITERAL, NUMBERS, check_evaluated

BY_TRANSFORMERS = (
    "adaptive_softmax_cutoff adaptive_input_cutoff encoder_xformers_att_config decoder_xformers_att_config "
    "encoder_layers decoder_layers"
).split()


@pytest.mark.parametrize("form", ["args", "cfg", "dict", "gated"])
@pytest.mark.parametrize("option", BY_TRANSFORMERS)
def test_options_that_fairseq_evaluates_run_no_code(option, form, attempts, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    save(small_state(form, **{option: touch(trace)}), path)
    with pytest.raises(ValueError, match=rf"evil\.pt.*{option}"):
        load_model(str(path))
    if (form, option) in (("gated", "decoder_layers"), ("cfg", "adaptive_softmax_cutoff")):
        shown = attempts.run("headgates", "show", "--path", path)
        assert shown.refused and option in shown.err and "evil.pt" in shown.err, shown
    assert not trace.exists()


@pytest.mark.parametrize("option", ["adaptive_softmax_cutoff", "xformers_att_config"])
def test_nested_options_run_no_code(option, attempts, tmp_path):
    """As hydra stores them: `encoder` and `decoder` are dictionaries of their own."""
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    for side in ("encoder", "decoder"):
        state = small_state("dict")
        state["cfg"]["model"][side] = {option: touch(trace)}
        assert attempts.run("headgates", "show", "--path", save(state, path)).refused
    assert not trace.exists()


def test_options_in_attributes_of_a_dictionary_run_no_code(attempts, tmp_path):
    """As `headgates prune --stock` stores them; fairseq reads the attributes."""
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    state = small_state("args")
    state["args"] = OrderedDict(vars(state["args"]))
    vars(state["args"])["adaptive_softmax_cutoff"] = touch(trace)
    ended = attempts.run("headgates", "show", "--path", save(state, path))
    assert ended.refused and "adaptive_softmax_cutoff" in ended.err, ended
    assert not trace.exists()


OTHERS = ["adam_betas", "adafactor_eps", "lamb_betas", "wer_args", "conv_feature_layers", "left_pad_source"]


@pytest.mark.cases(8)
@NEEDS_CAREFUL_FAIRSEQ
@pytest.mark.parametrize("option", [*BY_TRANSFORMERS, *OTHERS])
@pytest.mark.parametrize("form", ["args", "cfg"])
def test_fairseqs_own_commands_refuse_a_namespace_that_runs_code(form, option, toy, attempts, tmp_path):
    """torch refuses a Namespace; that it is allowed with --user-dir must not open a way."""
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    save(small_state(form, **{option: touch(trace)}), path)
    with pytest.raises(ValueError, match=option):
        load_checkpoint_to_cpu(str(path))
    if (form, option) in (("args", "adam_betas"), ("cfg", "encoder_layers")):
        ended = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
        assert ended.code != 0 and option in ended.err, ended
    assert not trace.exists()


@pytest.mark.release
def test_fairseqs_own_commands_refuse_our_architecture_with_code_in_a_dictionary(toy, attempts, tmp_path, capsys):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    for option in BY_TRANSFORMERS:
        state = small_state("gated", **{option: touch(trace)})
        state["cfg"]["task"]["data"] = str(toy.data)
        save(state, path)
        with pytest.raises(SystemExit) as stopped:
            load_model_ensemble_and_task([str(path)])
        assert stopped.value.code == 2 and option in capsys.readouterr().err
    ended = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
    assert ended.code == 2 and BY_TRANSFORMERS[-1] in ended.err, ended
    assert not trace.exists()


def test_a_configuration_of_omegaconf_is_checked_as_a_namespace_is(tmp_path):
    """It is allowed for several workers, which send options to each other."""
    for good in ({"a": 1, "b": [1, {"c": "${a}"}], "n": None}, {"m": argparse.Namespace(x=1)}):
        config = configuration(good)
        loaded = torch.load(save(config, tmp_path / "c.pt"), weights_only=True)
        assert type(loaded) is omegaconf.DictConfig
        for found in (loaded, torch.load(save(loaded, tmp_path / "again.pt"), weights_only=True)):
            assert OmegaConf.to_container(found) == OmegaConf.to_container(config)
    loaded = torch.load(save(OmegaConf.create({"a": 1, "b": "${a}"}), tmp_path / "c.pt"), weights_only=True)
    assert loaded.b == 1 and loaded.a == 1
    for evil in (
        {"adam_betas": "print(1)"},
        {"m": {"character_filters": "print(1)"}},
        {"l": [{"wer_args": "print(1)"}]},
    ):
        with pytest.raises(ValueError, match="fairseq passes it to eval"):
            torch.load(save(OmegaConf.create(evil), tmp_path / "c.pt"), weights_only=True)


def test_later_pickle_instructions_cannot_change_checked_options(tmp_path):
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
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "eval" in text else ():
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
def test_stored_options_that_are_numbers_are_accepted(text):
    check_evaluated({"adam_betas": text, "adaptive_softmax_cutoff": text, "wer_args": text})


@pytest.mark.parametrize("text", PRODUCTS)
def test_other_literals_are_accepted_where_fairseq_has_them(text):
    check_evaluated({"conv_feature_layers": text, "decoder_attention": text})
    if "[(" not in text:
        with pytest.raises(ValueError, match="must be a number"):
            check_evaluated({"adam_betas": text if text != "True" else "'True'"})


@pytest.mark.parametrize("text", [*CODE, *BOMBS], ids=lambda text: text[:20])
def test_options_that_are_not_literals_are_refused(text):
    for name in ("adam_betas", "conv_feature_layers", "adaptive_softmax_cutoff"):
        with pytest.raises(ValueError, match=f"stored option {name} is .*must be"):
            check_evaluated({"deep": [{"er": {name: text}}]})


@given(st.text(max_size=60))
def test_every_accepted_option_is_a_literal(text):
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
def test_evaluated_options_with_bytes_arrays_or_sets_are_refused(value, tmp_path):
    """`eval` reads code from anything that has bytes."""
    for name in ("adam_betas", "left_pad_source", "decoder_layers"):
        with pytest.raises(ValueError, match=f"stored option {name}"):
            check_evaluated({"task": {name: value}})
    state = small_state("dict")
    state["cfg"]["task"] = {"_name": "multilingual_translation", "left_pad_source": value}
    with pytest.raises(ValueError, match="is not loaded: "):
        load_checkpoint(str(save(state, tmp_path / "a.pt")))
    known = TORCH_2_6 or not isinstance(value, (set, bytearray))  # torch 2.4 refuses these classes itself
    error, words = (ValueError, "passes it to eval|BUILD") if known else (pickle.UnpicklingError, "Unsupported global")
    with pytest.raises(error, match=words):
        torch.load(save(argparse.Namespace(encoder_layers=value), tmp_path / "b.pt"), weights_only=True)


@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_lists_of_shared_lists_do_not_hang(trust, attempts, tmp_path):
    """Sixty levels: few objects, and 2 ** 60 values for whoever walks through them."""
    shared = []
    for _ in range(60):
        shared = [shared, shared]
    for place in ("args", "extra_state"):
        state = small_state("args", lr=shared) if place == "args" else small_state("args") | {"extra_state": shared}
        ended = attempts.run("headgates", "show", "--path", save(state, tmp_path / "shared.pt"), *trust)
        assert ended.refused and "nested" in ended.err, ended


def test_a_file_of_more_layers_than_weights_is_refused_at_once(attempts, tmp_path):
    ended = attempts.run(
        "headgates", "show", "--path", save(small_state("args", encoder_layers=10**9), tmp_path / "deep.pt")
    )
    assert ended.refused and "encoder_layers is 1000000000, but the weights have 2 layers" in ended.err, ended


def test_options_that_are_too_many_or_too_deep_are_refused():
    laughs = deep = []
    for _ in range(12):
        laughs = [laughs] * 10
    for _ in range(100):
        deep = [deep]
    for options in (laughs, deep):
        with pytest.raises(ValueError, match="stored"):
            check_evaluated({"options": options})
