"""headgates trim: the folder that it writes, and the models of every task in it."""

import random
import re
import shutil
from collections import Counter

import pytest
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import make_builder
from support.checkpoints import read
from support.classifiers import CLASSES
from support.commands import EVALUATION
from support.language_models import BLOCKS
from support.training import assert_one_line_error

CPU = ["--cpu", "--num-workers", "0"]


@pytest.fixture(scope="module")
def words(made_once, run):
    """A folder with text of 60 words and its binary form: 40 of them are in the training set, in valid 20, in test all.

    Source and target have a dictionary each; that of the target has another order. And a checkpoint after 30 updates.
    """

    def make(folder):
        chance = random.Random(1)
        for split, sentences, number in (("train", 200, 40), ("valid", 20, 20), ("test", 20, 60)):
            lines = [[f"w{chance.randrange(number)}" for _ in range(chance.randint(3, 9))] for _ in range(sentences)]
            for side, text in (("en", lines), ("de", [[word.upper() for word in line] for line in lines])):
                (folder / f"{split}.{side}").write_text("".join(" ".join(line) + "\n" for line in text))
        (folder / "en.txt").write_text("".join(f"w{i} 1\n" for i in range(60)) + "a 1\nmadeupword0000 0\n")
        (folder / "de.txt").write_text("".join(f"W{i} 1\n" for i in reversed(range(60))))
        files = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
        dictionaries = ["--srcdict", folder / "en.txt", "--tgtdict", folder / "de.txt", "--destdir", folder / "bin"]
        run("fairseq-preprocess", "-s", "en", "-t", "de", *files, *dictionaries)
        sizes = "embed-dim=16 ffn-embed-dim=16 layers=1 attention-heads=2".split()
        model = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in sizes]
        training = "--optimizer adam --lr 0.01 --max-tokens 500 --max-update 30 --no-epoch-checkpoints --seed 1".split()
        places = [folder / "bin", "--arch", "transformer", "--save-dir", folder, "--disable-validation", *CPU]
        run("fairseq-train", *places, *model, *training)

    return made_once("words", make)


def sentences(folder, split, language):
    """The text that a folder of binarised data has."""
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = data_utils.load_indexed_dataset(str(folder / f"{split}.en-de.{language}"), None, None)
    return [dictionary.string(tokens) for tokens in data]


def test_dictionaries_data_and_checkpoint_have_the_words_of_the_subsets(words, run, tmp_path):
    out = tmp_path / "out"
    run("headgates", "trim", words / "bin", "--path", words / "checkpoint_last.pt", *CPU, "--out", out)
    model, whole = read(out / "model.pt")["model"], read(words / "checkpoint_last.pt")["model"]
    for language, stack in (("en", "encoder"), ("de", "decoder")):
        occurring = set((words / f"train.{language}").read_text().split()) | {"a"}
        stored = [line.split()[0] for line in (words / f"{language}.txt").read_text().splitlines()]
        expected = [word for word in stored if word in occurring]
        assert [line.split()[0] for line in (out / f"dict.{language}.txt").read_text().splitlines()] == expected
        for split in ("train", "valid", "test"):
            lines = [line.split() for line in (words / f"{split}.{language}").read_text().splitlines()]
            known = [" ".join(word if word in occurring else "<unk>" for word in line) for line in lines]
            assert sentences(out, split, language) == known
        rows = [0, 1, 2, 3, *(4 + stored.index(word) for word in expected)]
        name = f"{stack}.embed_tokens.weight"
        torch.testing.assert_close(model[name], whole[name][rows], rtol=0, atol=0)
    assert read(out / "model.pt")["last_optimizer_state"] is None


