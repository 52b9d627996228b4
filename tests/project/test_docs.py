"""README and docs/: commands and snippets run or are checked, links and files exist, examples of files can be read."""

import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from support.pages import (
    FAIRSEQ,
    LIKE_GENERATE,
    PAGES,
    ROOT,
    SNAKEMAKE,
    Block,
    blocks,
    fairseq_options,
    headgates_options,
    linked_sections,
    links,
    mistakes,
    named_files,
    named_options,
    words_of,
)
from support.results import translator

import fairseq_headgates
import table
from fairseq_headgates.cli.main import find_commands
from fairseq_headgates.data import results
from fairseq_headgates.data.results import read_evaluations
from fairseq_headgates.extensions.attention import drawing as attention
from fairseq_headgates.extensions.explain import drawing as explanation
from fairseq_headgates.heads import AttentionMap, Contributions, HeadId, parse_mask, read_scores

ALL = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in ALL if block.language in ("bash", "sh", "shell", "console")]
RUN = {page: [b for b in blocks(page) if b.language in ("bash", "python") and not b.mark] for page in PAGES}
# Programs of blocks that run, besides headgates and fairseq's: they only prepare the shell of the reader.
PREPARING = ("source", "export", "cd")
POSITIONS = ("--max-target-positions", 128)  # of the toy language model: the blocks of the page have 128 tokens
SMALL = "--max-update 2 --cpu --num-workers 0 --decoder-layers 2 --decoder-embed-dim 32 --decoder-attention-heads 4"
SMALL = [*SMALL.split(), "--persistent-vectors", "8", "--required-batch-size-multiple", "1"]
RUNNING = ("headgates", "fairseq-generate", "fairseq-validate", "fairseq-eval-lm")
ELIDED = {"fairseq-generate": "--gen-subset test --max-tokens 500 --num-workers 0 --beam 2 --max-len-b 5"}


FOLDERS = (
    "bart small-ct2 gated scratch more gated-again ctranslate2-int8 lm-ctranslate2 lm-gated lm-all lm-all-gated".split()
)
FOLDERS += ["classifier-gated", "trimmed", "trimmed-ct2"]
REFERENCE = ROOT / "docs" / "reference"
PLUGIN = ("--user-dir", Path(fairseq_headgates.__file__).parent)  # so that a command runs in this process


def identified(values):
    return {"argvalues": values, "ids": [str(v) if isinstance(v, Block) else v.name for v in values]}


# --- commands and snippets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", **identified(SHELL))
def test_commands_are_those_of_the_parsers(block):
    assert not list(mistakes(block))


@pytest.mark.parametrize(
    "text, words",
    [
        ("headgates shows CKPT", "unknown command"),
        ("headgates prune --path a.pt --out b.pt --threshold-all 1", "headgates prune: unknown option --threshold-all"),
        ("fairseq-train DATA --gate-heads enc-self --gates 1", "fairseq-train: unknown option --gates"),
        ("make nothing", "unknown target nothing"),
        ("snakemake -s recipes/workflow/nothing.smk", "recipes/workflow/nothing.smk does not exist"),
        ("snakemake --nothing", "snakemake: unknown option --nothing"),
        ("NOTHING_AT_ALL=1 recipes/demo.sh demo-out", "unknown setting NOTHING_AT_ALL"),
        ("python3 recipes/scripts/nothing.py a b", "recipes/scripts/nothing.py does not exist"),
        ("python benchmarks/train_step.py --nothing-at-all", "unknown option --nothing-at-all"),
    ],
)
def test_mistakes_in_code_blocks_are_reported(text, words):
    assert any(words in found for found in mistakes(Block(Path("page.md"), 1, "bash", text + "\n")))


