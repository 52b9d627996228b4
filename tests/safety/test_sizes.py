"""Sizes that the file contradicts are refused at once; nothing hangs or fills the memory."""

import collections
import pickle
import struct
import zipfile

import pytest
import torch
from fairseq.models import MODEL_REGISTRY
from support.any_model import build, multilingual, options
from support.hostile import TORCH_2_6, raw_pickle, save, small_state

from fairseq_headgates.checkpoints.building import build_model, load_model

# One for each kind of check: of stored weights, sizes, layers, types and ranges. The first would fill the memory.
HUGE = [
    ("args", "encoder_layers", 10**9), ("gated", "encoder_attention_heads", 10**12),
    ("args", "encoder_embed_dim", 2**40),
    ("gated", "max_source_positions", 2**24), ("gated", "decoder_ffn_embed_dim", 10**9),
    ("args", "adaptive_softmax_cutoff", "10000000000"), ("gated", "decoder_output_dim", 10**8),
]  # fmt: skip
WRONG = [
    ("args", "encoder_layers", 3), ("gated", "encoder_layers", "2"), ("args", "decoder_embed_dim", 64),
    ("gated", "encoder_ffn_embed_dim", 65), ("args", "decoder_attention_heads", -1), ("args", "base_layers", 3),
    ("args", "encoder_layers_to_keep", "0,1,2,3"), ("gated", "encoder_layers_to_keep", "x"),
    ("args", "adaptive_softmax_cutoff", ["a"]), ("gated", "activation_fn", "nothing"), ("gated", "quant_noise_pq", 0.5),
    ("args", "dropout", float("nan")), ("gated", "gate_temperature", "x"), ("gated", "gate_heads", 3),
]  # fmt: skip


@pytest.mark.parametrize(("form", "option", "value"), [*HUGE, *WRONG])
def test_options_that_the_weights_contradict_are_refused_at_once(form, option, value, attempts, tmp_path):
    path = save(small_state(form, **{option: value}), tmp_path / "evil.pt")
    if (form, option, value) in HUGE:
        ended = attempts.run("headgates", "show", path)
        assert ended.refused and ended.seconds < 10, ended
    else:
        with pytest.raises(ValueError):
            load_model(str(path))


def test_tensors_larger_than_the_file_are_refused(attempts, tmp_path):
    """A tensor of one stored number can claim any shape; its options may agree."""
    path = tmp_path / "evil.pt"
    state = small_state("args", encoder_embed_dim=2**20, decoder_embed_dim=2**20)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        state["model"][name] = torch.zeros(1).expand(44, 2**20)
    ended = attempts.run("headgates", "show", save(state, path))
    assert ended.refused and "larger than its storage" in ended.err, ended


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta", "scalar embedding"])
def test_weights_that_are_no_plain_arrays(kind, attempts, tmp_path):
    state, name = small_state("args"), "encoder.embed_tokens.weight"
    weight = state["model"][name]
    state["model"][name] = {
        "sparse": weight.to_sparse(),
        "quantized": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        "meta": weight.to("meta"),
        "scalar embedding": torch.tensor(1.0),
    }[kind]
    ended = attempts.run("headgates", "show", save(state, tmp_path / "evil.pt"))
    assert ended.refused, ended


def test_archives_that_unpack_to_more_than_the_file(attempts, tmp_path):
    path, bomb = tmp_path / "x.pt", tmp_path / "bomb.pt"
    save(small_state("args"), path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    ended = attempts.run("headgates", "show", bomb)
    assert ended.refused and "compressed" in ended.err


def test_a_file_that_is_both_a_pickle_and_a_zip_is_checked(attempts, tmp_path):
    """torch looks at the first bytes of a file, zip programs at the last ones."""
    path = tmp_path / "x.pt"
    torch.save({**small_state("args"), "x": collections.Counter()}, path, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}, protocol=2))
    ended = attempts.run("headgates", "show", path)
    assert ended.refused and "it holds collections.Counter" in ended.err, ended


