"""Models in CTranslate2 for the benchmarks."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial

import ctranslate2
import torch
from torch import nn

from fairseq_headgates.checkpoints.ctranslate2 import to_ctranslate2


class Exported:
    """A model that CTranslate2 evaluates on a CPU, with as many threads as torch."""

    def __init__(self, model: nn.Module, folder: str, compute_type: str):
        self.dictionary = model.decoder.dictionary
        to_ctranslate2(model, self.dictionary, self.dictionary, folder, compute_type)
        threads = torch.get_num_threads()
        self.translator = ctranslate2.Translator(
            folder, device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
        )

    def search(self, options: Namespace, source: list[list[int]]) -> Callable[[], object]:
        """Return the translation of sentences, with --length tokens and </s> or one more token for each."""
        words = [[self.dictionary[number] for number in sentence[:-1]] for sentence in source]  # without </s>
        return partial(
            self.translator.translate_batch,
            words,
            beam_size=options.beam,
            num_hypotheses=options.beam,
            min_decoding_length=options.length,
            max_decoding_length=options.length + 1,
        )
