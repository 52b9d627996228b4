"""README and pages of the documentation: their blocks, commands and links, and what the parsers say of the commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

import fairseq_headgates  # noqa: F401  (registers architectures and criterions)
from fairseq_headgates.cli.main import find_commands

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))
from generate_options import commands  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- (needs: (?:gpu|download|time)|shown: .+) -->")
OPTION = re.compile(r"--[a-z][\w-]*")
PLUGIN = "$(headgates path)"
FAIRSEQ = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
    "fairseq-validate": options.get_validation_parser,
    "fairseq-preprocess": options.get_preprocessing_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
}
# Options of Snakemake, which Python 3.10 does not have.
SNAKEMAKE = {"--config", "--configfile", "--rerun-triggers", "--rulegraph", "--unlock", "--workflow-profile"}
LIKE_GENERATE = (
    "compress",
    "evaluate",
    "score",
    "ablate",
    "curve",
    "functions",
    "explain",
    "attention",
    "trim",
)  # these commands take the options of fairseq-generate


@dataclass(frozen=True)
class Block:
    """A fenced block: the page, the line of its fence, its language, its text, and the comment directly above it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found, start, lines = [], None, page.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        mark = MARK.fullmatch(lines[start - 1].strip()) if start else None
        text = "\n".join(lines[start + 1 : i]) + "\n"
        found.append(Block(page, start + 1, lines[start][3:].strip(), text, mark[1] if mark else ""))
        start = None
    assert start is None, f"{page.name}:{start}: the fence is not closed"
    return found


def words_of(text: str) -> list[list[str]]:
    """Return the words of every simple command of a block, comments left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.replace(PLUGIN, "PLUGIN"), posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in lexer:
            if set(word) <= set("&|;"):
                found.append(command)
                command = []
            else:
                command.append(word)
        found.append(command)
    return [command for command in found if command]


def mistakes(block: Block) -> Iterator[str]:
    """Yield what is wrong with a block of commands, as far as it shows without running it."""
    shell = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    if shell.returncode:
        yield shell.stderr.strip()
        return
    for words in words_of(block.text):
        settings = [word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if words:
            yield from _mistakes_of_command(words, settings)


def _mistakes_of_command(words: list[str], settings: list[str]) -> Iterator[str]:
    program, script = words[0], _script_of(words)
    for word in dict.fromkeys([*words, script]):
        if re.match(r"(recipes|benchmarks|tests|docs)/", word) and not (ROOT / word).exists():
            yield f"{word} does not exist"
    given = [match[0] for word in words if (match := OPTION.match(word))]
    if "headgates" in words:
        program, command = "headgates", words[words.index("headgates") + 1]
        given = [match[0] for word in words[words.index("headgates") :] if (match := OPTION.match(word))]
        if command not in find_commands():
            yield f"headgates {command}: unknown command"
            return
        known = headgates_options(command, tuple(words))
        yield from (f"headgates {command}: unknown option {option}" for option in given if option not in known)
    elif program in FAIRSEQ:
        known = fairseq_options(program, tuple(words))
        yield from (f"{program}: unknown option {option}" for option in given if option not in known)
    elif program == "snakemake":
        yield from (f"snakemake: unknown option {option}" for option in given if option not in SNAKEMAKE)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        yield from (f"make: unknown target {word}" for word in words[1:] if word not in targets)
    elif script and (ROOT / script).is_file():
        known = _text_around(ROOT / script)
        yield from (f"{script}: unknown option {o}" for o in given if program != "sbatch" and o not in known)
        known += "OMP_NUM_THREADS PYTHONPATH"
        yield from (f"{script}: unknown setting {s}" for s in settings if s not in known)


def _script_of(words: list[str]) -> str:
    """Return the path of the script that a command runs; of a module in tests/support its file."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "-m" and re.fullmatch(r"\w+\.\w+", after):
            return f"tests/{after.replace('.', '/')}.py"
        if re.match(r"(recipes|benchmarks|tests)/", word):
            return word
    return ""


@cache
def headgates_options(command: str, words: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the options of a command, those of fairseq-generate included where it takes them."""
    own = {name for action in commands()[command]._actions for name in action.option_strings}
    reads = command in LIKE_GENERATE or (command == "prune" and "--refit" in words)
    return frozenset(own) | (fairseq_options("fairseq-generate", words) if reads else frozenset())


@cache
def fairseq_options(program: str, words: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the options of one of fairseq's commands, those of the classes that `words` choose included."""
    parser = FAIRSEQ[program]()
    parser.conflict_handler = "resolve"
    registries = {name: entry["registry"] for name, entry in REGISTRIES.items()}
    registries.update(arch=ARCH_MODEL_REGISTRY, criterion=CRITERION_REGISTRY, task=TASK_REGISTRY)
    task = "language_modeling" if program == "fairseq-eval-lm" else "translation"
    chosen = {"arch": "transformer_head_gates", "task": task, "optimizer": "adam"}  # in the order of fairseq
    for option, value in zip(words, words[1:], strict=False):
        if option.startswith("--") and option[2:].replace("-", "_") in registries:
            chosen[option[2:].replace("-", "_")] = value
    if chosen["task"] in CRITERION_REGISTRY:
        chosen.setdefault("criterion", chosen["task"])  # as the commands of headgates do
    for name, value in chosen.items():
        cls = registries[name].get(value)
        if hasattr(cls, "add_args"):
            cls.add_args(parser)
        elif hasattr(cls, "__dataclass"):
            gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")())
    return frozenset(name for action in parser._actions for name in action.option_strings)


@cache
def _text_around(script: Path) -> str:
    """Return the text of a script and of those that it may use: its folder and the folders in it."""
    files = [file for file in script.parent.rglob("*") if file.suffix in (".py", ".sh")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def links(page: Path) -> list[str]:
    """Return the targets of links and pictures of a page that name files, without their anchors."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link.partition("#")[0] for link in found if not link.startswith(("https:", "http:", "#"))]


def linked_sections(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the links of a page to sections of pages: (words, link, text of the section)."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for words, name, anchor in re.findall(r"\[([^][]+)\]\(([\w/-]*\.md)?#([\w-]+)\)", text):
        yield words, f"{name}#{anchor}", section(page.parent / name if name else page, anchor)


def section(page: Path, anchor: str) -> str:
    """Return the text of a section of a page, with its subsections; empty if no heading has this anchor."""
    parts = re.split(r"^(##+) (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found, depth = "", 0
    for level, heading, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if depth and len(level) <= depth:
            break
        if re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") == anchor:
            depth = len(level)
        found += text if depth else ""
    return found


def named_files(page: Path) -> set[str]:
    """Return the paths below the folders of the repository that a page names, in its text and its blocks."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?<![\w./-])(?:fairseq_headgates|recipes|benchmarks|tests|docs)/[\w./-]*\w", text)
    return {name for name in found if not name.startswith("docs/_build")}


def named_options(page: Path) -> set[str]:
    """Return the options between backticks in the text of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    code = " ".join(re.findall(r"`([^`]+)`", text))
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*\w", code))
