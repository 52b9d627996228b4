"""import_huggingface.py: encoder-decoders with the outputs of transformers, where it is installed; what is refused."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.commands import EVALUATION
from support.huggingface import import_transformers, randomized
from support.recipes import RECIPES

import import_huggingface
from huggingface.folder import read_vocabulary

PIECES = ["▁a", "▁b", "c", "d", "▁the", "▁dog", "▁cat", "s", "e", "n", "▁"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZE = 16
CONFIG = {"d_model": SIZE, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20}
CONFIG |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 32}
# The vocabulary of each model by its numbers, as its tokenizer numbers it; its options and languages.
MARIAN = ["</s>", "<unk>", *PIECES, "\u2028", "<pad>"]
MARIAN_TARGET = ["</s>", "<unk>", *reversed(PIECES), "\u2028", "<pad>"]  # if it has one of its own
M2M = [*SPECIAL, *PIECES, "__en__", "__fr__"]
NLLB = [*SPECIAL, *PIECES, "eng_Latn", "fra_Latn", "<mask>"]
MBART = [*SPECIAL, *PIECES, "en_XX", "ro_RO", "<mask>"]
BART = [*SPECIAL, *PIECES, "madeupword0000", "<mask>"]
KINDS = {
    "marian": ("Marian", MARIAN, {"activation_function": "swish", "scale_embedding": True, "pad_token_id": 14}, ()),
    "m2m_100": ("M2M100", M2M, {}, ("en", "fr")),
    "nllb": ("M2M100", NLLB, {}, ("eng_Latn", "fra_Latn")),
    "mbart": ("MBart", MBART, {"scale_embedding": True, "decoder_start_token_id": 16}, ("en_XX", "ro_RO")),
    "mbart50": ("MBart", MBART, {"scale_embedding": True, "decoder_start_token_id": 2}, ("en_XX", "ro_RO")),
    "bart": ("Bart", BART, {"activation_function": "gelu_new", "decoder_start_token_id": 2}, ()),
}
SPELLED = {"eng_Latn": "__eng_Latn__", "fra_Latn": "__fra_Latn__", "en_XX": "[en_XX]", "ro_RO": "[ro_RO]"}
SENTENCES = [["▁the", "▁dog", "s"], ["▁a", "d", "c", "▁cat", "n", "e"], ["▁b"]]


def make_model(transformers, folder, kind, rows=0, biases=0.25, **config):
    """A model of transformers with random weights, saved with its vocabulary; `rows` more than it has symbols."""
    prefix, vocabulary, options, _ = KINDS[kind]
    ends = {"marian": {"decoder_start_token_id": 14, "eos_token_id": 0, "forced_eos_token_id": 0}}.get(kind, {})
    values = CONFIG | {"vocab_size": len(vocabulary) + rows} | options | ends | config
    name = "MTModel" if prefix == "Marian" else "ForConditionalGeneration"
    model = getattr(transformers, prefix + name)(getattr(transformers, f"{prefix}Config")(**values)).eval()
    randomized(model, biases)
    model.save_pretrained(folder)
    if kind in ("marian", "m2m_100"):
        numbers = {symbol: number for number, symbol in enumerate(vocabulary) if not symbol.startswith("__")}
        (folder / "vocab.json").write_text(json.dumps(numbers))
        if not config.get("share_encoder_decoder_embeddings", True):
            numbers = {symbol: number for number, symbol in enumerate(MARIAN_TARGET)}
            (folder / "target_vocab.json").write_text(json.dumps(numbers))
        languages = [symbol for symbol in vocabulary if symbol.startswith("__")]
        options = {"additional_special_tokens": languages, "source_lang": "en", "target_lang": "de"}
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    else:
        pieces = [[symbol, -1.0] for symbol in vocabulary]
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    return model


def load(folder):
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    import fairseq_headgates  # noqa: F401  (the architectures with swish)

    (model,), _, task = load_model_ensemble_and_task([str(folder / "model.pt")], {"data": str(folder)})
    return model.eval(), task


def convert(folder, kind):
    """Imports the model of a folder, and returns it and its task as fairseq loads them."""
    languages = [word for pair in zip(("-s", "-t"), KINDS[kind][3], strict=False) for word in pair]
    assert import_huggingface.main([str(folder / "model"), str(folder / "out"), *languages]) == 0
    return load(folder / "out")


def padded(rows, pad, left):
    size = max(map(len, rows))
    return torch.tensor([[pad] * (size - len(r)) * left + r + [pad] * (size - len(r)) * (not left) for r in rows])


def differences(model, kind, found, rows=0):
    """The largest difference of the logits of fairseq's model and task from those of transformers."""
    ours, task = found
    source, target, vocabulary = task.source_dictionary, task.target_dictionary, KINDS[kind][1]
    numbers = vocabulary  # of the source
    if not getattr(model.config, "share_encoder_decoder_embeddings", True):
        vocabulary = MARIAN_TARGET
    at = [target.index(SPELLED.get(symbol, symbol)) for symbol in vocabulary]
    fillers = [i for i, symbol in enumerate(target.symbols) if symbol.startswith("madeup") and i not in at]
    at = [fillers[0] if symbol == "\u2028" else i for symbol, i in zip(vocabulary, at, strict=True)]
    at += [i for i in fillers if i not in at]
    assert sorted(at) == list(range(kind == "marian", len(target))) and len(at) == len(vocabulary) + rows
    start, ours_start = model.config.decoder_start_token_id, target.eos()
    if kind == "mbart":  # the task of the first mBART starts with the language
        start, ours_start = vocabulary.index("ro_RO"), target.index("[ro_RO]")
    sentences = [[*sentence, "</s>"] for sentence in SENTENCES]
    inputs = [[numbers.index(symbol) for symbol in sentence] for sentence in sentences]
    outputs = [[start, *map(vocabulary.index, sentence[:-1])] for sentence in sentences[1:] + sentences[:1]]
    src = padded([[source.index(symbol) for symbol in sentence] for sentence in sentences], 1, True)
    prev = padded([[ours_start, *(at[i] for i in row[1:])] for row in outputs], 1, False)
    with torch.no_grad():
        logits = ours(src, torch.tensor([len(row) for row in inputs]), prev)[0]
        expected = [
            model(torch.tensor([row]), decoder_input_ids=torch.tensor([given])).logits[0]
            for row, given in zip(inputs, outputs, strict=True)
        ]
    if kind == "marian":  # which has no <s>
        assert logits[:, :, target.bos()].max() < -900
    return max(float((ours[: len(row), at] - row).abs().max()) for ours, row in zip(logits, expected, strict=True))


