"""import_huggingface.py: encoder-decoders with the outputs of transformers, where it is installed; what is refused."""

import json
import shlex

import pytest
import torch
from support.huggingface import import_transformers, randomized

import import_huggingface

PIECES = ["▁a", "▁b", "c", "d", "▁the", "▁dog", "▁cat", "s", "e", "n", "▁"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZE = 16
CONFIG = {"d_model": SIZE, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20}
CONFIG |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 32}
# The vocabulary of each model by its numbers, as its tokenizer numbers it; its options and languages.
MARIAN = ["</s>", "<unk>", *PIECES, "\u2028", "<pad>"]
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
SENTENCES = [["▁the", "▁dog", "s"], ["▁a", "d", "c", "▁cat", "n", "e"], ["▁b"]]


def make_model(transformers, folder, kind, rows=0, **config):
    """A model of transformers with random weights, saved with its vocabulary; `rows` more than it has symbols."""
    prefix, vocabulary, options, _ = KINDS[kind]
    ends = {"marian": {"decoder_start_token_id": 14, "eos_token_id": 0, "forced_eos_token_id": 0}}.get(kind, {})
    values = CONFIG | {"vocab_size": len(vocabulary) + rows} | options | ends | config
    name = "MTModel" if prefix == "Marian" else "ForConditionalGeneration"
    model = getattr(transformers, prefix + name)(getattr(transformers, f"{prefix}Config")(**values)).eval()
    randomized(model)
    model.save_pretrained(folder)
    if kind in ("marian", "m2m_100"):
        numbers = {symbol: number for number, symbol in enumerate(vocabulary) if not symbol.startswith("__")}
        (folder / "vocab.json").write_text(json.dumps(numbers))
        languages = [symbol for symbol in vocabulary if symbol.startswith("__")]
        options = {"additional_special_tokens": languages, "source_lang": "en", "target_lang": "de"}
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    else:
        pieces = [[symbol, -1.0] for symbol in vocabulary]
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    return model


def load(folder):
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    import fairseq_headgates  # noqa: F401  (fairseq's swish)

    (model,), _, task = load_model_ensemble_and_task([str(folder / "model.pt")], {"data": str(folder)})
    return model.eval(), task


def padded(rows, pad, left):
    size = max(map(len, rows))
    return torch.tensor([[pad] * (size - len(r)) * left + r + [pad] * (size - len(r)) * (not left) for r in rows])


def compare(model, kind, out, rows=0):
    """The largest difference of the logits from those of transformers, and fairseq's model and task."""
    ours, task = load(out)
    _, vocabulary, _, pair = KINDS[kind]
    spelled = {"eng_Latn": "__eng_Latn__", "fra_Latn": "__fra_Latn__", "en_XX": "[en_XX]", "ro_RO": "[ro_RO]"}
    source, target = task.source_dictionary, task.target_dictionary
    at = [target.index(spelled.get(symbol, symbol)) for symbol in vocabulary]
    fillers = [i for i, symbol in enumerate(target.symbols) if symbol.startswith("madeup") and i not in at]
    at = [next(iter(fillers)) if symbol == "\u2028" else i for symbol, i in zip(vocabulary, at)]
    at += [i for i in fillers if i not in at]
    assert len(at) == len(vocabulary) + rows and len(target) == len(at) + (kind == "marian")
    start = vocabulary.index("ro_RO") if kind == "mbart" else model.config.decoder_start_token_id or 2
    end = vocabulary.index("</s>")
    inputs = [[vocabulary.index(symbol) for symbol in sentence] + [end] for sentence in SENTENCES]
    outputs = [[start] + row[:-1] for row in inputs[1:] + inputs[:1]]
    ours_start = target.index("[ro_RO]") if kind == "mbart" else target.eos()
    src = padded([[at[i] for i in row] for row in inputs], 1, True)
    prev = padded([[ours_start] + [at[i] for i in row[1:]] for row in outputs], 1, False)
    with torch.no_grad():
        logits = ours(src, torch.tensor([len(row) for row in inputs]), prev)[0]
        different = 0.0
        for row, given, found in zip(inputs, outputs, logits, strict=True):
            expected = model(torch.tensor([row]), decoder_input_ids=torch.tensor([given])).logits[0]
            different = max(different, float((found[: len(given)][:, at] - expected).abs().max()))
    if kind == "marian":
        assert logits[:, :, target.bos()].max() < -900
    return different, ours, task


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind, tmp_path, monkeypatch, capsys):
    transformers = import_transformers(monkeypatch)
    model = make_model(transformers, tmp_path / "model", kind, rows=3)
    languages = [word for pair in zip(("-s", "-t"), KINDS[kind][3]) for word in pair]
    assert import_huggingface.main([str(tmp_path / "model"), str(tmp_path / "out"), *languages]) == 0
    different, ours, _ = compare(model, kind, tmp_path / "out", rows=3)
    assert different < 1e-5
    print(capsys.readouterr().out)