def test_what_is_printed(words, run, tmp_path):
    path, out = words / "checkpoint_last.pt", tmp_path / "out"
    done = run("headgates", "trim", words / "bin", "--path", path, *CPU, "--out", out, "--size", "24", "--keep=valid")
    frequent = dict(Counter((words / "valid.en").read_text().split()).most_common(19))
    frequent |= {"a": 1}
    lost = sum(word not in frequent for word in (words / "test.en").read_text().split())
    table = {name.strip(): cells for line in done.out.splitlines() for name, *cells in [re.split(r"  +", line)]}
    assert table["symbols of the source"] == ["66", "24"] and table["symbols of the target"] == ["64", "24"]
    both = re.search(r"tokens of test that become <unk>: (\d+) of (\d+)", done.out)
    total = 2 * (len((words / "test.en").read_text().split()) + 20)  # both sides, each sentence with </s>
    assert lost < int(both[1]) < 2 * lost + 5 and int(both[2]) == total
    assert float(re.search(r"removed symbols, 20 sentences of valid: (\S+)", done.out)[1]) > 0.1
    changed = int(re.search(r"translations that differ, 20 sentences of valid: (\d+)", done.out)[1])
    before, after = (
        run("fairseq-generate", data, *EVALUATION, "--gen-subset", "valid", "--path", model).out
        for data, model in ((words / "bin", path), (out, out / "model.pt"))
    )
    hypotheses = [dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", text, re.M)) for text in (before, after)]
    assert changed == sum(hypotheses[0][number] != hypotheses[1][number] for number in hypotheses[0])
    assert f"next: headgates evaluate {out} --cpu --num-workers 0 --path {out}/model.pt" in done.err
    assert f"written: {out}\n" in done.err and "part" not in done.err


def test_tokens_that_a_multilingual_task_adds_keep_their_rows(toy, train, run, tmp_path):
    task = ["--task", "translation_multi_simple_epoch", "--langs", "src,tgt,fr", "--encoder-langtok", "tgt"]
    task += ["--decoder-langtok", "--lang-pairs", "src-tgt"]
    train(tmp_path, *task, "--share-all-embeddings", updates=1)
    pair, out, path = ["-s", "src", "-t", "tgt"], tmp_path / "out", tmp_path / "checkpoint_last.pt"
    done = run("headgates", "trim", toy.data, "--path", path, *task, *pair, *CPU, "--out", out)
    assert re.search(r"^symbols +27 +23$", done.out, re.M)  # without four fillers
    model, whole = (read(each)["model"]["decoder.embed_tokens.weight"] for each in (out / "model.pt", path))
    assert torch.equal(model, torch.cat([whole[:20], whole[24:]]))
    assert "H-9\t" in run("fairseq-generate", out, *EVALUATION, *task, *pair, "--path", out / "model.pt").out


@pytest.mark.release
def test_a_dictionary_of_the_model_that_is_no_part_of_the_data(toy, train, run, tmp_path):
    """--fixed-dictionary, which has the languages (M2M-100)."""
    fixed, lines = tmp_path / "model_dict.txt", (toy.data / "dict.src.txt").read_text()
    fixed.write_text(f"{lines}__src__ 1\n__tgt__ 1\nunused 1\n")
    task = ["--task", "translation_multi_simple_epoch", "--langs", "src,tgt", "--encoder-langtok", "tgt"]
    task += ["--decoder-langtok", "--lang-pairs", "src-tgt", "--fixed-dictionary"]
    train(tmp_path, *task, fixed, updates=1)
    pair, out = ["-s", "src", "-t", "tgt"], tmp_path / "out"
    data = shutil.copytree(toy.data, tmp_path / "bin")
    (data / "dict.tgt.txt").unlink()
    done = run(
        *("headgates", "trim", data, "--path", tmp_path / "checkpoint_last.pt", *task, fixed, *pair, *CPU),
        *("--out", out),
    )
    assert re.search(r"^symbols +27 +22$", done.out, re.M)
    assert (out / "model_dict.txt").read_text().endswith("__src__ 1\n__tgt__ 1\n")
    assert f"--fixed-dictionary {out}/model_dict.txt" in done.err
    search = [*EVALUATION, *task, out / "model_dict.txt", *pair, "--path", out / "model.pt"]
    assert "H-9\t" in run("fairseq-generate", out, *search).out


@pytest.fixture
def copied(words, tmp_path):
    """The folder of data, to be changed."""
    return shutil.copytree(words / "bin", tmp_path / "bin")


def test_fairseq_reads_train1_with_train(words, copied, run, tmp_path):
    for side in ("en", "de"):
        for ending in ("bin", "idx"):
            (copied / f"test.en-de.{side}.{ending}").rename(copied / f"train1.en-de.{side}.{ending}")
    out = tmp_path / "out"
    done = run("headgates", "trim", "--path", words / "checkpoint_last.pt", *CPU, copied, "--out", out)
    assert re.search("tokens of train1 that become <unk>: 0 of", done.out)
    assert f"next: headgates evaluate --cpu --num-workers 0 {out} --path {out}/model.pt" in done.err


@pytest.mark.release
def test_data_of_the_old_format(words, copied, run, tmp_path):
    for side in ("en", "de"):
        name, old = (
            copied / f"train.en-de.{side}",
            data_utils.load_indexed_dataset(str(words / "bin" / f"train.en-de.{side}"), None, None),
        )
        builder = make_builder(f"{name}.bin", "cached")
        for tokens in old:
            builder.add_item(tokens.int())
        builder.finalize(f"{name}.idx")
    run("headgates", "trim", copied, "--path", words / "checkpoint_last.pt", *CPU, "--out", tmp_path / "a")
    run("headgates", "trim", words / "bin", "--path", words / "checkpoint_last.pt", *CPU, "--out", tmp_path / "b")
    assert sentences(tmp_path / "a", "train", "de") == sentences(tmp_path / "b", "train", "de")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "dict.fr.txt").write_text("other 1\n"), "dict.fr.txt are not those of the model"),
        (
            lambda folder: (folder / "notes.of.mine.idx").touch(),
            "notes.of.mine.idx is not a file of fairseq-preprocess",
        ),
    ],
)
def test_other_files_are_refused(words, copied, run, tmp_path, change, message):
    change(copied)
    command = ["headgates", "trim", copied, "--path", words / "checkpoint_last.pt", *CPU, "--out", tmp_path / "out"]
    assert_one_line_error(run(*command, code=2), [message])
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_several_folders_are_refused(words, run, tmp_path):
    data = f"{words / 'bin'}:{words / 'bin'}"
    done = run("headgates", "trim", data, "--path", words / "checkpoint_last.pt", *CPU, "--out", tmp_path / "o", code=2)
    assert_one_line_error(done, ["one folder"])