CASES = {kind: (kind, {}) for kind in KINDS} | {
    "two vocabularies": ("marian", {"share_encoder_decoder_embeddings": False}),
    "an output layer of its own": ("m2m_100", {"tie_word_embeddings": False}),
    "another start, no scale": ("bart", {"decoder_start_token_id": 0, "scale_embedding": False}),
    "another size": ("nllb", {"scale_embedding": False, "encoder_layers": 1, "activation_function": "silu"}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case, tmp_path, monkeypatch):
    kind, options = CASES[case]
    model = make_model(import_transformers(monkeypatch), tmp_path / "model", kind, rows=3, **options)
    found = convert(tmp_path, kind)
    assert differences(model, kind, found, rows=3) < 1e-5


@pytest.mark.parametrize("form", ["in parts", "pytorch_model.bin", "pytorch_model.bin in parts, half precision"])
def test_weights_are_read_from_every_form_of_file(form, tmp_path, monkeypatch):
    model = make_model(import_transformers(monkeypatch), tmp_path / "model", "bart")
    model.final_logits_bias.zero_()
    weights = model.state_dict()
    if "half" in form:
        weights = {name: weight.half() for name, weight in weights.items()}
        model.half().float()
    if form == "in parts":
        model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
        (tmp_path / "model" / "model.safetensors").unlink(missing_ok=True)
        assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    else:
        (tmp_path / "model" / "model.safetensors").unlink()
        names = ["pytorch_model.bin"] if "parts" not in form else ["a.bin", "b.bin"]
        for i, name in enumerate(names):
            part = {each: weight for j, (each, weight) in enumerate(weights.items()) if j % len(names) == i}
            torch.save(part, tmp_path / "model" / name)
        if len(names) > 1:
            index = {"weight_map": {each: names[j % 2] for j, each in enumerate(weights)}}
            (tmp_path / "model" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    ours, task = convert(tmp_path, "bart")
    assert ours.encoder.embed_tokens is ours.decoder.embed_tokens  # there is no bias
    assert ours.decoder.output_projection.weight is ours.decoder.embed_tokens.weight
    assert differences(model, "bart", (ours, task)) < 1e-5


def greedy(model, kind, most):
    """The translations of SENTENCES by transformers, in fairseq's symbols."""
    _, vocabulary, _, pair = KINDS[kind]
    filler = "madeupword0000"
    found = []
    for sentence in SENTENCES:
        row = [*pair[:1], *sentence, "</s>"]
        row = [vocabulary.index({"en": "__en__"}.get(symbol, symbol)) for symbol in row]
        forced = {"forced_bos_token_id": vocabulary.index({"fr": "__fr__"}.get(pair[1], pair[1]))} if pair else {}
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": most, "min_new_tokens": 1}
        options |= {"bad_words_ids": [[model.config.pad_token_id]], "forced_eos_token_id": vocabulary.index("</s>")}
        options |= {
            "eos_token_id": vocabulary.index("</s>"),
            "decoder_start_token_id": model.config.decoder_start_token_id,
        }
        with torch.no_grad():
            tokens = model.generate(torch.tensor([row]), **options | forced)[0][1:].tolist()
        symbols = [vocabulary[token] for token in tokens[: tokens.index(vocabulary.index("</s>"))]]
        # fairseq leaves out <s> and languages.
        found.append([filler if s == "\u2028" else s for s in symbols if s not in ("<s>", *pair[1:], "__fr__")])
    return found


def imported(transformers, folder, kind, run):
    """A model of transformers, and what a user does to translate SENTENCES with fairseq: model, data, options, text."""
    model = make_model(transformers, folder / "model", kind, biases=0.05)
    convert(folder, kind)
    task = shlex.split((folder / "out" / "task.txt").read_text())
    pair = [task[task.index(f"--{side}-lang") + 1] for side in ("source", "target")]
    for language in pair:
        for split, times in (("train", 9), ("valid", 1), ("test", 1)):
            lines = [" ".join(sentence) + "\n" for sentence in SENTENCES * times]
            (folder / f"{split}.{language}").write_text("".join(lines))
    dictionaries = [folder / "out" / f"dict.{language}.txt" for language in pair]
    names = ["-s", pair[0], "-t", pair[1], "--srcdict", dictionaries[0], "--tgtdict", dictionaries[1]]
    files = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run("fairseq-preprocess", *names, *files, "--destdir", folder / "bin")
    return model, folder / "bin", task


def translations(run, data, path, task):
    printed = run("fairseq-generate", data, *task, "--path", path, *EVALUATION, "--beam", "1", "--max-len-b", "9").out
    lines = [line.split("\t") for line in printed.splitlines() if line.startswith("H-")]
    return [line[2].split() for line in sorted(lines)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["nllb", "mbart50", "bart"])
def test_translations_are_those_of_transformers(kind, tmp_path, monkeypatch, run):
    model, data, task = imported(import_transformers(monkeypatch), tmp_path, kind, run)
    found = translations(run, data, tmp_path / "out" / "model.pt", task)
    assert len({tuple(line) for line in found}) > 1
    assert found == greedy(model, kind, 10)


@pytest.mark.release
def test_a_model_of_opus_goes_the_whole_way_to_ctranslate2(tmp_path, monkeypatch, forked):
    """The commands of docs/huggingface.md."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    model, data, task = imported(import_transformers(monkeypatch), tmp_path, "marian", forked)
    path = tmp_path / "out" / "model.pt"
    found = translations(forked, data, path, task)
    assert len({tuple(line) for line in found}) > 1
    assert found == greedy(model, "marian", 10)
    short = [*EVALUATION[2:], "--max-len-b", "9"]
    trimmed, small = tmp_path / "trimmed", tmp_path / "small.pt"
    forked("headgates", "trim", data, *task, "--path", path, *short, "--out", trimmed)
    assert translations(forked, trimmed, trimmed / "model.pt", task) == found
    given = ["--path", trimmed / "model.pt", "--params", "0.9", "--sentences", "3", "--out", small]
    forked("headgates", "compress", trimmed, *task, *given, *short)
    assert translations(forked, trimmed, small, task) != []
    for name, checkpoint, data in (("whole", path, tmp_path / "out"), ("small", small, trimmed)):
        forked("headgates", "convert", "--path", checkpoint, "--out", tmp_path / name, "--to", "ctranslate2", data)
    translator = ctranslate2.Translator(str(tmp_path / "whole"), intra_threads=1)
    options = {"beam_size": 1, "max_decoding_length": 10, "suppress_sequences": [["<blank>"]]}
    short = [each.hypotheses[0] for each in translator.translate_batch(SENTENCES, **options)]
    assert [line[:9] for line in short] == found


@pytest.mark.parametrize("name", ["MBart50", "M2M100"])
def test_symbols_have_the_numbers_of_the_tokenizer(name, tmp_path, monkeypatch):
    """In the files that are published: a model of SentencePiece, and the list of the languages."""
    transformers, sentencepiece = import_transformers(monkeypatch), pytest.importorskip("sentencepiece")
    text = iter(["the dog runs over the hill", "a cat sleeps", "dogs and cats"] * 20)
    with open(tmp_path / "sentencepiece.bpe.model", "wb") as model:
        options = {"vocab_size": 28, "hard_vocab_limit": False, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=text, model_writer=model, **options)
    if name == "M2M100":
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))
        symbols = SPECIAL + [pieces.id_to_piece(i) for i in range(3, len(pieces))]
        (tmp_path / "vocab.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    tokenizer = getattr(transformers, f"{name}Tokenizer").from_pretrained(tmp_path)
    expected = getattr(tokenizer, "lang_token_to_id", {}) or tokenizer.lang_code_to_id
    special = {"additional_special_tokens": list(expected)}
    special |= {"mask_token": {"content": "<mask>"}} if name == "MBart50" else {}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    found = read_vocabulary(tmp_path)
    words = tokenizer.tokenize("the dog sleeps over a hill")
    assert {symbol: found[symbol] for symbol in expected} == expected and len(words) > 5
    assert [found[word] for word in words] == tokenizer.convert_tokens_to_ids(words)
    assert name == "M2M100" or found["<mask>"] == tokenizer.mask_token_id


# --- what is refused --------------------------------------------------------------------------------------------------


EMBEDDED = {"model.shared.weight": torch.ones(len(M2M), SIZE)}


def small_folder(folder, weights, **config):
    """A folder of an M2M-100 with these weights."""
    folder.mkdir()
    given = CONFIG | {"model_type": "m2m_100", "activation_function": "relu", "decoder_start_token_id": 2} | config
    (folder / "config.json").write_text(json.dumps(given))
    pieces = [[symbol, -1.0] for symbol in M2M]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    torch.save(weights, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("languages", "config", "words"),
    [
        ("en fr", {"model_type": "t5"}, ["model_type is 't5'", "marian, m2m_100, mbart, bart, bert"]),
        ("en fr", {"decoder_start_token_id": 0}, ["decoder_start_token_id is 0", "</s>, 2"]),
        ("en fr", {"activation_function": "quick_gelu"}, ["activation_function is 'quick_gelu'", "gelu, gelu_new"]),
        ("en xx", {}, ["'xx' is no language of the model", "its 2", "en, fr"]),
        ("en", {}, ["None is no language of the model", "--target-lang"]),
        ("en fr", {}, ["no whole model", "encoder.layers.0.self_attn.k_proj.weight"]),
        ("en fr", {"d_model": None}, ["no whole model", "NoneType"]),
    ],
)
def test_another_model_is_refused_in_one_line(languages, config, words, tmp_path, capsys):
    small_folder(tmp_path / "model", EMBEDDED, **config)
    refused(tmp_path, languages, words, capsys)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, ["no whole model", "shared.weight is missing"]),
        ({"model.shared.weight": torch.ones(9, SIZE)}, ["the number 16", "9 rows"]),
    ],
)
def test_weights_of_another_model_are_refused_in_one_line(weights, words, tmp_path, capsys):
    small_folder(tmp_path / "model", weights)
    refused(tmp_path, "en fr", words, capsys)


def test_weights_that_fairseq_does_not_have_are_refused_by_name(tmp_path, monkeypatch, capsys):
    model = make_model(import_transformers(monkeypatch), tmp_path / "model", "m2m_100")
    (tmp_path / "model" / "model.safetensors").unlink()
    weights = model.state_dict() | {"model.encoder.adapter.weight": torch.ones(1)}
    torch.save(weights, tmp_path / "model" / "pytorch_model.bin")
    refused(tmp_path, "en fr", ["encoder.adapter.weight"], capsys)


@pytest.mark.release
def test_the_script_runs_in_any_folder(tmp_path):
    small_folder(tmp_path / "model", {})
    words = [sys.executable, RECIPES / "import_huggingface.py", "model", "out", "-s", "en", "-t", "fr"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2 and "shared.weight is missing" in ended.stderr.splitlines()[-1], ended.stderr


def test_code_in_weights_does_not_run(tmp_path, capsys):
    small_folder(tmp_path / "model", {"model.shared.weight": Touch(tmp_path / "ran")})
    refused(tmp_path, "en fr", ["pytorch_model.bin cannot be read"], capsys)
    assert not (tmp_path / "ran").exists()


class Touch:
    """Creates a file when it is unpickled by a program that runs code of files."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def refused(folder, languages, words, capsys):
    given = [word for pair in zip(("-s", "-t"), languages.split(), strict=False) for word in pair]
    with pytest.raises(SystemExit) as ended:
        import_huggingface.main([str(folder / "model"), str(folder / "out"), *given])
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and all(word in line for word in words), line
    assert not (folder / "out").exists()
