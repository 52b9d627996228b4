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
    Block,
    blocks,
    fairseq_options,
    headgates_options,
    links,
    mistakes,
    named_files,
    named_options,
    words_of,
)
from support.results import translator

import fairseq_headgates
from fairseq_headgates.cli.main import find_commands
from fairseq_headgates.evaluation import results
from fairseq_headgates.evaluation.result_files import read_evaluations
from fairseq_headgates.extensions.attention_maps import drawing as attention
from fairseq_headgates.extensions.explain import drawing as explanation
from fairseq_headgates.heads import AttentionMap, Contributions, HeadId, parse_mask, read_scores
from fairseq_headgates.plugin import gate_log
from fairseq_headgates.plugin.options.declared import DEFAULTS
from results import rows
from results.translation import SWEEP_FORMAT
from results.translation import models as swept
from settings.configure import describe
from settings.declared import RECIPES

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


README = (ROOT / "README.md").read_text(encoding="utf-8")
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
        ("headgates show CKPT --nothing", "headgates show: unknown option --nothing"),
        ("headgates shows CKPT", "unknown command"),
        ("headgates prune a.pt b.pt --gen-subset valid", "headgates prune: unknown option --gen-subset"),
        ("headgates prune a.pt b.pt --refit DATA --cpu --nothing", "headgates prune: unknown option --nothing"),
        ("torchrun --no-python headgates score DATA --path CKPT --methods gradient", "unknown option --methods"),
        ("fairseq-train DATA --gate-heads enc-self --gates 1", "fairseq-train: unknown option --gates"),
        ("fairseq-generate DATA --path CKPT --gate-heads-too", "unknown option --gate-heads-too"),
        ("make nothing", "unknown target nothing"),
        ("recipes/nothing.sh out", "recipes/nothing.sh does not exist"),
        ("NOTHING_AT_ALL=1 recipes/translation.sh raw out en de", "unknown setting NOTHING_AT_ALL"),
        ("python3 recipes/lib text.nothing a b", "recipes/lib/text/nothing.py does not exist"),
        ("python3 recipes/lib training.plan out --nothing-at-all", "plan.py: unknown option --nothing-at-all"),
        ("PYTHONPATH=tests python3 -m support.mirror wmt --nothing-at-all", "unknown option --nothing-at-all"),
        ("python benchmarks/train_step.py --nothing-at-all", "unknown option --nothing-at-all"),
        ("headgates show 'CKPT", "unexpected EOF"),
    ],
)
def test_mistakes_in_code_blocks_are_reported(text, words):
    assert any(words in found for found in mistakes(Block(Path("page.md"), 1, "bash", text + "\n")))


def test_only_blocks_with_a_known_mark_are_skipped(tmp_path):
    page = tmp_path / "page.md"
    fence = "```bash\na\n```\n\n"
    page.write_text(f"<!-- needs: gpu -->\n{fence}<!-- needs: luck -->\n{fence}<!-- needs: time -->\n\n{fence}")
    assert [block.mark for block in blocks(page)] == ["needs: gpu", "", ""]


