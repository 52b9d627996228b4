"""The recipes for classifiers: tables against independent computation, resumption, bad text."""

import gzip
import json
import random
import shlex

import pytest
import torch
from scipy.stats import binomtest
from support.commands import run_program
from support.recipes import RECIPES, refused, run

import commands

TINY = {"EMBED": 32, "FFN": 32, "LAYERS": 2, "HEADS": 4, "MAX_POSITIONS": 12, "BPE": 20, "MLM_UPDATES": 4}
TINY |= {"MLM_WARMUP": 1, "UPDATES": 30, "WARMUP": 3, "LR": 0.01, "BATCH": 16, "PRUNE_UPDATES": 8, "PRUNE_WARMUP": 1}
TINY |= {"TOKENIZE": "", "STEPS": "0,50", "SENTENCES": 30, "CURVES": "gradient", "RUNS": "=0.5"}
BOTH = {"RUNS": "=0.5 =0.5@gradient"}
LABELS = ("not good", "good")


def make_text(folder, columns=1, name="valid"):
    """Sentences of made-up words, whose label is that of the first word; some are longer than the model."""
    rng = random.Random(4)
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 120), (name, 10), ("test", 21)):
        lines = []
        for _ in range(number):
            texts = [
                [rng.choice("abcdefgh") * rng.randint(1, 2) for _ in range(rng.randint(2, 9))] for _ in range(columns)
            ]
            lines.append("\t".join([*map(" ".join, texts), LABELS[texts[0][0][0] in "abcd"]]) + "\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
    return folder


def rows(path):
    """The columns of a TSV, by the first one."""
    header, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


def classes(checkpoint, out, most=12):
    """The labels that a model gives the sentences of the test set, one at a time, read from the files of text."""
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    import fairseq_headgates  # noqa: F401  (registers what the checkpoint names)

    (model,), _, task = load_model_ensemble_and_task([str(checkpoint)], {"data": str(out / "data-bin")})
    names = (out / "text" / "labels.txt").read_text().splitlines()
    files = sorted((out / "text").glob("test.bpe.input*"))
    found = []
    for texts in zip(*(file.read_text().splitlines() for file in files), strict=True):
        sides = [task.source_dictionary.encode_line(text, add_if_not_exist=False).tolist() for text in texts]
        tokens = [token for start, side in zip((0, 2), sides, strict=False) for token in (start, *side)]
        with torch.no_grad():
            logits = model.eval()(
                torch.tensor([tokens[:most]]),
                features_only=True,
                classification_head_name="sentence_classification_head",
            )[0]
        found.append(names[int(logits.argmax())])
    return found, sum(parameter.numel() for parameter in model.parameters())


def truth(raw):
    return [line.split("\t")[-1] for line in (raw / "test.tsv").read_text().splitlines()]


def p_value(one, other, gold):
    """McNemar's exact test: the binomial test of the sentences that one of both gets right."""
    first = sum(a == g != b for a, b, g in zip(one, other, gold, strict=True))
    second = sum(b == g != a for a, b, g in zip(one, other, gold, strict=True))
    return binomtest(first, first + second, 0.5).pvalue if first + second else 1.0


# --- whole recipes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def classified(made_once):
    """classification.sh, run to its end on sentences: its folder, with raw, out and printed.txt."""

    def make(folder):
        make_text(folder / "raw", name="dev")
        with gzip.open(folder / "raw" / "train.tsv.gz", "wb") as file:
            file.write((folder / "raw" / "train.tsv").read_bytes())
        (folder / "raw" / "train.tsv").unlink()
        result = run("classification.sh", folder / "raw", folder / "out", **TINY | BOTH)
        assert result.returncode == 0, result.stdout + result.stderr
        (folder / "printed.txt").write_text(result.stdout)

    return made_once("classified", make)


BEFORE_A_RELEASE = [pytest.mark.rehearsal, pytest.mark.release]


def of_classified(test):
    return pytest.mark.xdist_group("classified")(pytest.mark.rehearsal(pytest.mark.release(test)))


@of_classified
def test_the_table_has_the_numbers_of_an_independent_computation(classified):
    out, gold = classified / "out", truth(classified / "raw")
    table = rows(out / "results.tsv")
    files = {"baseline": "checkpoint_last.pt", "baseline+": "checkpoint_last.pt"}
    assert list(table) == ["baseline", "gradient-50%", "baseline+", "heads0.5", "heads0.5_gradient"]
    found = {name: classes(out / name / files.get(name, "pruned.pt"), out) for name in table if "%" not in name}
    # The point of the curve is the model with which the fine-tuned one starts.
    found["gradient-50%"] = classes(out / "heads0.5_gradient" / "start.pt", out)
    for name, row in table.items():
        labels, parameters = found[name]
        control = found[row["control"]][0]
        accuracy, of_control = (100 * sum(map(str.__eq__, each, gold)) / len(gold) for each in (labels, control))
        assert float(row["accuracy"]) == pytest.approx(accuracy), name
        assert float(row["diff"]) == pytest.approx(accuracy - of_control)
        assert int(row["parameters"]) == parameters
        assert (row["kept"], row["of"]) == ("8" if name.startswith("baseline") else "4", "8")
        if row["control"] == name:
            assert row["p"] == "-"
        else:
            assert float(row["p"]) == pytest.approx(p_value(labels, control, gold))
    assert len({row["accuracy"] for row in table.values()}) > 2  # they differ
    assert [row["control"] for row in table.values()] == ["baseline"] * 2 + ["baseline+"] * 3
    plot = (out / "results.svg").read_text()
    assert all(f">{name}</text>" in plot for name in ("baseline+", "gates", "gradient", "gradient, trained further"))
    lines = [line.split() for line in (classified / "printed.txt").read_text().splitlines() if "/8 " in line]
    assert [line[:2] for line in lines] == [[name, f"{row['kept']}/8"] for name, row in table.items()]
    assert [line[3] for line in lines] == [f"{float(row['accuracy']):.2f}" for row in table.values()]


@of_classified
def test_fairseq_validate_gives_the_same_accuracy(classified, tmp_path):
    out = classified / "out"
    command = "fairseq-validate {0}/data-bin --task sentence_prediction --criterion sentence_prediction --cpu "
    command += "--path {0}/baseline+/checkpoint_last.pt --valid-subset test --batch-size 4 --num-workers 0 "
    command += "--required-batch-size-multiple 1 --user-dir {1} --log-format json --distributed-world-size 1"
    words = shlex.split(command.format(out, RECIPES.parent / "fairseq_headgates"))
    logged = next(line for line in run_program(tmp_path, *words).text.splitlines() if '"test_accuracy"' in line)
    accuracy = float(json.loads(logged[logged.index("{") :])["test_accuracy"])
    assert accuracy == pytest.approx(float(rows(out / "results.tsv")["baseline+"]["accuracy"]), abs=0.05)


@of_classified
def test_a_finished_recipe_prints_the_same_table_and_trains_nothing(classified):
    out, arguments = classified / "out", (classified / "raw", classified / "out")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    dry = run("classification.sh", "--dry-run", *arguments, **TINY | BOTH)
    assert len(dry.stdout.splitlines()) == 1 and "results.table" in dry.stdout, dry.stdout + dry.stderr
    again = run("classification.sh", *arguments, **TINY | BOTH)
    table = (classified / "printed.txt").read_text().splitlines()[-9:]
    assert again.stdout.splitlines()[-9:] == table and "training" not in again.stdout
    changed = {path.name for path, then in before.items() if path.exists() and path.stat().st_mtime_ns != then}
    assert changed <= {"results.txt", "results.tsv", "results.svg", ".lock"}
    refused(
        run("classification.sh", *arguments, **TINY | BOTH | {"UPDATES": 9}),
        "was made with other settings",
        "UPDATES=30",
    )
    refused(
        run("classification.sh", *arguments, **TINY | BOTH | {"STEPS": "0,25"}),
        "was made with other settings",
        "STEPS=0,50",
    )
    # Without the runs the same folder gives a smaller table.
    fewer = run("classification.sh", *arguments, **TINY | {"RUNS": ""})
    assert [line.split()[0] for line in fewer.stdout.splitlines() if "/8 " in line] == ["baseline", "gradient-50%"]


@pytest.mark.rehearsal
@pytest.mark.release
def test_pairs_and_several_seeds(tmp_path):
    make_text(tmp_path / "raw", columns=2)
    given = TINY | {"SEEDS": "1 2", "CURVES": "", "TOKENIZE": "-l en tokenize", "LOWERCASE": 1}
    result = run("classification.sh", tmp_path / "raw", tmp_path / "out", **given)
    assert result.returncode == 0, result.stdout + result.stderr
    out, gold = tmp_path / "out", truth(tmp_path / "raw")
    lines = [line.split("\t") for line in (out / "results.tsv").read_text().splitlines()[1:]]
    names = ["baseline", "baseline+", "heads0.5"]
    assert [line[:2] for line in lines] == [[name, seed] for seed in "12" for name in names]
    expected = [
        100 * sum(map(str.__eq__, classes(out / f"seed{seed}" / "heads0.5" / "pruned.pt", out)[0], gold)) / len(gold)
        for seed in (1, 2)
    ]
    assert [float(line[5]) for line in lines if line[0] == "heads0.5"] == pytest.approx(expected)
    shown = f"{sum(expected) / 2:.2f} ({min(expected):.2f}..{max(expected):.2f})"
    assert any(line.startswith("heads0.5 ") and shown in line for line in result.stdout.splitlines())


# --- mnli.sh ----------------------------------------------------------------------------------------------------------


def make_mnli(folder):
    """What mnli.sh downloads, in miniature: GLUE's archive, a BPE of single bytes, and a RoBERTa for it."""
    import argparse
    import tarfile
    import zipfile

    from fairseq.data import Dictionary
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
    from fairseq.models.roberta import RobertaModel

    folder.mkdir()
    symbols = list(bytes_to_unicode().values())
    (folder / "encoder.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\n")
    rng = random.Random(1)
    with zipfile.ZipFile(folder / "MNLI.zip", "w") as archive:
        for name, number in (("train", 60), ("dev_matched", 9), ("dev_mismatched", 7)):
            lines = ["index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"]
            for i in range(number):
                label = ["neutral", "entailment", "contradiction", "-"][i % 4]
                lines.append(f"{i}\tx\tA “cat” {rng.randint(0, 9)}.\tA dog.\t{label}\t{label}")
            archive.writestr(f"MNLI/{name}.tsv", "\n".join(lines) + "\n")
    inside = folder / "roberta.base"
    inside.mkdir()
    (inside / "dict.txt").write_text("".join(f"{i} 1\n" for i in range(256)))
    dictionary = Dictionary.load(str(inside / "dict.txt"))
    dictionary.add_symbol("<mask>")
    args = argparse.Namespace(
        arch="roberta_base", encoder_layers=2, encoder_embed_dim=32, encoder_ffn_embed_dim=32,
        encoder_attention_heads=4, max_positions=40, tokens_per_sample=40, task="masked_lm", criterion="masked_lm",
        optimizer="adam", lr_scheduler="fixed", lr=[0.1],
    )  # fmt: skip
    model = RobertaModel.build_model(args, argparse.Namespace(source_dictionary=dictionary))
    # As in the published file: an old form, in which the encoder is called "decoder".
    weights = {name.replace("encoder.", "decoder.", 1): weight for name, weight in model.state_dict().items()}
    weights = {name.replace("layernorm_embedding", "emb_layer_norm"): weight for name, weight in weights.items()}
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state = {"args": args, "model": weights, "optimizer_history": [{"num_updates": 1, **history}]}
    state |= {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}
    torch.save(state, inside / "model.pt")
    with tarfile.open(folder / "roberta.base.tar.gz", "w:gz") as archive:
        archive.add(inside, inside.name)
    return folder


@pytest.mark.rehearsal
@pytest.mark.release
def test_mnli_goes_from_archives_to_a_table(tmp_path):
    place = make_mnli(tmp_path / "mirror")
    sizes = TINY | {"CPU": 1, "DISK_GB": 1, "DATA_DIR": place, "RUNS": ":0.0015", "MAX_POSITIONS": 40}
    refused(run("mnli.sh", tmp_path / "other", **sizes | {"LAYERS": 3}), "has other sizes: set LAYERS=2")
    result = run("mnli.sh", tmp_path / "out", **sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "train (train): 45 pairs" in result.stdout and "test (dev_matched): 7 pairs" in result.stdout
    out = tmp_path / "out"
    first = (out / "raw" / "test.tsv").read_text().splitlines()[0].split("\t")
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    bpe = get_encoder(str(place / "encoder.json"), str(place / "vocab.bpe"))
    assert bpe.decode(map(int, first[0].split())).startswith("A “cat” ") and first[2] == "neutral"
    assert (out / "text" / "labels.txt").read_text().split() == ["contradiction", "entailment", "neutral"]
    table = rows(out / "results.tsv")
    assert list(table) == ["baseline", "gradient-50%", "baseline+", "lambda0.0015"]
    labels, _ = classes(out / "baseline+" / "checkpoint_last.pt", out, most=40)
    gold = truth(out / "raw")
    assert float(table["baseline+"]["accuracy"]) == pytest.approx(100 * sum(map(str.__eq__, labels, gold)) / 7)
    dry = run("mnli.sh", "--dry-run", out, **sizes)
    programs = [shlex.split(line)[2] for line in dry.stdout.splitlines() if line[0] != "#"]
    assert programs == ["corpora.get", "results.table"]


# --- before anything runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["classification.sh", pytest.param("mnli.sh", marks=BEFORE_A_RELEASE)])
def test_a_dry_run_prints_every_command_and_writes_nothing(recipe, tmp_path):
    raw = [make_text(tmp_path / "raw", 2)] if recipe == "classification.sh" else []
    before = sorted(tmp_path.rglob("*"))
    given = {"RUNS": "=0.5 :0.1 =0.5@gradient =0.5@random", "CURVES": "gradient random", "DISK_GB": 0}
    result = run(recipe, "--dry-run", *raw, tmp_path / "out", **given)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert sorted(tmp_path.rglob("*")) == before
    commands = result.stdout.splitlines()
    trainings = [line for line in commands if "train.py" in line]
    masked = ["--task masked_lm" in line for line in trainings]
    assert masked == [True] * (recipe == "classification.sh") + [False] * 6
    # The output layer of masked language modelling has no gradient in fine-tuning: torch needs to know on several GPUs.
    assert ["--find-unused-parameters" in line for line in trainings] == [not pretraining for pretraining in masked]
    assert ["--gate-heads enc-self" in line for line in trainings][-5:] == [False, True, True, False, False][-5:]
    assert sum("headgates curve" in line for line in commands) == 2
    assert sum("fairseq-preprocess" in line for line in commands) == (4 if raw else 3)
    assert len(commands) == len(set(commands))
    programs = (
        ("corpora.get fetch mnli", "corpora.pretrained roberta.base", "corpora.mnli")
        if not raw
        else ("subword-nmt learn-bpe",)
    )
    assert all(program in result.stdout for program in programs)


def test_a_tokenizer_of_hugging_face_reads_the_raw_text_and_curves_are_refitted(tmp_path):
    given = {"PRETRAINED": "bert/model.pt", "PRETRAINED_CODES": "bert/tokenizer.json", "RUNS": "", "SENTENCES": 70}
    given |= {"CURVES": "gradient gradient-refit refit"}
    result = run("classification.sh", "--dry-run", make_text(tmp_path / "raw", 2), tmp_path / "out", **given)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    commands = [shlex.split(line) for line in result.stdout.splitlines()]
    encoding = [words for words in commands if "text.in_blocks" in words]
    assert [words[3].split("/")[-1] for words in encoding] == [
        f"{split}.raw.{column}" for split in ("train", "valid", "test") for column in ("input0", "input1")
    ]
    assert all(words[4].split()[-2:] == ["text.wordpieces", "bert/tokenizer.json"] for words in encoding)
    scores = [words for words in commands if words[:2] == ["headgates", "score"]]
    assert [words[words.index("--method") + 1] for words in scores] == ["gradient", "gradient", "refit"]  # once, if run
    curves = [words for words in commands if words[:2] == ["headgates", "curve"]]
    read = [words[words.index("--scores") + 1].split("/")[-1] for words in curves]
    assert read == ["gradient.scores.json", "gradient.scores.json", "refit.scores.json"]
    refits = [words[words.index("--refit") :][1:3] if "--refit" in words else None for words in curves]
    assert refits == [None, ["--refit-sentences", "70"], ["--refit-sentences", "70"]]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("valid.tsv", None, ["valid.tsv is missing", "valid (or dev)"]),
        ("dev.tsv", "a b\tgood\n", ["valid.tsv and dev.tsv", "keep one"]),
        ("train.tsv", "a b\tgood\nc d\n", ["train.tsv, line 2 has 1 columns, line 1 has 2", "text<TAB>label"]),
        ("train.tsv", "a b\tgood\nc d\t \n", ["train.tsv, line 2 has an empty column"]),
        ("train.tsv", "a b\tgood\nc d\tgood\n", ["only the label 'good'"]),
        ("train.tsv", "sentence\tlabel\na b\tgood\nc\tbad\n", ["line 1 is a header (label 'label')"]),
        ("test.tsv", "a b\tgood\nc d\tfine\n", ["test.tsv, line 2 has the label 'fine'", "one of 'good, not good'"]),
        ("test.tsv", "a\tb\tgood\n", ["test.tsv has 3 columns and train.tsv 2"]),
        ("test.tsv.gz", b"no archive", ["test.tsv and test.tsv.gz", "keep one"]),
    ],
)
def test_text_that_cannot_be_read_is_refused(file, content, words, tmp_path, capsys):
    raw = make_text(tmp_path / "raw")
    if content is None:
        (raw / file).unlink()
    else:
        (raw / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert commands.run("corpora.labelled", str(raw), str(tmp_path / "text")) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words) and not (tmp_path / "text").exists()


