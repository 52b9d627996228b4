#!/usr/bin/env python3
"""Measure checkpoints on a test set: size, BLEU, and speed in fairseq, in this plugin and in CTranslate2.

    python benchmarks/translation.py DATA-BIN --reference test.de ENGINE:CKPT ... [--beam 4] [--json FILE]

The engines:

    fairseq           fairseq's own model and beam search, for a checkpoint of its architecture `transformer`
    headgates         this plugin, for a checkpoint that `headgates` has written
    bfloat16, int8    the same in bfloat16, or in int8 (--inference-dtype)
    ctranslate2       CTranslate2 in single precision
    ctranslate2-int8  CTranslate2 in int8

The reference is raw text; translations are detokenised as Moses does. `MB` are those of the weights in a file, for
`bfloat16` and `int8` of single precision, because this plugin rounds and quantises them in memory. `diff` and `p` are
BLEU against the first row, by paired bootstrap. `ms` is the time of a sentence that is translated alone, `sentences/s`
the speed in batches of 32: the sum over the batches of the fastest of --rounds rounds. The rows take turns.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bench_ctranslate2 import Translator, words
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from harness import finish, timed
from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer

from fairseq_headgates.data.results import TextScorer
from fairseq_headgates.drawing.tables import p_value_text, with_interval
from fairseq_headgates.drawing.text import TEXT_STYLE

ENGINES = {  # colours
    "fairseq": "0.5",
    "headgates": "C1",
    "bfloat16": "C4",
    "int8": "C3",
    "ctranslate2": "C0",
    "ctranslate2-int8": "C2",
}
LENGTH_LIMIT = 200  # tokens of a translation: --max-len-b of fairseq-generate
BATCH = 32


def main() -> None:
    given = parse()
    torch.set_num_threads(given.threads)
    data = Data(given)
    with TemporaryDirectory() as folder:
        systems = [System(name, data, given, f"{folder}/{number}") for number, name in enumerate(given.rows)]
        rows = {system.name: {"parameters": system.parameters, "MB": system.bytes / 1e6} for system in systems}
        texts = {system.name: data.translations(system.translate) for system in systems}
        add_scores(rows, texts, data.reference)
        # A batch of 32 takes about as long as eight sentences alone.
        alone, batches = data.batches(1)[:: given.every], data.batches(BATCH)[:: max(1, given.every // 8)]
        for column, work in {"ms": alone, "sentences/s": batches}.items():
            parts = {
                (system.name, i): partial(system.translate, batch) for i, batch in enumerate(work) for system in systems
            }
            seconds, number = timed(parts, given), sum(map(len, work))
            for name, row in rows.items():
                time = sum(seconds[name, i] for i in range(len(work)))
                row[column] = 1000 * time / number if column == "ms" else number / time
    finish(given, {f"{len(data.reference)} sentences": rows})
    if given.plot:
        plot(rows, given.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("data", metavar="DATA-BIN")
    add("rows", nargs="+", metavar="ENGINE:CKPT", help=f"engines: {', '.join(ENGINES)}")
    add("--reference", required=True, metavar="FILE", help="the raw references of the test set")
    add("--beam", type=int, default=4, help="hypotheses for a sentence")
    add("--threads", type=int, default=torch.get_num_threads(), help="threads")
    add("--rounds", type=int, default=4, help="timed rounds, after one that does not count")
    add("--every", type=int, default=8, metavar="N", help="time every N-th sentence alone, and every (N/8)-th batch")
    add("--plot", metavar="FILE", help="draw BLEU over the speed in batches (needs matplotlib)")
    add("--json", metavar="FILE", help="also write the table to FILE")
    parser.set_defaults(device="cpu")
    return parser.parse_args()


class Data:
    """The test set of a folder of fairseq-preprocess, and its raw references."""

    def __init__(self, given: argparse.Namespace):
        search = ["--beam", str(given.beam), "--max-len-b", str(LENGTH_LIMIT), "--path", "unused", "--cpu"]
        parsed = options.parse_args_and_arch(options.get_generation_parser(), [given.data, *search])
        self.cfg = convert_namespace_to_omegaconf(parsed)
        self.task = tasks.setup_task(self.cfg.task)
        self.task.load_dataset("test")
        self.sentences = self.task.dataset("test")
        self.reference = Path(given.reference).read_text(encoding="utf-8").splitlines()
        self.detokenizer = MosesDetokenizer(self.cfg.task.target_lang)

    def batches(self, size: int) -> list[list[int]]:
        """Return the numbers of the sentences in batches of similar lengths."""
        order = sorted(range(len(self.sentences)), key=self.sentences.size)
        return [order[i : i + size] for i in range(0, len(order), size)]

    def translations(self, translate: Callable) -> list[str]:
        """Return the detokenised translations of all sentences, in their order."""
        found = {i: tokens for batch in self.batches(BATCH) for i, tokens in zip(batch, translate(batch), strict=True)}
        joined = [" ".join(found[i]).replace("@@ ", "") for i in range(len(found))]
        return [self.detokenizer.detokenize(text.split()) for text in joined]


class System:
    """A checkpoint in an engine: `translate(numbers)` returns the target tokens of these sentences."""

    def __init__(self, name: str, data: Data, given: argparse.Namespace, folder: str):
        self.name, self.data, self.beam = name, data, given.beam
        engine, _, path = name.partition(":")
        [model], _ = checkpoint_utils.load_model_ensemble([path], task=data.task)
        self.model = model.eval()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.bytes = sum(parameter.nbytes for parameter in model.parameters())
        self.translate = self.search
        if engine.startswith("ctranslate2"):
            dtype = "int8_float32" if engine.endswith("int8") else "float32"
            dictionaries = data.task.source_dictionary, data.task.target_dictionary
            self.exported = Translator(model, *dictionaries, folder, dtype)
            self.bytes = Path(folder, "model.bin").stat().st_size
            self.translate = self.ctranslate2
            return
        if engine in ("bfloat16", "int8"):
            model.inference_dtype = engine
        model.prepare_for_inference_(data.cfg)
        self.generator = data.task.build_generator([model], data.cfg.generation)

    @torch.no_grad()
    def search(self, numbers: list[int]) -> list[list[str]]:
        sample = self.data.sentences.collater([self.data.sentences[i] for i in numbers])
        found = self.data.task.inference_step(self.generator, [self.model], sample)
        best = {i: each[0]["tokens"] for i, each in zip(sample["id"].tolist(), found, strict=True)}
        return [words(self.data.task.target_dictionary, best[i]) for i in numbers]

    def ctranslate2(self, numbers: list[int]) -> list[list[str]]:
        sources = [words(self.data.task.source_dictionary, self.data.sentences[i]["source"]) for i in numbers]
        return self.exported.translate(sources, self.beam, LENGTH_LIMIT, length_penalty=1)


def add_scores(rows: dict[str, dict], texts: dict[str, list[str]], reference: list[str]) -> None:
    """Add BLEU with its 95% interval, and the difference from the first row with its p-value."""
    bleu = TextScorer(BLEU(), reference)
    first, *others = texts.values()
    differences = [None, *bleu.differences(first, others)]
    for (name, lines), difference in zip(texts.items(), differences, strict=True):
        found = bleu.score(lines)
        rows[name]["BLEU"] = with_interval(found.score, found.interval, ".2f")
        rows[name] |= {"diff": f"{difference.value:+.2f}", "p": p_value_text(difference.p)} if difference else {}


def plot(rows: dict[str, dict], file: str) -> None:
    """Draw BLEU over sentences per second, a point for each row."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {"fillstyle": "none", "markersize": 8}  # equal points are seen
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, row), marker in zip(rows.items(), cycle("os^vDP*X<>h"), strict=False):
        engine, _, path = name.partition(":")
        label = f"{Path(path).stem}, {engine}"
        bleu = float(row["BLEU"].split()[0])
        axes.plot(row["sentences/s"], bleu, marker, color=ENGINES[engine], label=label, **style)
    figure.legend(loc="outside right upper", frameon=False)
    axes.set(xlabel=f"sentences per second, batches of {BATCH}", ylabel="BLEU")
    axes.spines[["top", "right"]].set_visible(False)
    with rc_context(TEXT_STYLE):
        figure.savefig(file)


if __name__ == "__main__":
    main()