class Reader:
    """Does what a page says, in a folder of its own that holds small checkpoints under the names of the page."""

    def __init__(self, folder, toy, checkpoints, run, train):
        self.folder, self.run, self.train = folder, run, train
        (folder / "data-bin").symlink_to(toy.data)
        self.train_lm = self.train_roberta = None
        for place, name in {
            "baseline/checkpoint_best.pt": "baseline",
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
        folders = word in (
            "bart",
            "gated",
            "scratch",
            "more",
            "gated-again",
            "ctranslate2-int8",
            "lm-ctranslate2",
            "lm-gated",
            "lm-all",
            "lm-all-gated",
            "classifier-gated",
        )
        return ":".join(str(self.folder / part) for part in parts) if made_here or made_by_it or folders else word

    def python(self, block):
        exec(compile(block.text, str(block), "exec"), {"__name__": "snippet"})


@pytest.mark.usefixtures("few_resamplings")
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


INSTALLED = pytest.param("installed", marks=[pytest.mark.rehearsal, pytest.mark.release])  # a minute


@pytest.mark.usefixtures("few_resamplings")
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
def test_named_files_exist(page):
    assert not [name for name in sorted(named_files(page)) if not (ROOT / name).exists()]


def test_named_options_exist():
    headgates = {option for command in find_commands() for option in headgates_options(command)}
    for arch in ("transformer_lm_all_attention", "multilingual_transformer_head_gates"):
        headgates |= fairseq_options("fairseq-train", ("--arch", arch))
    for task in ("language_modeling_segments", "sentence_prediction", "translation_multi_simple_epoch"):
        headgates |= fairseq_options("fairseq-train", ("--task", task))
    headgates.add("--config-yaml")  # of speech_to_text, whose options cannot be together with those of a transformer
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
    others |= {"--strict", "--build-arg", "--ipc", "--wrap"}  # of twine, docker, sbatch
    named = {option: page.name for page in PAGES for option in named_options(page)}
    assert not {o: page for o, page in named.items() if o not in headgates | fairseq | others and o not in scripts}


@pytest.mark.parametrize("command", LIKE_GENERATE)
def test_commands_that_take_the_options_of_fairseq_generate(command):
    assert command in find_commands() and "--max-tokens" in headgates_options(command)


def test_the_reference_is_that_of_the_parsers(tmp_path):
    """To update it: make docs."""
    runpy.run_path(str(ROOT / "docs" / "generate_options.py"))["write"](tmp_path)
    pages = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert pages == {file.name: file.read_text(encoding="utf-8") for file in REFERENCE.iterdir()}


def test_the_reference_has_every_setting_of_the_help_of_recipes():
    sections = re.split(
        r"^## Settings of ", (REFERENCE / "settings.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    tables = {section.partition("\n")[0].removesuffix(".sh"): section for section in sections[1:]}
    for name in ("translation", "language_model", "classification"):
        said = describe(ROOT / "recipes" / f"{name}.sh", {}, {}).partition("\nto begin with:\n")[2]
        values = dict(re.findall(r"^  ([A-Z_0-9]+)='?(.*?)'?$", said, re.MULTILINE))
        rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", tables["every recipe"] + tables[name], re.MULTILINE))
        assert values.keys() == rows.keys()
        shown = {setting: row.removesuffix(" *").strip("`") for setting, row in rows.items() if values[setting]}
        assert shown == {setting: value for setting, value in values.items() if value}
    own = {setting for recipe in RECIPES.values() for setting in recipe.model_fields.keys() - {*recipe.ARGUMENTS}}
    assert own == {*re.findall(r"^\| `(\w+)` \|", "".join(tables.values()), re.MULTILINE)}


def test_a_link_and_a_file_that_do_not_exist_are_found(tmp_path):
    page = tmp_path / "page.md"
    text = "[a](b.md#c) [d](https://e.f) `recipes/nothing.sh`, tests/none.py. `--gone FILE`\n"
    page.write_text(f"{text}```\n[g](h)\n```\n")
    assert links(page) == ["b.md"]
    assert named_files(page) == {"recipes/nothing.sh", "tests/none.py"}
    assert named_options(page) == {"--gone"}


def page_text(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_table_of_the_readme_is_made_of_the_results():
    """Its rows from the table of the page of results; each speed stands on the page of benchmarks."""
    text, speeds = page_text("results"), page_text("benchmarks")
    row = re.compile(r"^(\S+) .*? (\S+)/144 +(\S+)M .*? (-[\d.]+) \((\S+)\.\.(\S+)\) +\S+ +([\d.]+) ", re.MULTILINE)
    models = {name: cells for name, *cells in row.findall(text)}
    control = float(re.search(r"^baseline\+ .* 144/144 .*?\)  .*?\) +- +([\d.]+)", text, re.MULTILINE)[1])
    suffix = {"gates": "", "gradient scores": "_gradient"}
    found = re.findall(r"^\| (\d+) of 144 \| (.*) \| ([\d.]+)M.* \| (.*) \| (.*) \| (.*) \|$", README, re.MULTILINE)
    assert len(found) == 4
    for heads, method, parameters, diff, chrf, speed in found:
        kept, size, mean, low, high, own = models[f"all_heads{heads}{suffix[method]}"]
        assert (kept, size) == (heads, parameters) and diff == f"{mean} ({low} to {high})"
        assert float(chrf) == pytest.approx(float(own) - control, abs=0.0501) and speed in speeds


@pytest.mark.parametrize("page", ["results", "benchmarks"])
def test_the_numbers_of_a_summary_are_those_of_the_sections_that_it_links_to(page):
    """Of their first paragraphs, or differences in their tables, rounded; whole numbers only in ranges."""
    text = page_text(page)
    values = {}
    for title, first, rest in re.findall(r"^##+ (.*)\n\n((?:.+\n)+)((?:(?!##).*\n)*)", text, re.MULTILINE):
        numbers = re.findall(r"\d+(?:\.\d+)?", first) + re.findall(r"(?<=[ (.][-+])\d+\.\d+", rest)
        values[re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")] = [float(number) for number in numbers]
    checked = 0
    for item in re.split(r"^- ", text.split("\n\n")[1], flags=re.MULTILINE):
        known = [value for anchor in re.findall(r"\]\(#(.*?)\)", item) for value in values[anchor]]
        said = re.sub(r"\]\(.*?\)|`.*?`", "", item)
        for number in re.findall(r"\b\d+\.\d+\b|\b\d+(?= to )|(?<= to )\d+\b(?!\.)", said):
            decimals = len(number.partition(".")[2])
            assert any(round(value, decimals) == float(number) for value in known), f"{number} in {item}"
            checked += 1
    assert checked >= 7


def test_the_speeds_of_the_list_of_tasks_are_those_of_the_benchmarks():
    """Each number of the section without training stands on the page of benchmarks or of results."""
    section = page_text("howto").partition("## Faster on a CPU without training")[2].partition("\n##")[0]
    numbers = re.findall(r"\b\d\.\d\d\b", re.sub(r"`.*?`", "", section))
    known = page_text("benchmarks") + page_text("results")
    assert len(numbers) == 10 and all(number in known for number in numbers)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", **identified([block for block in ALL if block.language == "json"]))
def test_examples_of_files_can_be_read(block, tmp_path):
    file = tmp_path / "example.json"
    file.write_text(block.text)
    kind = json.loads(block.text)["format"]
    if kind == SWEEP_FORMAT:  # no program reads it
        (shown,) = json.loads(block.text)["models"]
        translator(tmp_path / "baseline", (1, 1, 1))
        (written,) = swept([rows.read(tmp_path, rows.in_order([], own_control=True), "1", tested=False)])
        assert list(shown) == list(written)
    elif kind == results.FORMAT:
        (found,) = read_evaluations(str(file))
        assert found.as_json() == json.loads(block.text)
    elif kind == gate_log.FORMAT:
        [record] = gate_log.parse_gate_log(block.text, "example")
        assert gate_log.gate_log_line(record) == block.text
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


def test_the_reference_has_every_option_and_default():
    text = (REFERENCE / "options.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--([a-z0-9-]+)[^|]*` \|.*\| `?([^|`]*)`? \|$", text, re.MULTILINE)
    said = {name.replace("-", "_"): default for name, default in rows}
    for name, default in DEFAULTS.items():
        assert name in said, f"the table has no --{name}"
        words = {"": "none", "None": "none", "False": "off"}
        shown = said[name] if not isinstance(default, float) else str(float(said[name]))
        assert shown == words.get(str(default), str(default)), name
    assert said["l0_weight"] == "0.0" and said["l0_reduction"] == "sum"