def test_text_is_written_in_columns_with_numbers_of_labels(tmp_path, capsys):
    raw = make_text(tmp_path / "raw", 2)
    (raw / "test.tsv").write_bytes("\ufeffa\u2028b\t c \tgood\r\nd\te\tnot good".encode())
    assert commands.run("corpora.labelled", str(raw), str(tmp_path / "text")) == 0
    assert "test: 2 pairs: 'good' 1, 'not good' 1\n" in capsys.readouterr().out
    assert (tmp_path / "text" / "labels.txt").read_text() == "good\nnot good\n"
    read = {path.name: path.read_text() for path in (tmp_path / "text").iterdir()}
    assert (
        read["test.raw.input0"] == "a b\nd\n" and read["test.raw.input1"] == "c\ne\n" and read["test.label"] == "0\n1\n"
    )
    columns = [read[f"train.{name}"].splitlines() for name in ("raw.input0", "raw.input1")]
    numbers = [labelled_as.split() for labelled_as in read["train.label"].splitlines()]
    ours = ["\t".join([*texts, ("good", "not good")[int(n)]]) for *texts, (n,) in zip(*columns, numbers, strict=True)]
    theirs = (raw / "train.tsv").read_text().splitlines()
    assert ours != theirs and sorted(ours) == sorted(theirs)  # shuffled


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"BATCH": 7, "UPDATE_FREQ": 2}, ["BATCH=7 must be a multiple of 2"]),
        ({"PRETRAINED": "nowhere.pt"}, ["PRETRAINED='nowhere.pt' is not a file"]),
        ({"MLM_TOKENS": 20, "UPDATE_FREQ": 2}, ["MLM_TOKENS=20 must be at least 24"]),
        ({"PRETRAINED": __file__}, ["dict.txt is missing", "PRETRAINED_DICT"]),
        ({"PRETRAINED": __file__, "PRETRAINED_DICT": __file__}, ["bpecodes is missing", "PRETRAINED_CODES"]),
    ],
)
def test_the_recipe_refuses_invalid_settings_before_it_writes(given, words, tmp_path):
    refused(run("classification.sh", make_text(tmp_path / "raw"), tmp_path / "out", **TINY | given), *words)
    assert not (tmp_path / "out").exists()