class Reader:
    """Does what a page says, in a folder of its own that holds small checkpoints under the names of the page."""

    def __init__(self, folder, toy, checkpoints, run, train):
        self.folder, self.run, self.train = folder, run, train
        for data in ("data-bin", "demo-out/data-bin"):
            (folder / data).parent.mkdir(exist_ok=True)
            (folder / data).symlink_to(toy.data)
        self.train_lm = self.train_roberta = None
        for place, name in {
            "baseline/checkpoint_best.pt": "baseline",
            "demo-out/baseline+/checkpoint_last.pt": "baseline",
            "demo-out/all_heads0.5/checkpoint_last.pt": "gated",
            **{f"e{epoch}.pt": "baseline" for epoch in (1, 2, 3)},
        }.items():
            self.place(place, checkpoints[name])

    def read_language_models(self, toy_text, train_lm):
        """Adds a text and a language model."""
        (self.folder / "lm-bin").symlink_to(toy_text)
        self.train_lm = train_lm
        train_lm(self.folder / "lm", *POSITIONS, *PLUGIN, arch="transformer_lm")

    def read_classifiers(self, toy_classes, train_roberta):
        """Adds sentences with labels and a classifier."""
        (self.folder / "class-bin").symlink_to(toy_classes)
        self.train_roberta = train_roberta
        train_roberta(self.folder / "classifier", *PLUGIN, arch="roberta")

    def place(self, name, checkpoint):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkpoint, self.folder / name)

    def shell(self, text):
        """Runs the commands of a block and returns what they print."""
        printed = []
        for words in words_of(text):
            program, *arguments = words
            if program in PREPARING:
                continue
            elided = shlex.split(ELIDED.get(program, "")) if "..." in arguments else []
            if program == "headgates" and arguments[0] in LIKE_GENERATE:
                # Models that hardly translate would go on to the limit; a few sentences are enough.
                elided = ["--max-len-b", "5"] + ["--sentences", "3"] * (not {"--sentences", "--lines"} & {*arguments})
                elided += ["--steps", "0,50"] * (arguments[0] == "curve" and "--steps" not in arguments)
            arguments = [self.named(word) for word in arguments if word != "..."] + elided
            if "--speedup" in arguments:  # how much faster a toy can be depends on the machine
                arguments[arguments.index("--speedup") + 1] = "1"
            if program == "fairseq-train":
                save_dir = arguments[arguments.index("--save-dir") + 1]
                # The options of the page come last, and so count; but two updates are enough.
                of_text = "language_modeling" in arguments
                if "language_modeling_segments" in arguments:
                    printed.append(self.run(program, *arguments, *SMALL).out)
                    continue
                train, options = (self.train_lm, POSITIONS) if of_text else (self.train, ())
                train = self.train_roberta if "sentence_prediction" in arguments else train
                printed.append(train(save_dir, *arguments[1:], "--max-update", 2, *options).out)
            else:
                assert program in RUNNING, f"{program} runs nowhere: mark the block"
                printed.append(self.run(program, *arguments).out)
        return "\n".join(printed)

    def named(self, word):
        """A path of the page as a path of this folder; any other word as it is."""
        if word == "PLUGIN":
            return str(PLUGIN[1])
        parts = word.split(":")
        made_here = all((self.folder / part.split("/")[0]).exists() for part in parts)
        made_by_it = all(re.fullmatch(r"[\w./-]+\.(pt|json|svg|tsv|html|align)", part) for part in parts)
        if made_here or made_by_it or word in FOLDERS:
            return ":".join(str(self.folder / part) for part in parts)
        return word

    def python(self, block):
        exec(compile(block.text, str(block), "exec"), {"__name__": "snippet"})


@pytest.mark.rehearsal
@pytest.mark.usefixtures("short_timing")
@pytest.mark.parametrize("page", **identified([page for page in PAGES if RUN[page]]))
def test_commands_of_every_page_run(page, tmp_path, toy, checkpoints, run, train, monkeypatch, request):
    reader = Reader(tmp_path, toy, checkpoints, run, train)
    if page.name == "language-models.md":
        reader.read_language_models(*map(request.getfixturevalue, ("toy_text", "train_lm")))
    if page.name == "classifiers.md":
        reader.read_classifiers(*map(request.getfixturevalue, ("toy_classes", "train_roberta")))
    monkeypatch.chdir(tmp_path)
    if not any("--save-dir gated " in block.text for block in RUN[page]):
        reader.place("gated/checkpoint_last.pt", checkpoints["gated"])
    following = dict(zip(blocks(page), blocks(page)[1:], strict=False))
    for block in RUN[page]:
        if block.language == "python":
            reader.python(block)
            continue
        printed = reader.shell(block.text)
        shown = following.get(block)
        if shown is not None and shown.language == "":
            header, words = (set(re.findall(r"[a-zA-Z/()-]{3,}", t)) for t in (shown.text.splitlines()[0], printed))
            assert header and header <= words, f"{shown}: the output has no {header - words}\n{printed}"


INSTALLED = pytest.param("installed", marks=[pytest.mark.release])  # a minute


@pytest.mark.rehearsal
@pytest.mark.usefixtures("short_timing")
@pytest.mark.parametrize("either", ["forked", INSTALLED], indirect=True)
def test_examples_of_every_help_run(tmp_path, toy, checkpoints, run, train, either, monkeypatch):
    """The first of each command as a process of its own, which imports nothing of the package but what it needs."""
    examples = {name: command.examples for name, command in find_commands().items()}
    assert all(len(both) == 2 for both in examples.values())
    reader = Reader(tmp_path, toy, checkpoints, run, train)
    reader.place("gated/checkpoint_last.pt", checkpoints["gated"])
    monkeypatch.chdir(tmp_path)
    first, last = ("score", "show", "prune"), ("report",)  # files of others
    for command in (*first, *sorted(examples.keys() - {*first, *last}), *last):
        for example, reader.run in zip(examples[command], (either, run), strict=True):
            reader.shell(example.partition("|")[0])
            for made, copies in {"scores": ("valid", "test"), "heads": ("seed1", "seed2", "seed3")}.items():
                for copy in copies * (tmp_path / f"{made}.json").exists():
                    reader.place(f"{copy}.json", tmp_path / f"{made}.json")


