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
from fairseq_headgates.messages import first_line, logging_only

BEAM_SIZES = ("beam_size", "_beam_size")  # attributes of fairseq's attention and decoders


class Texts:
    """Converts tokens to text as fairseq-generate does: --post-process, then --bpe and --tokenizer.

    Raises:
        ValueError: for options that cannot be used
    """

    def __init__(self, corpus: Corpus, generator: Any):
        self.dictionary, self.post_process = corpus.task.target_dictionary, corpus.cfg.common_eval.post_process
        self.ignored = get_symbols_to_strip_from_output(generator)
        try:
            decoders = [corpus.task.build_bpe(corpus.cfg.bpe), corpus.task.build_tokenizer(corpus.cfg.tokenizer)]
            self.dictionary.string(torch.tensor([corpus.eos]), self.post_process)
        except Exception as error:  # a missing model, an unknown name
            raise ValueError(
                f"--bpe, --tokenizer or --post-process cannot be used ({first_line(error)}): see fairseq-generate "
                "--help"
            ) from None
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

    Raises:
        ValueError: for options that contradict each other
    """
    modules = list(map(vars, model.modules()))
    before = [{name: module[name] for name in BEAM_SIZES if name in module} for module in modules]
    with evaluating(model), torch.random.fork_rng(devices=[]):
        try:
            yield _generator(model, corpus)
        finally:
            for module, sizes in zip(modules, before, strict=True):
                for name in BEAM_SIZES:
                    module.pop(name, None)
                module.update(sizes)


def _generator(model: nn.Module, corpus: Corpus) -> Any:
    options, symbols = corpus.cfg.generation, len(corpus.task.target_dictionary)
    if options.diversity_rate > -1 and 2 * options.beam > symbols:  # fairseq takes as many candidates of one hypothesis
        raise ValueError(f"--beam is {options.beam}: with --diversity-rate it must be at most {symbols // 2}")
    if (k := options.sampling_topk) > symbols:
        raise ValueError(f"--sampling-topk is {k}: it must be at most {symbols}, the number of symbols to choose from")
    utils.set_torch_seed(corpus.cfg.common.seed)  # of --sampling: the same for every model
    try:
        generator = corpus.task.build_generator([model], options)
    except Exception as error:
        raise ValueError(
            f"fairseq cannot use these search options ({first_line(error)}): see fairseq-generate --help"
        ) from None
    _check_lengths(corpus, getattr(generator, "max_len", None))
    return generator


def _check_lengths(corpus: Corpus, longest: int | None) -> None:
    """Raise ValueError if --min-len is above the length that fairseq allows for one of the batches."""
    options = corpus.cfg.generation
    if longest is None:
        return
    for sample in corpus.batches:
        length = sample["net_input"]["src_tokens"].size(1)
        limit = min(int(options.max_len_a * length + options.max_len_b), longest - 1)
        if options.match_source_len:
            limit = int(sample["net_input"]["src_lengths"].max())
        if options.min_len > limit:
            raise ValueError(
                f"--min-len is {options.min_len}, but translations of {length} source tokens have at most {limit} "
                "tokens: lower --min-len or raise --max-len-a and --max-len-b"
            )


@torch.no_grad()
def translate(model: nn.Module, corpus: Corpus) -> list[str]:
    """Translate a corpus by a model prepared for inference. Return the translations in the order of the sentences."""
    prefix = corpus.cfg.generation.prefix_size
    translations = []
    with beam_search(model, corpus) as generator:
        texts = Texts(corpus, generator)
        for sample in corpus.batches:
            forced = sample["target"][:, :prefix] if prefix > 0 else None
            try:
                best = corpus.task.inference_step(generator, [model], sample, prefix_tokens=forced)
            except (AssertionError, OverflowError, RuntimeError) as error:  # no best hypothesis can be found
                if isinstance(error, RuntimeError) and "multinomial" not in str(error):
                    raise
                raise ValueError(
                    "the scores of the search are not finite: use less extreme values of --temperature, --lenpen "
                    "and --unkpen"
                ) from None
            translations.append([texts.text(hypotheses[0]["tokens"]) for hypotheses in best])
    return corpus.in_order(translations)


def references(model: nn.Module, corpus: Corpus) -> list[str]:
    """Return the target side of a corpus as text. Raise ValueError if there is none."""
    with beam_search(model, corpus) as generator:
        texts = Texts(corpus, generator)
    return corpus.in_order(
        [texts.text(utils.strip_pad(tokens, corpus.pad), reference=True) for tokens in sample["target"]]
        for sample in corpus.batches
    )


def bleu_metric(corpus: Corpus) -> BLEU:
    """Return sacreBLEU with the options of `--scoring sacrebleu`. Raise ValueError if they cannot be used."""
    scoring = corpus.cfg.scoring
    tokenizer = getattr(scoring, "sacrebleu_tokenizer", None) or "13a"
    try:
        with logging_only(logging.CRITICAL, "sacrebleu"):  # which logs what it raises
            # force: without a warning at each score
            return BLEU(bool(getattr(scoring, "sacrebleu_lowercase", False)), force=True, tokenize=tokenizer)
    except Exception as error:  # a package or a model of the tokenizer is missing
        raise ValueError(f"--sacrebleu-tokenizer {tokenizer} cannot be used ({first_line(error)})") from None