def test_a_warning_of_torch_does_not_add_a_second_line(attempts, tmp_path):
    """Calling a storage makes torch warn before it refuses the file."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\1tQ"
    path = raw_pickle(tmp_path / "x.pt", storage, b")R")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/data/0", bytes(4))
    ended = attempts.run("headgates", "show", path)
    reason = "its contents cannot be read" if TORCH_2_6 else "unrecognized function"
    assert ended.refused and reason in ended.err, ended


def nested(kind):
    """A value of few bytes that is endless for whoever walks through it."""
    value = inner = [1]
    for _ in range(300 if kind == "deep" else 40):
        value = {"deep": [value], "shared lists": [value, value], "shared tables": {"a": value, "b": value}}.get(kind)
        value = inner if value is None else value
    inner.append(value if kind == "in itself" else 1)
    return value


NESTED = ["shared lists", "in itself", "shared tables", "deep"]
HOLDERS = [("cfg", "model", "adam_betas"), ("cfg", "model", "lr"), ("extra_state", "x"), ("x",)]


@pytest.mark.parametrize("where", HOLDERS, ids=lambda where: ".".join(map(str, where)))
def test_nested_values_without_end_are_refused_at_once(where, attempts, tmp_path):
    path, out, number = tmp_path / "evil.pt", tmp_path / "out.pt", HOLDERS.index(where)
    for kind, command in ((NESTED[number], ["show", path]), (NESTED[number - 1], ["prune", path, out, "--trust"])):
        state = small_state("gated")
        inner = state
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = nested(kind)
        save(state, path)
        ended = attempts.run("headgates", *command)
        assert ended.refused, (kind, command, ended)


KEY = b"}%sNs"  # a table with one key
TEXT = "".join(map(chr, range(0x4E00, 0x8E00))).encode()
TABLE = b"}q\0X\1\0\0\0a](" + b"K\1" * 20_000 + b"es"
NUMBERS = b"".join(b"\x8a\x0b" + (i * (2**61 - 1)).to_bytes(11, "little") + b"N" for i in range(80_000))
ENDLESS = {
    "shared tuples as a key": KEY % (b")" + b"q\0h\0\x86" * 40),
    "a deep key": KEY % (b")" + b"\x85" * 200_000),
    "keys of one hash": b"}(" + NUMBERS + b"u",
    "a slow encoding": b"c_codecs\nencode\nX" + struct.pack("<I", len(TEXT)) + TEXT + b"X\x08\0\0\0punycode\x86R",
    "options copied again and again": b"(" + TABLE + b"cargparse\nNamespace\n)\x81h\0b" * 10_000 + b"t",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_values_that_torch_takes_for_ever_to_create_are_refused(kind, attempts, tmp_path):
    ended = attempts.run("headgates", "show", raw_pickle(tmp_path / "x.pt", ENDLESS[kind]))
    assert ended.refused and "is not loaded" in ended.err, ended


@pytest.mark.rehearsal
def test_a_huge_number_of_pickle_instructions_is_refused(attempts, tmp_path):
    path = raw_pickle(tmp_path / "x.pt", b"]" * 20_000_000)
    ended = attempts.run("headgates", "show", path, seconds=60)
    assert ended.refused and "instructions" in ended.err, ended


ODD = [
    ("convtransformer", {"input_feat_per_channel": 200_000}, "product must be at most"),
    ("s2t_transformer", {"max_source_positions": 2**24, "encoder_learned_pos": True}, "table would have more than"),
    ("s2t_transformer", {"encoder_layers": 900, "encoder_layers_to_keep": "0"}, "the weights have 2 layers"),
    ("s2t_transformer", {"conv_kernel_sizes": ",".join(["3"] * 500)}, "a few small numbers"),
    ("lightconv", {"encoder_kernel_size_list": [3], "encoder_layers": 10**6}, "at most 1,000"),
    ("levenshtein_transformer", {"early_exit": "200,2,2"}, "a few small numbers"),
]


@pytest.mark.parametrize(("name", "changes", "words"), ODD)
def test_options_of_other_models_that_take_memory_or_time_are_refused(name, changes, words):
    args = options(name, arch=name)
    weights = build(name).state_dict() if name in MODEL_REGISTRY else pytest.skip("fairseq has no such model")
    state = {"args": args, "model": weights}
    assert build_model(state) is not None
    vars(args).update(changes)
    with pytest.raises(ValueError, match=words):
        build_model(state)


def test_names_of_language_pairs_are_no_expressions():
    args, model = options("multilingual_transformer", arch="multilingual_transformer"), multilingual()
    weights = model.state_dict()
    assert build_model({"args": args, "model": weights}) is not None
    for pair in ("(x+x+)+y-b", "en", "en-de-fr"):
        renamed = {name.replace("en-fr", pair): weight for name, weight in weights.items()}
        with pytest.raises(ValueError, match="language pair"):
            build_model({"args": args, "model": renamed})
    with pytest.raises(ValueError, match="language pair"):
        build_model({"args": args, "model": {"x.attn.out_proj.weight": torch.ones(1)}})