@pytest.mark.release
def test_a_language_model(toy_text, train_lm, run, tmp_path):
    train_lm(tmp_path, arch="transformer_lm")
    out, path = tmp_path / "out", tmp_path / "checkpoint_last.pt"
    done = run("headgates", "trim", toy_text, "--path", path, *BLOCKS, *CPU, "--out", out)
    assert "mean probability of the removed symbols" in done.out and "translations" not in done.out
    probability = float(re.search(r"removed symbols, \d+ sentences of valid: (\S+)", done.out)[1])
    printed = [
        run("fairseq-eval-lm", *words, *EVALUATION, *BLOCKS)
        for words in ([toy_text, "--path", path], [out, "--path", out / "model.pt"])
    ]
    before, after = (float(re.search(r"Loss \(base 2\): ([\d.]+)", each.out + each.err)[1]) for each in printed)
    assert 0 < probability < 1 and after < before


@pytest.mark.release
def test_a_classifier_decides_as_before(toy_classes, train_roberta, run, tmp_path):
    train_roberta(tmp_path, arch="roberta", updates=10)
    out, path = tmp_path / "out", tmp_path / "checkpoint_last.pt"
    done = run("headgates", "trim", toy_classes, "--path", path, *CLASSES, *CPU, "--out", out)
    assert re.search(r"^symbols ", done.out, re.M) and "probability" not in done.out
    assert (out / "label" / "dict.txt").read_text() == (toy_classes / "label" / "dict.txt").read_text()
    tables = [
        run("headgates", "evaluate", data, "--path", model, *CLASSES, *CPU).out.splitlines()[2].split()[3:]
        for data, model in ((toy_classes, path), (out, out / "model.pt"))
    ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{words}"], "exists: choose another name"),
        (["--keep", "nothing"], "there is no subset 'nothing'"),
        (["--size", "4"], "--size is 4"),
        (["--out", "{words}/none/out"], "cannot write"),
    ],
)
def test_refused(words, run, tmp_path, options, message):
    options = [option.format(words=words) for option in options]
    command = ["headgates", "trim", words / "bin", "--path", words / "checkpoint_last.pt", *CPU]
    done = run(*command, "--out", tmp_path / "out", *options, code=2)
    assert_one_line_error(done, [message])
    assert not list(tmp_path.iterdir())
