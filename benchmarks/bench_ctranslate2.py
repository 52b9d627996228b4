"""CTranslate2 in the benchmarks: in processes of its own, except with one thread.

In the process of torch, CTranslate2 slows torch down: its threads wait actively on the same cores, and an export alone
changes the number of threads of torch. With one thread processor time is measured, which has to include that of
CTranslate2.
"""

from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_headgates.extensions.convert.ctranslate2 import to_ctranslate2


class Translator:
    """A model that CTranslate2 evaluates, with as many threads as torch."""

    def __init__(self, model: nn.Module, source: Dictionary, target: Dictionary, folder: str, dtype: str, device="cpu"):
        options = {"device": device, "compute_type": dtype, "intra_threads": torch.get_num_threads()}
        self._call = partial(call, folder, tuple(options.items()))
        if options["intra_threads"] == 1:
            to_ctranslate2(model, source, target, folder, dtype)
        else:
            export = get_context("fork").Process(target=exported, args=(model, source, target, folder, dtype))
            export.start()
            export.join()
            if export.exitcode:
                raise RuntimeError(f"the export to {folder} has failed")
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
            self._call = partial(self._in_process, self._call)

    def translate(self, sources: list[list[str]], beam: int, longest: int, **options: object) -> list[list[str]]:
        """Return the best translation of each sentence, of at most `longest` words."""
        options |= {"beam_size": beam, "max_decoding_length": longest + 1}
        return [found[0] for found in self._call("translate_batch", "hypotheses", sources, **options)]

    def score(self, sources: list[list[str]], targets: list[list[str]]) -> list[list[float]]:
        """Return the log-probabilities of the words of each target, and of its end."""
        return self._call("score_batch", "log_probs", sources, targets)

    def _in_process(self, work: partial, *arguments: object, **options: object) -> list:
        return self._pool.submit(work, *arguments, **options).result()


def exported(*arguments: object) -> None:
    """Export a model, in a process that has been forked: there the threads of torch do not exist."""
    torch.set_num_threads(1)
    to_ctranslate2(*arguments)


def call(folder: str, loading: tuple, method: str, result: str, *arguments: object, **options: object) -> list:
    """Return one attribute of the results of a method of CTranslate2's translator."""
    return [getattr(each, result) for each in getattr(loaded(folder, loading), method)(*arguments, **options)]


@cache
def loaded(folder: str, loading: tuple):
    import ctranslate2

    return ctranslate2.Translator(folder, **dict(loading))


def words(dictionary: Dictionary, tokens: Tensor) -> list[str]:
    """Return the words of a sentence, without </s> and padding."""
    return [dictionary[i] for i in tokens.tolist() if i not in (dictionary.eos(), dictionary.pad())]
