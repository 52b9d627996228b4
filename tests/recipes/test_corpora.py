"""Rules of the published corpora and their scripts, on miniature files in the layouts of the real ones."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import published
from support.commands import Finished
from support.published import save, tgz, zipped
from support.workflows import run_snakemake

import mnli
from download import address_of

RECIPES = Path(__file__).parents[2] / "recipes"
SCRIPTS = RECIPES / "scripts"
PAIRS = [(f"Number {n} is R&D <b> .", f"Номер {n} — «птица»!") for n in range(120)]


def script(name, *arguments):
    environment = {**os.environ, "no_proxy": "127.0.0.1", "PYTHONWARNINGS": ""}
    words = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return Finished(done.returncode, done.stdout, done.stderr)


def make(folder, *targets, **config):
    """Run the rules until the targets are made."""
    (folder / "Snakefile").write_text(
        f'OUT, SCRIPTS = "out", "{SCRIPTS}"\nRAW = f"{{OUT}}/raw"\ninclude: "{RECIPES}/workflow/rules/corpora.smk"\n'
    )
    words = [f"{name}={value}" for name, value in config.items()]
    return run_snakemake(folder, "-c", 2, *targets, "--quiet", "rules", "--config", *words)


def read(path):
    return path.read_bytes().decode().split("\n")[:-1]


def made(finished):
    return finished.expect(0).text


@pytest.mark.release  # mtdata makes its index
def test_wmt(tmp_path):
    targets = [f"out/raw/{split}.en" for split in ("train", "valid", "test")]
    pytest.importorskip("mtdata")
    parts = PAIRS[:45], PAIRS[45:60], PAIRS[60:100], PAIRS[100:]
    held_out = [[(en.replace("<b>", "b"), ru) for en, ru in pairs] for pairs in (PAIRS[:7], PAIRS[7:12])]
    published.wmt(tmp_path / "out/downloads", parts, *held_out)  # sacrebleu removes tags
    yandex = [pair for start in range(10) for pair in parts[2][start::10]]
    sets = {"train": [*PAIRS[:60], *yandex, *PAIRS[100:]], "valid": held_out[0], "test": held_out[1]}
    config = {"corpus": "wmt-en-ru", "valid_set": "wmt13", "test_set": "wmt14"}
    printed = made(make(tmp_path, *targets, **config, expected_pairs=110))
    assert "120 pairs before cleaning" in printed
    for split, pairs in sets.items():
        for i, language in enumerate(("en", "ru")):
            assert read(tmp_path / f"out/raw/{split}.{language}") == [pair[i] for pair in pairs], split
    (tmp_path / "out/raw/train.en").unlink()
    result = make(tmp_path, *targets, **config, expected_pairs=90)
    assert result.code and "expected_pairs=0 to train on this text" in result.text
    assert not (tmp_path / "out/raw/train.en").exists()


def subtitles(folder, form="xml"):
    """Alignment and documents of 12 films of 5 links, whose overlap is below 0.9 in every fifth."""
    xml, english, russian = [], {}, {}
    for film in range(12):
        documents = f"en/2000/{film}/1.xml", f"ru/2000/{film}/2.xml"
        xml.append('<linkGrp targType="s" fromDoc="{}.gz" toDoc="{}.gz">'.format(*documents))
        xml += [f'<link id="SL{n}" xtargets="{n};{n}" overlap="{0.899 if n == 5 else 0.9}" />' for n in range(1, 6)]
        xml += ['<link id="SL9" xtargets="6;" />', "</linkGrp>"]
        for texts, document, word in ((english, documents[0], "line"), (russian, documents[1], "строка")):
            number = "" if film % 4 == 3 else film  # three films have the same text
            words = [f'<w id="{n}.1">{word}</w> <w id="{n}.2">{number}x{n}</w>' for n in range(1, 7)]
            sentences = "".join(f'<s id="{n}">{text}</s>\n' for n, text in enumerate(words, 1))
            texts[f"OpenSubtitles/{form}/{document}"] = f'<?xml version="1.0"?>\n<document>{sentences}</document>'
    alignment = "\n".join(['<?xml version="1.0" encoding="utf-8"?>', '<cesAlign version="1.0">', *xml, "</cesAlign>"])
    prefix = folder / "out/downloads/OpenSubtitles_v2018_"
    save(Path(f"{prefix}xml_en-ru.xml.gz"), gzip.compress(alignment.encode()))
    save(Path(f"{prefix}{form}_en.zip"), zipped(english))
    save(Path(f"{prefix}{form}_ru.zip"), zipped(russian))


@pytest.mark.release
def test_opensubtitles(tmp_path):
    pytest.importorskip("opustools")
    subtitles(tmp_path)
    config = {"corpus": "opensubtitles-en-ru", "tokenized": True, "overlap": 0.9, "training_pairs": 20, "held_out": 6}
    assert "48 pairs of 12 films, 40 different ones" in made(make(tmp_path, "out/raw/train.en", **config))
    sets = {}
    for split, number in {"train": 20, "valid": 6, "test": 6}.items():
        english, russian = (read(tmp_path / f"out/raw/{split}.{language}") for language in ("en", "ru"))
        assert english == [line.replace("строка", "line") for line in russian] and len(english) == number
        assert not any(line.endswith("x5") for line in english)  # of too little overlap
        sets[split] = english
    films = {split: {line.split()[1].split("x")[0] for line in lines} for split, lines in sets.items()}
    assert not films["train"] & films["valid"] and not films["test"] & (films["train"] | films["valid"])


def split_files(folder, pairs):
    """The files of opus_read for pairs (film, source, target)."""
    for i, name in enumerate(("ids", "en", "ru")):
        lines = [f"en/2000/{pair[0]}/1.xml.gz\tru/2.xml.gz\t1\t1\t1.0" if i == 0 else pair[i] for pair in pairs]
        save(folder / f"pairs.{name}", "".join(f"{line}\n" for line in lines).encode())
    return [folder / f"pairs.{name}" for name in ("en", "ru", "ids")]


def test_split_keeps_the_first_of_equal_texts_and_depends_on_the_seed_alone(tmp_path):
    pairs = [(n // 4, f"a\u2028b  {n}", f"б {n}") for n in range(200)]
    pairs += [(n, f"A B {n}", f"Б  {n}") for n in range(60)] + [(70, "", "без"), (70, "\x0b", "без")]
    files = split_files(tmp_path, pairs)
    options = ["--pairs", 90, "--held-out", 10]
    for folder, seed in (("first", 1), ("again", 1), ("other", 2)):
        assert "262 pairs of 61 films, 200 different ones" in made(
            script("split.py", *files, tmp_path / folder, *options, "--seed", seed)
        )
    first, again, other = ({p.name: read(p) for p in (tmp_path / f).iterdir()} for f in ("first", "again", "other"))
    assert first == again != other and len(first) == 6
    assert {name: len(lines) for name, lines in first.items()} == {
        f"{name}.{language}": n for name, n in (("train", 90), ("valid", 10), ("test", 10)) for language in ("en", "ru")
    }
    assert all(line.startswith("a b ") for line in first["train.en"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "must have as many lines"),
        (lambda lines: ["no ids\n", *lines[1:]], "is not a line of `opus_read -id`"),
        (lambda lines: lines, "too few films for --held-out 30"),
    ],
)
def test_split_refuses_files_that_do_not_fit(change, message, tmp_path):
    files = split_files(tmp_path, [(n // 4, f"a {n}", f"б {n}") for n in range(40)])
    files[2].write_text("".join(change(files[2].read_text().splitlines(keepends=True))))
    result = script("split.py", *files, tmp_path / "to", "--held-out", 30)
    assert result.code == 2 and message in result.err and not (tmp_path / "to").exists()
    assert len(result.err.splitlines()) == 1


@pytest.mark.release
def test_iwslt14(tmp_path):
    german = [(ru, en) for en, ru in PAIRS]
    talks = published.iwslt14(tmp_path / "out/downloads", german, german[:20])
    targets = [f"out/raw/{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")]
    made(make(tmp_path, *targets, corpus="iwslt14-de-en"))
    talks = [pair for pair in talks if all(pair)]
    expected = {
        "valid": talks[22::23],
        "train": [pair for n, pair in enumerate(talks, 1) if n % 23],
        "test": [pair for start in range(5) for pair in german[start:20:5]],
    }
    for split, pairs in expected.items():
        for i, language in enumerate(("de", "en")):
            assert read(tmp_path / f"out/raw/{split}.{language}") == [pair[i] for pair in pairs]
    assert not (tmp_path / "out/unpacked").is_dir() or not list((tmp_path / "out/unpacked").iterdir())


@pytest.mark.release
def test_wikitext103(tmp_path):
    texts = {split: f" = {split} = \n\n the <unk> .\n" for split in ("train", "valid", "test")}
    members = {f"wikitext-103/wiki.{split}.tokens": text for split, text in texts.items()}
    save(tmp_path / "out/downloads/wikitext-103-v1.zip", zipped(members))
    made(make(tmp_path, *(f"out/raw/{split}.txt" for split in texts), corpus="wikitext-103"))
    assert all((tmp_path / f"out/raw/{split}.txt").read_text() == text for split, text in texts.items())


def test_mnli(tmp_path, monkeypatch):
    """Called with the words of tests/golden/mnli.txt."""
    monkeypatch.chdir(tmp_path)
    downloads = Path("out/downloads")
    head = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    rows = [("A b.", "b", "neutral"), ("b", "c", "-"), ('"a', "b", "entailment"), ("", "b", "neutral")]
    table = head + "".join(f"{n}\t{a}\t{b}\tx\t{label}\n" for n, (a, b, label) in enumerate(rows))
    members = {f"MNLI/{name}.tsv": table for name in ("train", "dev_matched", "dev_mismatched")}
    save(downloads / "MNLI.zip", zipped(members))
    symbols = {chr(n) if n > 32 else chr(256 + n): n for n in range(127)}
    save(downloads / "encoder.json", json.dumps(symbols).encode())
    save(downloads / "vocab.bpe", b"#version: 0.2\n")
    files = [str(downloads / name) for name in ("MNLI.zip", "encoder.json", "vocab.bpe")]
    monkeypatch.setattr(sys, "argv", ["mnli.py", *files, "out/raw"])
    mnli.main()
    for split in ("train", "valid", "test"):
        assert read(Path(f"out/raw/{split}.tsv")) == ["65 32 98 46\t98\tneutral", "34 97\t98\tentailment"]


@pytest.mark.release
def test_a_trained_roberta(tmp_path):
    model = {"./roberta.tiny/model.pt": "weights", "./roberta.tiny/dict.txt": "5 1\n"}
    save(tmp_path / "out/downloads/roberta.tiny", tgz(model))
    made(make(tmp_path, tmp_path / "out/model/dict.txt", corpus="mnli", trained_model="roberta.tiny"))
    assert (tmp_path / "out/model/model.pt").read_text() == "weights"


@pytest.mark.parametrize("command", ["clean.py {} to en de", "labelled.py to {} {} {} --classes 2 --inputs 1"])
def test_a_missing_file_is_one_line(command, tmp_path):
    name, *words = command.format(*[tmp_path / "missing"] * 3).split()
    result = script(name, *words)
    assert result.code == 2 and re.fullmatch(rf"{name}: error: .*missing.*\n", result.err), result.err


def test_download_takes_the_first_address_that_answers(tmp_path):
    save(tmp_path / "served/file.tgz", b"content")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        target = tmp_path / "to/file"
        printed = made(script("download.py", target, f"{address}/missing", f"{address}/file.tgz"))
        assert target.read_bytes() == b"content" and f"{sha256(b'content').hexdigest()}  {target}" in printed
        result = script("download.py", tmp_path / "other", f"{address}/missing")
        server.shutdown()
    assert result.code == 2 and "404" in result.err and "or put the file at" in result.err
    assert not (tmp_path / "other").exists()
    refused = "'transformer.wmt99' is not a trained model of fairseq: choose from transformer.wmt14.en-fr"
    with pytest.raises(ValueError, match=refused):
        address_of("transformer.wmt99")


@pytest.mark.release
def test_opustools_knows_the_addresses_of_opensubtitles():
    opustools = pytest.importorskip("opustools")
    addresses = gzip.decompress(Path(opustools.__file__).with_name("opusdata.db.gz").read_bytes())
    rules = (RECIPES / "workflow/rules/corpora.smk").read_text()
    for file in ("xml/en-ru.xml.gz", "xml/en.zip", "xml/ru.zip", "raw/en.zip", "raw/ru.zip"):
        assert f'"{file}"' in rules
        assert f"https://object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/{file}".encode() in addresses
