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

from fairseq_headgates.extensions.export.ctranslate2 import to_ctranslate2


class Translator:
    """CTranslate2's translator in a process of its own, with as many threads as torch."""

    def __init__(self, folder: str, compute_type: str = "default", device: str = "cpu"):
        context = multiprocessing.get_context("spawn")
        self._work, theirs = context.Pipe()
        options = {"device": device, "compute_type": compute_type, "intra_threads": torch.get_num_threads()}
        context.Process(target=serve, args=(theirs, folder, options), daemon=True).start()
        theirs.close()

    def translate(self, *arguments: object, **options: object) -> list[list[list[str]]]:
        """Return the hypotheses of `translate_batch` for each sentence."""
        return self._call("translate_batch", "hypotheses", arguments, options)

    def score(self, *arguments: object) -> list[list[float]]:
        """Return the log-probabilities of `score_batch` for each sentence."""
        return self._call("score_batch", "log_probs", arguments, {})

    def _call(self, *call: object) -> list:
        self._work.send(call)
        return self._work.recv()


def serve(work: Connection, folder: str, options: dict) -> None:
    """Answer calls until the other end is closed."""
    translator = ctranslate2.Translator(folder, **options)
    while True:
        try:
            method, result, arguments, options = work.recv()
        except EOFError:
            return
        work.send([getattr(found, result) for found in getattr(translator, method)(*arguments, **options)])


class Exported:
    """A model that CTranslate2 evaluates. Raise OSError without a GPU; if its libraries are missing, a search does."""

    def __init__(self, model: nn.Module, folder: str, compute_type: str, device: str):
        if device == "cuda" and not ctranslate2.get_cuda_device_count():
            raise OSError("this CTranslate2 finds no GPU")
        self.dictionary = model.decoder.dictionary
        to_ctranslate2(model, self.dictionary, self.dictionary, folder, compute_type)
        self.translator = Translator(folder, compute_type, device)

    def search(
        self, options: Namespace, source: list[list[int]], shortest: int, longest: int
    ) -> Callable[[], list[list[list[str]]]]:
        """Return the translation of sentences, each with `shortest` to `longest` tokens and </s> or one more token."""
        words = [[self.dictionary[i] for i in sentence if i != self.dictionary.pad()][:-1] for sentence in source]
        return partial(
            self.translator.translate,
            words,
            beam_size=options.beam,
            num_hypotheses=options.beam,
            min_decoding_length=shortest,
            max_decoding_length=longest + 1,
        )
