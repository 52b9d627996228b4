"""Only plain objects and regular files are read."""

import argparse
import collections
import os
import re
import typing
import zipfile

import numpy
import pytest
import torch
from support.commands import EVALUATION
from support.hostile import NEEDS_CAREFUL_FAIRSEQ, raw_pickle, save, small_state, touch

from fairseq_headgates.safety.objects import STORED, safe_globals
from fairseq_headgates.safety.reading import load_file


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
def test_numpy_takes_no_pointers_from_a_file(kind, attempts, tmp_path):
    path = raw_pickle(tmp_path / "pointer.pt", *POINTERS[kind])
    shown = attempts.run("headgates", "show", "--path", path)
    assert shown.refused, shown


@NEEDS_CAREFUL_FAIRSEQ
def test_fairseqs_commands_take_no_numpy_pointers_from_a_file(toy, attempts, tmp_path):
    path = raw_pickle(tmp_path / "pointer.pt", *POINTERS["its state"])
    generated = attempts.run("fairseq-generate", toy.data, "--path", path, *EVALUATION)
    assert generated.code == 1 and "only numbers are allowed" in generated.err, generated  # no signal


ARRAYS = [
    numpy.array(5), numpy.arange(6).reshape(2, 3), numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    numpy.array([True, False]), numpy.array(2.5, dtype=">f4"), numpy.zeros((1, 3), dtype="u2"),
]  # fmt: skip


@pytest.mark.parametrize("value", [*ARRAYS, numpy.float64(1.5), numpy.int32(-7), numpy.bool_(True)])
def test_numpy_values_are_loaded_as_they_were_and_saved_as_ordinary_arrays(value, tmp_path):
    path, loaded = tmp_path / "counter.pt", value
    for _ in range(2):  # what was loaded is saved as an ordinary array
        loaded = torch.load(save({"x": loaded}, path))["x"]
        names = re.findall(rb"c([\w.]+)\n(\w+)\n", zipfile.ZipFile(path).read("counter/data.pkl"))
        assert {module.split(b".")[0] for module, _ in names} <= {b"numpy", b"_codecs"}
        numpy.testing.assert_array_equal(loaded, value)
        assert loaded.dtype == value.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "value", [numpy.array(["a"]), numpy.array([None]), numpy.array([1], dtype=[("a", "i4")]), numpy.zeros(2**18)]
)
def test_other_arrays_are_refused(value, tmp_path):
    with pytest.raises(ValueError, match="numpy"):
        load_file(save({"x": value}, tmp_path / "a.pt"))


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [["alive_heads"], ["encoder_embed_path", "decoder_embed_path", "data", "user_dir"]])
def test_stored_paths_are_not_opened(options, attempts, tmp_path):
    """A pipe that nobody writes to: whoever opens it waits for ever. As a module, the folder would leave a trace."""
    pipe, trace, path = tmp_path / "pipe", tmp_path / "trace", tmp_path / "evil.pt"
    os.mkfifo(pipe)
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(touch(trace))
    values = {option: str(folder if option == "user_dir" else pipe) for option in options}
    for form in ("args", "dict", "gated"):
        state = small_state(form, **values)
        if state["cfg"]:
            state["cfg"] |= {"common": {"user_dir": str(folder)}, "task": {"_name": "translation", "data": str(pipe)}}
        save(state, path)
        others = {
            "args": ["prune", "--path", path, "--out", tmp_path / "stock.pt", "--stock"],
            "dict": ["convert", "--path", path, "--out", tmp_path / "out", "--to", "ctranslate2"],
            "gated": ["prune", "--path", path, "--out", tmp_path / "out.pt"],
        }
        for command in (["show", "--path", path], others[form]):
            ended = attempts.run("headgates", *command)
            assert ended.orderly, (command, ended)
            assert ended.code == (2 if options == ["alive_heads"] or command[0] == "convert" else 0), (command, ended)
    assert not trace.exists()


def test_only_regular_files_are_read(attempts, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        ended = attempts.run("headgates", "show", "--path", path)
        assert ended.refused and "cannot read the checkpoint" in ended.err, ended
