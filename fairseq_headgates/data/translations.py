"""Translate a corpus with fairseq's beam search, and compute BLEU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU
from torch import Tensor, nn

from fairseq_headgates.attention.modules import evaluating
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.messages import Progress, logging_only

BEAM_SIZES = ("beam_size", "_beam_size")  # attributes of fairseq's attention and decoders


class Texts:
    """Converts tokens to text as fairseq-generate does: --post-process, then --bpe and --tokenizer."""

    def __init__(self, corpus: Corpus, generator: Any):
        self.dictionary, self.post_process = corpus.task.target_dictionary, corpus.cfg.common_eval.post_process
        self.ignored = get_symbols_to_strip_from_output(generator)
        decoders = [corpus.task.build_bpe(corpus.cfg.bpe), corpus.task.build_tokenizer(corpus.cfg.tokenizer)]
        self.decoders = [decoder for decoder in decoders if decoder is not None]

    def text(self, tokens: Tensor, reference: bool = False) -> str:
        """Convert the tokens of a sentence to text."""
        line = self.dictionary.string(
            tokens.int().cpu(), self.post_process, escape_unk=reference, extra_symbols_to_ignore=self.ignored
        )
        for decoder in self.decoders:
            line = decoder.decode(line)
        return line


@contextmanager
def beam_search(model: nn.Module, corpus: Corpus) -> Iterator[Any]:
    """Context manager that yields fairseq's beam search with the options of the command line.

    fairseq's search sets modes and beam sizes of the model; afterwards they are as before.
    """
    modules = list(map(vars, model.modules()))
    before = [{name: module[name] for name in BEAM_SIZES if name in module} for module in modules]
    with evaluating(model), torch.random.fork_rng(devices=[]):
        try:
            utils.set_torch_seed(corpus.cfg.common.seed)  # of --sampling: the same for every model
            yield corpus.task.build_generator([model], corpus.cfg.generation)
        finally:
            for module, sizes in zip(modules, before, strict=True):
                for name in BEAM_SIZES:
                    module.pop(name, None)
                module.update(sizes)


@torch.no_grad()
def translate(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> list[str]:
    """Translate a corpus by a model prepared for inference. Return the translations in the order of the sentences."""
    prefix = corpus.cfg.generation.prefix_size
    translations = []
    with beam_search(model, corpus) as generator:
        texts = Texts(corpus, generator)
        for sample in progress(corpus.batches):
            forced = sample["target"][:, :prefix] if prefix > 0 else None
            best = corpus.task.inference_step(generator, [model], sample, prefix_tokens=forced)
            translations.append([texts.text(hypotheses[0]["tokens"]) for hypotheses in best])
    return corpus.in_order(translations)


def references(model: nn.Module, corpus: Corpus) -> list[str]:
    """Return the target side of a corpus as text."""
    with beam_search(model, corpus) as generator:
        texts = Texts(corpus, generator)
    return corpus.in_order(
        [texts.text(utils.strip_pad(tokens, corpus.pad), reference=True) for tokens in sample["target"]]
        for sample in corpus.batches
    )


def bleu_metric(corpus: Corpus) -> BLEU:
    """Return sacreBLEU with the options of `--scoring sacrebleu`."""
    scoring = corpus.cfg.scoring
    tokenizer = getattr(scoring, "sacrebleu_tokenizer", None) or "13a"
    with logging_only(logging.CRITICAL, "sacrebleu"):  # which logs what it raises
        # force: without a warning at each score
        return BLEU(bool(getattr(scoring, "sacrebleu_lowercase", False)), force=True, tokenize=tokenizer)
