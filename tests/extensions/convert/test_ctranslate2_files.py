"""What conversion for CTranslate2 refuses, and what it writes."""

import errno
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fairseq.models.transformer import TransformerEncoderBase
from support.ctranslate2 import DICTIONARY, convert, ctranslate2
from support.language_models import make_lm
from support.models import make_gated, make_stock

from fairseq_headgates.cli.main import main
from fairseq_headgates.extensions.convert.ctranslate2 import to_ctranslate2, unsupported

UNSUPPORTED = {
    "the activation function linear": {"activation_fn": "linear"},
    "--no-token-positional-embeddings": {"no_token_positional_embeddings": True},
    "--quant-noise-pq": {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 8},
    "--adaptive-softmax-cutoff": {"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_factor": 2},
    "--decoder-output-dim": {"decoder_output_dim": 16},
    "--cross-self-attention": {"cross_self_attention": True},
    "--no-cross-attention": {"no_cross_attention": True},
    "--scale-attn": {"scale_attn": True},
    "--scale-heads": {"scale_heads": True},
    "--scale-fc": {"scale_fc": True},
    "--scale-resids": {"scale_resids": True},
    "--lang-tok-replacing-bos-eos": {"lang_tok_replacing_bos_eos": True},
    "--decoder-layers 0": {"decoder_layers": 0},
}


@pytest.mark.parametrize(("reason", "options"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_unsupported_options_are_reported(reason, options):
    (found,) = unsupported(make_stock(**options))
    assert reason in found


def test_gates_and_fixed_heads_must_be_folded_first():
    assert unsupported(make_stock()) == unsupported(make_gated()) == []
    gated = make_gated(gate_heads="enc-self,dec-enc", alive_heads='{"dec-self": [[1, 0, 1, 1], [1, 1, 1, 1]]}')
    assert unsupported(gated) == [
        "gates on enc-self, dec-enc (`headgates prune` folds them into the weights)",
        "masked heads on dec-self (`headgates prune` removes them)",
    ]


def test_modules_of_unsupported_classes_are_reported():
    class Encoder(TransformerEncoderBase):
        pass

    model = make_stock()
    model.encoder.__class__ = Encoder
    model.decoder.layers[1] = torch.nn.Identity()
    assert unsupported(model) == ["a part of class Encoder", "a part of class Identity"]
    model.encoder.__class__ = TransformerEncoderBase
    assert unsupported(model) == ["a part of class Identity"]
    assert unsupported(torch.nn.Linear(2, 2)) == ["a part of class Linear"]


def test_models_and_quantizations_that_cannot_be_exported_are_refused(tmp_path):
    with pytest.raises(ValueError, match="it has gates on dec-self .*; the activation function linear"):
        convert(make_gated(gate_heads="dec-self", activation_fn="linear"), tmp_path)
    with pytest.raises(ValueError, match="unknown quantization 'int4': choose from int8, .*float32$"):
        convert(make_stock(), tmp_path, "int4")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_reported_with_its_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ValueError, match=r"pip install 'fairseq-headgates\[ctranslate2\]'"):
        convert(make_stock(), tmp_path)


# What it writes


def test_an_existing_model_is_kept_without_force(tmp_path):
    convert(make_stock(), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="model exists: choose another name, or pass --force"):
        convert(make_stock(seed=1), tmp_path)
    assert contents(tmp_path) == before
    convert(make_stock(seed=1), tmp_path, force=True)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert after[Path("model/model.bin")] != before[Path("model/model.bin")]


def test_force_deletes_nothing_but_models(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("The only copy")
    with pytest.raises(ValueError, match="model exists and is not a CTranslate2 model"):
        convert(make_stock(), tmp_path, force=True)
    assert contents(tmp_path) == {Path("model/thesis.tex"): b"The only copy"}


@pytest.mark.parametrize("method", ["save", "rename"])
@pytest.mark.parametrize(
    ("stop", "error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ValueError, r"^cannot write .*model \(No space left"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_an_interrupted_export_keeps_the_old_model(method, stop, error, message, tmp_path, monkeypatch):
    convert(make_stock(seed=1), tmp_path)
    before = contents(tmp_path)

    def interrupted(first, second, original=Path.rename):
        if method == "save":
            Path(second, "model.bin").write_bytes(b"half")
        elif ".part" not in first.name:  # the old model is moved aside, and back; the new one does not come
            return original(first, second)
        raise stop

    owner = ctranslate2.specs.TransformerSpec if method == "save" else Path
    monkeypatch.setattr(owner, method, interrupted)
    with pytest.raises(error, match=message):
        convert(make_stock(), tmp_path, force=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("make", [make_stock, make_lm])
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-100]),  # as of an older CTranslate2
        lambda file: file.with_name("config.json").write_text('{"decoder_start_token": "none", "bos_token": "none"}'),
    ],
)
def test_a_model_that_ctranslate2_cannot_run_is_not_written(damage, make, tmp_path, monkeypatch):
    def damaged(spec, folder, save=ctranslate2.specs.ModelSpec.save):
        save(spec, folder)
        damage(Path(folder, "model.bin"))

    monkeypatch.setattr(ctranslate2.specs.ModelSpec, "save", damaged)
    with pytest.raises(ValueError, match="^CTranslate2 .* cannot run the converted model .*: choose another"):
        to_ctranslate2(make(), DICTIONARY, DICTIONARY, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def contents(folder):
    """{path: bytes} of all files; a folder without files counts as well."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if path.is_file() or not list(path.iterdir())
    }


def test_the_command_converts_a_gated_checkpoint(gated_checkpoint, toy, tmp_path, capsys):
    """A checkpoint does not say where dictionaries are read: DATA does, or the folder that it lies in."""
    command = ["convert", "--path", str(gated_checkpoint), "--out", str(tmp_path / "model"), "--to", "ctranslate2"]
    assert main(command) == 2
    assert "dict" in (told := capsys.readouterr().err) or "languages" in told
    command += [str(toy.data)]
    assert main(command) == 0
    found = ctranslate2.Translator(str(tmp_path / "model")).translate_batch([["a", "b"]], max_decoding_length=5)
    assert found[0].hypotheses
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
    inside = shutil.copy(gated_checkpoint, tmp_path / "model")
    assert main([*command[:2], inside, *command[3:], "--force"]) == 2
    assert "model would replace the checkpoint" in capsys.readouterr().err
    before = (tmp_path / "model" / "model.bin").stat().st_size
    entries = [[{"gate": 1.0, "words": {"alignment": {"rate": 0.1 * head}}} for head in range(4)]] * 2
    for content, code in ((json.dumps({"heads": {"dec-enc": entries}}), 0), ("[]", 2)):
        (tmp_path / "functions.json").write_text(content)
        assert main([*command, "--force", "--alignment-heads", str(tmp_path / "functions.json")]) == code
    assert "is not a file of `headgates functions --out` of one checkpoint" in capsys.readouterr().err
    assert main([*command, "--force", "--alignment-heads", "dec-enc:1.1,dec-enc:0.1"]) == 2
    assert "several layers" in capsys.readouterr().err
    assert main([*command, "--force", "--quantization", "int8"]) == 0
    assert (tmp_path / "model" / "model.bin").stat().st_size < before
