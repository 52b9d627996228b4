"""Text, heads and table of benchmarks/stress.sh, which runs it in the folder of its files.

python3 benchmarks/stress.py text 200,60,300 | heads | table
"""

from __future__ import annotations

import json
import pickle
import random
import re
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

FORTUNES = Path("usr/share/games/fortunes/ru")
DICTIONARY = Path("tsnorm/dictionary/wordforms.dat")
PARAMETERS = 7_488_736  # of the published model
WORD = "[а-яё]+"
VOWELS = set("аеёиоуыэюя")


def write_text(sizes: list[int]) -> None:
    """Write test, valid and train: fortunes of 40 to 200 characters, without their authors, in lower case."""
    known = set(json.loads(Path("ruaccent/model/vocab.json").read_text("utf-8"))) - set("'`")
    found = set()
    for path in sorted(path for path in FORTUNES.iterdir() if path.suffix not in (".dat", ".u8")):
        for fortune in re.split(r"^%\s*$", path.read_text("utf-8"), flags=re.MULTILINE):
            text = re.split(r"^\s*-- ", fortune, maxsplit=1, flags=re.MULTILINE)[0]
            text = " ".join(re.sub(r"(\w-)\n\s*", r"\1", text).split()).lower()
            if 40 <= len(text) <= 200 and known.issuperset(text) and not re.search(r"[a-z\d]", text):
                found.add(text)
    lines = sorted(found)
    random.Random(0).shuffle(lines)
    for name, size in zip(("test", "valid", "train"), sizes, strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines[:size]), "utf-8")
        del lines[:size]


def real_heads() -> str:
    """The mask of the heads of the published model: of 4 layers of 5."""
    return json.dumps({kind: [[1] * 8] * 4 + [[0] * 8] for kind in ("enc-self", "dec-self", "dec-enc")})


class Plain(pickle.Unpickler):
    """Reads lists, dictionaries, numbers and text, and runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"{DICTIONARY} holds {module}.{name}")


def read_stresses(words: set[str]) -> dict[str, int]:
    """Return the position of the stressed vowel of each word with several vowels, no ё, and one possible stress."""
    with DICTIONARY.open("rb") as file:
        forms = Plain(file).load()
    found = {}
    for word in words & forms.keys():
        stresses = {tuple(form["stress_pos"]) for form in forms[word]}
        if len(stresses) == 1 and "ё" not in word and sum(letter in VOWELS for letter in word) > 1:
            [found[word], *others] = stresses.pop() or [-1]
            if others or found[word] < 0:
                del found[word]
    return found


def stress_right(source: str, output: str, stresses: dict[str, int]) -> list[bool]:
    """Return for each word of the dictionary whether the output has it with the right stress. A lost word is wrong."""
    words, marked = re.findall(WORD, source), re.findall(r"[а-яё][а-яё']*", output)
    plain = [word.replace("'", "") for word in marked]
    kept = {}
    for block in SequenceMatcher(None, words, plain, autojunk=False).get_matching_blocks():
        kept |= {block.a + i: marked[block.b + i] for i in range(block.size)}
    ends = {i: stresses[word] + 1 for i, word in enumerate(words) if word in stresses}
    return [kept.get(i) == f"{words[i][:end]}'{words[i][end:]}" for i, end in ends.items()]


def letters_kept(source: str, output: str) -> int:
    """Return the number of characters of the source that the output has in the same order."""
    blocks = SequenceMatcher(None, source, output.replace("'", ""), autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def zeros(name: str) -> int:
    """Return the number of weights that are 0: those of the layers that only hold the last norms."""
    import torch

    import fairseq_headgates  # noqa: F401  allows torch to load the options of a checkpoint

    return sum(int((weight == 0).sum()) for weight in torch.load(f"{name}.pt", weights_only=True)["model"].values())


def table() -> str:
    """Return the table of *.test.json and speed.json. p is that of McNemar's test of the words against the model."""
    from fairseq_headgates.data.statistics import mcnemar

    sources = Path("test").read_text("utf-8").splitlines()
    stresses = read_stresses({word for line in sources for word in re.findall(WORD, line)})
    columns = f"{'heads':>5} {'params':>7} {'share':>6} {'stress right':>13} {'p':>6} {'letters kept':>13} {'ms':>5}"
    lines, whole = [f"{'model':16} {columns}"], []
    for timed in json.loads(Path("speed.json").read_text()):
        name = Path(timed["checkpoint"]).stem
        row = json.loads(Path(f"{name}.test.json").read_text())
        outputs = [line.replace(" ", "").replace("▁", " ") for line in row["predictions"]]
        pairs = list(zip(sources, outputs, strict=True))
        right = [word for source, output in pairs for word in stress_right(source, output, stresses)]
        whole = whole or right
        kept = sum(letters_kept(*pair) for pair in pairs) / sum(map(len, sources))
        size, heads = row["parameters"] - zeros(name), row["heads"]["total"][0]
        if name == "model":  # fairseq's file has another layer in each stack, and positions and embeddings of its own
            size, heads = PARAMETERS, 96
        symbols = sum(len(line.split()) for line in timed["predictions"]) / len(timed["predictions"])
        p, ms = mcnemar(whole, right, [True] * len(right)), 1000 * symbols / timed["speed"]["per_second"]
        lines.append(
            f"{name:16} {heads:5} {size / 1e6:6.2f}M {size / PARAMETERS:6.1%} {sum(right) / len(right):13.1%} {p:6.3f}"
            f" {kept:13.2%} {ms:5.0f}"
        )
    return "\n".join([*lines, f"{len(sources)} sentences, {len(whole)} words of the dictionary"])


if __name__ == "__main__":
    if sys.argv[1] == "text":
        write_text([int(size) for size in sys.argv[2].split(",")])
    else:
        print({"heads": real_heads, "table": table}[sys.argv[1]]())
