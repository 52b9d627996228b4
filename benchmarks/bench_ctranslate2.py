"""Models in CTranslate2 for the benchmarks, each in a process of its own.

In the process of torch, the threads of CTranslate2 would slow torch down: with more threads than cores, libgomp lets
idle threads sleep at once instead of waiting actively for the next loop.
"""

import multiprocessing
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import ctranslate2
import torch
from torch import nn

from fairseq_headgates.checkpoints.ctranslate2 import to_ctranslate2


class Exported:
    """A model that CTranslate2 evaluates on a CPU, with as many threads as torch."""

    def __init__(self, model: nn.Module, folder: str, compute_type: str):
        self.dictionary = model.decoder.dictionary
        to_ctranslate2(model, self.dictionary, self.dictionary, folder, compute_type)
        context = multiprocessing.get_context("spawn")
        self._work, theirs = context.Pipe()
        arguments = (theirs, folder, compute_type, torch.get_num_threads())
        context.Process(target=translate, args=arguments, daemon=True).start()
        theirs.close()

    def search(self, options: Namespace, source: list[list[int]]) -> Callable[[], object]:
        """Return the translation of sentences, with --length tokens and </s> or one more token for each."""
        words = [[self.dictionary[number] for number in sentence[:-1]] for sentence in source]  # without </s>
        wanted = {
            "beam_size": options.beam,
            "num_hypotheses": options.beam,
            "min_decoding_length": options.length,
            "max_decoding_length": options.length + 1,
        }
        return partial(self._translate, words, wanted)

    def _translate(self, words: list[list[str]], wanted: dict) -> None:
        self._work.send((words, wanted))
        self._work.recv()


def translate(work: Connection, folder: str, compute_type: str, threads: int) -> None:
    """Translate what arrives, until the other end is closed."""
    options = {"device": "cpu", "compute_type": compute_type, "inter_threads": 1, "intra_threads": threads}
    translator = ctranslate2.Translator(folder, **options)
    while True:
        try:
            words, wanted = work.recv()
        except EOFError:
            return
        work.send(len(translator.translate_batch(words, **wanted)))