# --- links, files, options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", **identified(PAGES))
def test_links_lead_to_files(page):
    assert not [link for link in links(page) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", **identified(PAGES))
def test_sections_of_links_exist_and_have_the_numbers_of_their_words(page):
    """A number may be rounded."""
    for words, link, text in linked_sections(page):
        assert text, f"{link}: no such section"
        for number in re.findall(r"\d+\.\d+", words):
            decimals = len(number.partition(".")[2])
            found = {f"{float(each):.{decimals}f}" for each in re.findall(r"\d+\.\d+", text)}
            assert number in found, f"{link} has no {number}"


@pytest.mark.parametrize("page", **identified(PAGES))
def test_named_files_exist(page):
    assert not [name for name in sorted(named_files(page)) if not (ROOT / name).exists()]


def test_named_options_exist():
    headgates = {option for command in find_commands() for option in headgates_options(command)}
    headgates |= fairseq_options("fairseq-train", ("--arch", "transformer_lm_all_attention"))
    for task in ("language_modeling_segments", "sentence_prediction", "translation_multi_simple_epoch"):
        headgates |= fairseq_options("fairseq-train", ("--task", task))
    fairseq = {
        option
        for program in FAIRSEQ
        for schedule in ("polynomial_decay", "inverse_sqrt")
        for option in fairseq_options(
            program, ("--lr-scheduler", schedule, "--criterion", "label_smoothed_cross_entropy_l0")
        )
    }
    files = [file for folder in ("recipes", "benchmarks") for file in (ROOT / folder).rglob("*") if file.is_file()]
    scripts = "\n".join(file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".sh"))
    others = {"--no-build-isolation", "--inplace", "--distributed"}  # of pip, jupyter; a prefix of several
    others |= {"--strict", "--build-arg", "--ipc", "--wrap", "--version"}  # of twine, docker, sbatch, headgates itself
    others |= {"--no-python", "--nproc-per-node", "--logdir"}  # of torchrun; of tensorboard
    others |= {"--gpt2-encoder-json", "--gpt2-vocab-bpe"}  # of --bpe gpt2
    others |= {"--sacrebleu-lowercase", "--echo", "--vocabulary-threshold"}  # of sacrebleu, subword-nmt
    others |= SNAKEMAKE | {"--python"}  # of pipx
    named = {option: page.name for page in PAGES for option in named_options(page)}
    assert not {o: page for o, page in named.items() if o not in headgates | fairseq | others and o not in scripts}


def test_the_reference_is_that_of_the_parsers(tmp_path):
    """To update it: make docs."""
    runpy.run_path(str(ROOT / "docs" / "generate_options.py"))["write"](tmp_path)
    pages = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert pages == {file.name: file.read_text(encoding="utf-8") for file in REFERENCE.iterdir()}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", **identified([block for block in ALL if block.language == "json"]))
def test_examples_of_files_can_be_read(block, tmp_path):
    file = tmp_path / "example.json"
    file.write_text(block.text)
    kind = json.loads(block.text)["format"]
    if kind == "headgates.sweep/1":  # no program reads it
        translator(tmp_path / "seed1" / "baseline", (1, 1, 1))
        table.main([str(tmp_path), "--seeds", "1", "--model", "baseline", "--json", str(tmp_path / "sweep.json")])
        (shown,), (written,) = (
            json.loads(text)["models"] for text in (block.text, (tmp_path / "sweep.json").read_text())
        )
        assert list(shown) == list(written)
    elif kind == results.Evaluation.format:
        (found,) = read_evaluations(str(file))
        assert found.as_json() == json.loads(block.text)
    elif kind == attention.FORMAT:
        (types,) = json.loads(block.text)["sentences"]
        maps = [
            AttentionMap(
                HeadId(kind, each["layer"], each["head"]), each["gate"], of["queries"], of["keys"], each["weights"]
            )
            for kind, of in types.items()
            for each in of["heads"]
        ]
        assert attention.attention_json({1: maps}, "data:...") == json.loads(block.text)
    elif kind == explanation.FORMAT:
        (of,) = json.loads(block.text)["sentences"]
        each = Contributions(of["positions"], of["predicted"], of["source"], of["prefix"], of["contributions"])
        assert explanation.explanation_json({1: each}, "attnlrp|data:...") == json.loads(block.text)
    else:
        assert parse_mask(str(file)) if kind == "headgates.heads/1" else read_scores(str(file))
