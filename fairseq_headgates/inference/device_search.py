"""Plain beam search on the device: fairseq's results, without fairseq's waits for the device at every step.

One piece of work, which a CUDA graph can replay, computes a decoder step, chooses the hypotheses to continue and
describes the choice in a record. The host collects the records, and looks only every few steps whether sentences have
ended. After the search it follows the records back from the ends of the hypotheses.

Shapes: B sentences, K hypotheses of each (the beam), V symbols.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_headgates.inference.beam_stacks import BeamDecoder
from fairseq_headgates.inference.decoder_step import DecoderStep
from fairseq_headgates.inference.graphs import Graphs

WAIT = 4  # steps between two looks at the device
# What a record [B, K] has of the hypotheses that continue, and of the best K candidates, some of which end.
TOKEN, PARENT, SCORE, ENDS, END_PARENT, END_SCORE = range(6)


@dataclass
class History:
    """The records of a search.

    Attributes:
        numbers: the sentence [B'] of each row of the present buffers; further rows are empty
        records: the records [B, K, 6] of all steps in the present buffers
        parts: for earlier buffers: the sentences, and their records on the CPU [steps, B', K, 6]
    """

    numbers: Tensor
    records: list[Tensor] = field(default_factory=list)
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def keep(self, kept: Tensor) -> None:
        """Close the present buffers; `kept` of their rows move to new ones."""
        if self.records:
            self.parts.append((self.numbers, torch.stack(self.records)[:, : len(self.numbers)].cpu()))
        self.numbers, self.records = self.numbers[kept], []

    def table(self, sentences: int) -> Tensor:
        """Return all records [steps, sentences, K, 6], 0 after the end of a sentence."""
        self.keep(self.numbers[:0])
        found = []
        for numbers, records in self.parts:
            whole = records.new_zeros(len(records), sentences, *records.shape[2:])
            whole[:, numbers] = records
            found.append(whole)
        return torch.cat(found)


class DeviceSearch(SequenceGenerator):
    """fairseq's `SequenceGenerator`; its plain beam search stays on the device.

    It does so for encoder-decoders of this plugin, in every `inference_mode`. All else is fairseq's search: sampling,
    diverse beams, constraints, prefixes, blocked n-grams, a language model, `match_source_len`. The results are on the
    CPU and have no attention weights.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._graphs = Graphs()

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        plain = prefix_tokens is None and constraints is None and self._is_plain(sample["net_input"])
        steps = self._free_steps() if plain else []
        if not steps:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        source = sample["net_input"]["src_tokens"]
        longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)  # tokens before </s>
        assert self.min_len <= longest, "min_len cannot be larger than max_len, please adjust these!"  # as fairseq
        try:
            self._begin(steps, sample["net_input"], self.eos if bos_token is None else bos_token)
            history = self._search(steps, len(source), longest)
        finally:
            for step in steps:
                step.search = None
        return self._results(history.table(len(source)))

    def _is_plain(self, net_input: dict[str, Any]) -> bool:
        """Return whether the search is fairseq's plain beam search for a text."""
        extras = (self.repeat_ngram_blocker, self.lm_model, self.token_indices_to_suppress)
        return (
            type(self.search) is BeamSearch
            and all(extra is None for extra in extras)
            and not self.match_source_len
            and 2 * self.beam_size <= self.vocab_size - 2  # candidates of the first step, without padding and </s>
            and "src_tokens" in net_input
            and net_input["src_tokens"].dim() == 2
        )

    def _free_steps(self) -> list[DecoderStep]:
        """Return a step of the same form of every model, none if that is not possible."""
        decoders = [getattr(model, "decoder", None) for model in self.model.models]
        if not self.model.has_encoder() or len(set(decoders)) < len(decoders):
            return []
        steps = [decoder.free_step() if isinstance(decoder, BeamDecoder) else None for decoder in decoders]
        found = [step for step in steps if step is not None]
        return found if len(found) == len(steps) and len({step.exact for step in found}) == 1 else []

    def _begin(self, steps: list[DecoderStep], net_input: dict[str, Any], first: int) -> None:
        """Encode the sentences, and set the steps of all models to the token `first` at the first position."""
        sentences = len(net_input["src_tokens"])
        for step, encoder_out in zip(steps, self.model.forward_encoder(net_input), strict=True):
            step.begin(self, sentences, self.beam_size, encoder_out)
            step.tokens.fill_(first)
        state = steps[0].buffers
        state["scores"][:, 0] = 0  # others are -inf: all hypotheses descend from the first
        state["ended"][:sentences] = 0

    def _search(self, steps: list[DecoderStep], sentences: int, longest: int) -> History:
        history, wait = History(torch.arange(sentences)), WAIT if steps[0].mask.is_cuda else 1
        for position in range(longest + 1):
            for step in steps:
                step.advance(position)
            history.records.append(self._record(steps, last=position == longest).clone())
            if position < longest and position % wait == wait - 1:
                live = self._live(steps[0].buffers)
                if not len(live):
                    break
                if steps[0].has_smaller_bucket(len(live)):
                    history.keep(live)
                    for step in steps:
                        step.select(live)
        return history

    def _record(self, steps: list[DecoderStep], last: bool) -> Tensor:
        work = partial(self._step, steps, last)
        if last or any(step.exact or step.decoder.inference_mode != "graph" for step in steps):
            return work()
        return self._graphs.run(tuple(step.key for step in steps), work, steps[0].position.device)

    def _live(self, state: dict[str, Tensor]) -> Tensor:
        """Return the rows of the sentences that need more hypotheses, on the CPU. Raise AssertionError as fairseq."""
        ended, ignored = torch.stack([state["ended"] >= self.beam_size, state["ignored"].all(1)]).cpu()
        assert not (ignored & ~ended).any(), "no hypothesis of a sentence has a finite score"
        return (~ended).nonzero()[:, 0]

    def _step(self, steps: list[DecoderStep], last: bool) -> Tensor:
        """Compute a step, and choose as fairseq does. Return the record [B, K, 6]; see `TOKEN` to `END_SCORE`.

        Args:
            steps: the step of each model
            last: whether all hypotheses end at this position
        """
        beam, state = self.beam_size, steps[0].buffers
        scores, tokens, beams = self._candidates(steps, last)
        ends = tokens.eq(self.eos) & scores.ne(-math.inf)
        best = ends[:, :beam]
        final = best.logical_and_(~state["ignored"]).clone()
        best.logical_or_(state["ignored"])
        rank = torch.arange(2 * beam, device=ends.device) + 2 * beam * ends
        ranks, chosen = rank.topk(beam, dim=1, largest=False)
        token, parent, score = (each.gather(1, chosen) for each in (tokens, beams, scores))
        state["ignored"].copy_(ranks >= 2 * beam)
        state["scores"].copy_(score)
        state["ended"].add_(final.sum(1))
        order = (steps[0].rows[:, :1] + parent).view(-1)
        for step in steps:
            step.reorder(None, order)
            step.tokens.copy_(token)
        return torch.stack([token, parent, score, final, beams[:, :beam], scores[:, :beam]], dim=2)

    def _candidates(self, steps: list[DecoderStep], last: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, tokens and hypotheses of the best 2 K continuations of every sentence, best first [B, 2 K]."""
        found = []
        for model, step in zip(self.model.models, steps, strict=True):
            logits = step.logits()[0].div_(self.temperature)
            found.append(model.get_normalized_probs((logits, None), log_probs=True, sample=None)[:, -1])
        lprobs = found[0]
        if len(found) > 1:
            lprobs = torch.logsumexp(torch.stack(found), dim=0) - math.log(len(found))
        lprobs = lprobs.nan_to_num_(-math.inf, math.inf, -math.inf)
        end = lprobs[:, self.eos]
        if last:
            end = end.clone()
            lprobs.fill_(-math.inf)[:, self.eos].copy_(end)
        else:
            lprobs[:, self.pad].fill_(-math.inf)
            lprobs[:, self.unk].sub_(self.unk_penalty)
            end.masked_fill_(steps[0].position < self.min_len, -math.inf)
        lprobs = lprobs.view(-1, self.beam_size, self.vocab_size) + steps[0].buffers["scores"][:, :, None]
        scores, indices = lprobs.flatten(1).topk(2 * self.beam_size)
        return scores, indices % self.vocab_size, indices // self.vocab_size

    def _results(self, table: Tensor) -> list[list[dict[str, Tensor]]]:
        """Return the hypotheses of every sentence, best first, from the records [steps, sentences, K, 6]."""
        sentence, end, rank = table[..., ENDS].transpose(0, 1).nonzero(as_tuple=True)  # in the order of their ends
        complete = torch.bincount(sentence, minlength=table.size(1)) >= self.beam_size
        assert (complete | table[-1, :, :, ENDS].any(1)).all(), "a hypothesis has no finite score"  # as fairseq
        first = torch.searchsorted(sentence, torch.arange(table.size(1)))
        among = torch.arange(len(sentence)) - first[sentence] < self.beam_size
        sentence, end, rank = sentence[among], end[among], rank[among]
        tokens = torch.full((len(sentence), len(table)), self.pad)
        totals = table.new_zeros(len(sentence), len(table))
        rows = torch.arange(len(sentence))
        tokens[rows, end] = self.eos
        totals[rows, end] = table[end, sentence, rank, END_SCORE]
        beam = table[end, sentence, rank, END_PARENT].long()
        for position in reversed(range(len(table))):
            later = end > position
            chosen = table[position, sentence[later], beam[later]]
            tokens[later, position], totals[later, position] = chosen[:, TOKEN].long(), chosen[:, SCORE]
            beam[later] = chosen[:, PARENT].long()
        positional = totals.clone()
        positional[:, 1:] -= totals[:, :-1]
        scores = totals[rows, end]
        if self.normalize_scores:
            scores = scores / (end + 1).double().pow(self.len_penalty).float()
        found: list[list[dict[str, Tensor]]] = [[] for _ in range(table.size(1))]
        for row, (number, length) in enumerate(zip(sentence.tolist(), (end + 1).tolist(), strict=True)):
            hypothesis = {"tokens": tokens[row, :length], "score": scores[row], "attention": torch.empty(0)}
            hypothesis |= {"alignment": torch.empty(0), "positional_scores": positional[row, :length]}
            found[number].append(hypothesis)
        return [_best_first(hypotheses) for hypotheses in found]


def _best_first(hypotheses: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    order = torch.tensor([float(each["score"]) for each in hypotheses]).sort(descending=True).indices
    return [hypotheses[i] for i in order.tolist()]
