"""import_torch.py: outputs equal to those of torch.nn.Transformer, of random and of published weights; refusals."""

import importlib.util
import json
import math
import subprocess
import sys
import zipfile

import pytest
import torch
from fairseq.data import Dictionary
from support.recipes import ROOT
from torch import nn

import import_torch
from fairseq_headgates.checkpoints import build_model, load_checkpoint

SIZE, HEADS, POSITIONS = 16, 4, 20
VOCABULARY = ["а", "<unk>", "<pad>", " ", "б", "'", "</s>", "<s>", "в", "г"]  # not in fairseq's order
SYMBOLS = len(VOCABULARY)
NAMES = ["--heads", str(HEADS), "--embedding", "embed.words", "--positions", "embed.table", "--output", "output"]
TEXT = "аб в"


class Model(nn.Module):
    def __init__(self, symbols=SYMBOLS):
        super().__init__()
        self.embed = nn.Module()
        self.embed.words = nn.Embedding(symbols, SIZE)
        self.embed.register_buffer("table", torch.randn(1, POSITIONS, SIZE))
        self.transformer = nn.Transformer(SIZE, HEADS, 3, 2, 24, batch_first=True)
        self.output = nn.Linear(SIZE, symbols)
        for norm in self.modules():
            if isinstance(norm, nn.LayerNorm):
                nn.init.normal_(norm.weight, 1, 0.3)
                nn.init.normal_(norm.bias, 0, 0.3)

    def embedded(self, tokens):
        return self.embed.words(tokens) * math.sqrt(SIZE) + self.embed.table[:, : tokens.shape[1]]

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.output(self.transformer(self.embedded(source), self.embedded(target), tgt_mask=mask))


def make_files(folder, model, vocabulary=VOCABULARY):
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "vocabulary.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(vocabulary)}))
    (folder / "text").write_text(f"{TEXT}\n")
    return [str(folder / name) for name in ("weights.pt", "vocabulary.json", "out")] + NAMES


def both(model, vocabulary, out, source, text, target):
    """Logits of the model and of the converted one, for the symbols of fairseq's dictionary."""
    symbols = [Dictionary.load(str(out / f"dict.{side}.txt")) for side in ("src", "tgt")]
    size = len(source.split()) + 1
    begin, end, pad = (vocabulary[symbol] for symbol in ("<s>", "</s>", "<pad>"))
    read = [begin, *(vocabulary[letter] for letter in text), end]
    tokens = torch.tensor([read + [pad] * (size - len(read))])
    given = torch.tensor([[begin, *(vocabulary[letter] for letter in target)]])
    ours = torch.tensor([[symbols[1].eos(), *(symbols[1].index(x.replace(" ", "▁")) for x in target)]])
    rows = [vocabulary[symbol.replace("▁", " ")] for symbol in symbols[1].symbols]
    converted = build_model(load_checkpoint(str(out / "model.pt")))
    encoded = symbols[0].encode_line(source, add_if_not_exist=False).long()[None]
    with torch.no_grad():
        return model(tokens, given)[..., rows], converted(encoded, torch.tensor([size]), ours)[0]


def test_outputs_are_equal(tmp_path):
    model = Model().eval()
    given = make_files(tmp_path, model)
    assert import_torch.main([*given, "--text", str(tmp_path / "text")]) == 0
    source = (tmp_path / "out" / "text.src").read_text().strip()
    assert source == " ".join(["<s> а б ▁ в <end>", *["<blank>"] * (POSITIONS - 7)])
    vocabulary = {symbol: i for i, symbol in enumerate(VOCABULARY)}
    expected, found = both(model, vocabulary, tmp_path / "out", source, TEXT, "а'б в'г")
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocabulary": [*VOCABULARY[:-1], "▁"]}, ["'▁' is not one character"]),
        ({"vocabulary": VOCABULARY[1:]}, ["its embedding has 10 rows", "must number from 0"]),
        ({"vocabulary": ["<s>"]}, ["KeyError: '<pad>'"]),
        (
            {"symbols": 20, "vocabulary": [*VOCABULARY, *"дежзийклмн"]},
            ["the bias of its 20 outputs cannot be made of 16 dimensions"],
        ),
        ({"text": "а" * 18}, ["a sentence has 18 characters, more than 17"]),
        ({"arguments": ["--output", "embed"]}, ["KeyError: 'embed.weight'"]),
        ({"module": nn.Linear(2, 2)}, ["weights that would be lost: other.weight, other.bias"]),
        ({"module": nn.Transformer(4, 1, 1, 1, 4)}, ["it has 2 modules torch.nn.Transformer"]),
    ],
)
def test_what_is_no_such_model_is_refused(tmp_path, capsys, change, words):
    model = Model(change.get("symbols", SYMBOLS))
    if "module" in change:
        model.other = change["module"]
    given = make_files(tmp_path, model, change.get("vocabulary", VOCABULARY))
    (tmp_path / "text").write_text(change.get("text", TEXT))
    with pytest.raises(SystemExit) as ended:
        import_torch.main([*given, "--text", str(tmp_path / "text"), *change.get("arguments", [])])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()


@pytest.mark.release
def test_a_published_model_has_the_same_outputs(tmp_path):
    """The model of Russian word stress of benchmarks/stress.sh, which computes with the code of its package."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    if subprocess.run([*words, "ruaccent-predictor==1.2.0"], check=False).returncode:
        pytest.skip("ruaccent-predictor 1.2.0 cannot be downloaded")
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path)
    files = [str(tmp_path / "ruaccent" / "model" / name) for name in ("acc_model.pt", "vocab.json")]
    sentences = [
        "мама мыла раму.",
        "я устало иду во главе своей армии, наступая на цветы.",
        "хотел я зайти в замок, но ключ в замок не подошёл!",
        "счастье в том, чтобы обладать хорошим здоровьем и плохой памятью.",
    ]
    (tmp_path / "text").write_text("".join(f"{sentence}\n" for sentence in sentences))
    names = ["--embedding", "embed.char_embed", "--positions", "embed.pos_encoding", "--output", "output_proj"]
    command = [sys.executable, ROOT / "recipes" / "import_torch.py", *files, tmp_path / "out", "--heads", "8", *names]
    subprocess.run([*command, "--text", tmp_path / "text"], check=True)

    spec = importlib.util.spec_from_file_location("accentor", tmp_path / "ruaccent" / "accentor.py")
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    accentor = package.Accentor(*files, device="cpu")

    def published(source, target):
        return accentor.model(source, target, tgt_mask=accentor.model.generate_square_subsequent_mask(target.shape[1]))

    for sentence, source in zip(sentences, (tmp_path / "out" / "text.src").read_text().splitlines(), strict=True):
        [stressed] = accentor([sentence])
        expected, found = both(published, accentor.vocab, tmp_path / "out", source, sentence, stressed)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
