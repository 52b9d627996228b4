"""Single sentences of the data or of a text, as samples, and their tokens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, ListDataset
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import stacks_of
from fairseq_headgates.data.corpus import Corpus, check_tokens, load_dataset
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.objectives import objective_of
from fairseq_headgates.data.translations import beam_search


def symbols_of(sample: Sample, task: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Return the tokens that are queries and keys of each attention type, of a sample of one sentence."""

    def symbols(tokens: Tensor, dictionary: Any) -> list[str]:
        return [dictionary[token] for token in tokens[0].tolist()]

    source = symbols(sample["net_input"]["src_tokens"], task.source_dictionary)
    stacks = objective_of(task).stacks
    if len(stacks) == 1:
        return {"enc-self" if "encoder" in stacks else "dec-self": (source, source)}
    inputs = symbols(sample["net_input"]["prev_output_tokens"], task.target_dictionary)
    predicted = symbols(sample["target"], task.target_dictionary)
    return {"enc-self": (source, source), "dec-self": (inputs, inputs), "dec-enc": (predicted, source)}


def read_sentences(args: Namespace, task: Any, model: nn.Module, lines: Sequence[int]) -> Iterator[Sample]:
    """Return sentences of --gen-subset, blocks of a language model, as samples, by numbers from 1. Raise ValueError."""
    dataset, one_stack = load_dataset(args, task, model, args.gen_subset), len(stacks_of(model)) == 1
    for line in lines:
        if not 1 <= line <= len(dataset):
            raise ValueError(f"--lines has {line}: {args.gen_subset!r} has the sentences 1 to {len(dataset)}")
    for line in lines:
        if one_stack or _replaces_marks(task):  # the collater replaces them
            sample = dataset.collater([dataset[line - 1]])
            check_tokens([sample], task, args.data, args.gen_subset)
            if one_stack:
                _check_length(sample["net_input"]["src_tokens"][0], model.max_positions(), "text")  # type: ignore[operator]
            sample["net_input"].pop("blocks", None)  # without the memory of a line before, which is another block
            yield _placed(sample, model)
        else:
            source, target = (dataset[line - 1].get(side) for side in ("source", "target"))
            pair = {"net_input": {"src_tokens": source}, "target": target}
            check_tokens([pair], task, args.data, args.gen_subset)
            yield _sample(args, task, model, source, target)


def typed_sentences(args: Namespace, task: Any, model: nn.Module, lines: Iterable[str]) -> Iterator[Sample]:
    """Return lines of text as samples: SOURCE, tab, TARGET; without a target, with the translation of the model.

    For a language model, a line is a text, which begins with the symbol that the model's texts begin with. For an
    encoder, a line is a sentence, between <s> and </s>; for a classifier also two, with a tab between them. Tokens are
    separated by spaces.
    """
    if _replaces_marks(task):
        raise ValueError("--text does not support --lang-tok-replacing-bos-eos: binarise the text, and use --lines")
    for line in lines:
        if len(stacks_of(model)) == 1:
            yield _text_sample(task, model, line)
        else:
            source, _, target = line.partition("\t")
            words = _tokens(task, target, "target") if target.strip() else None
            yield _sample(args, task, model, _tokens(task, source, "source"), words)


def _replaces_marks(task: Any) -> bool:
    """Return whether language tags replace </s> in the sentences of a multilingual task."""
    return hasattr(task, "data_manager") and task.args.lang_tok_replacing_bos_eos


def _tokens(task: Any, text: str, side: str) -> Tensor:
    """Return the tokens of one side of a sentence; in a multilingual task, after the token of a language."""
    dictionary = getattr(task, f"{side}_dictionary")
    tokens = dictionary.encode_line(text, add_if_not_exist=False).long()
    _refuse_padding(tokens, dictionary.pad())
    if not hasattr(task, "data_manager"):
        return tokens
    manager, (source_mark, target_mark) = task.data_manager, task.args.langtoks["main"]
    mark, add = source_mark, manager.src_dataset_tranform_func
    if side == "target":
        mark, add = target_mark, manager.tgt_dataset_tranform_func
    return add(task.args.source_lang, task.args.target_lang, ListDataset([tokens], [len(tokens)]), mark)[0]


def _sample(args: Namespace, task: Any, model: Any, source: Tensor, target: Tensor | None) -> Sample:
    """Return a sentence as a sample; without a target, with the translation of the model."""
    _check_length(source, model.max_positions()[0], "source")
    if target is None:
        sample = {"net_input": {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}}
        with beam_search(model, Corpus(task, [], args=args)) as generator, torch.no_grad():
            target = task.inference_step(generator, [model], _placed(sample, model))[0][0]["tokens"].cpu()
    _check_length(target, model.max_positions()[1], "target")
    dictionaries = task.source_dictionary, task.target_dictionary
    pair = LanguagePairDataset([source], [len(source)], dictionaries[0], [target], [len(target)], dictionaries[1])
    return _placed(pair.collater([pair[0]]), model)


def _text_sample(task: Any, model: Any, line: str) -> Sample:
    """Return a text as a sample of an encoder or a language model.

    The text of a language model begins as fairseq's texts to continue do.
    """
    dictionary, encoder = task.source_dictionary, "encoder" in stacks_of(model)
    with_bos = encoder or getattr(task.args, "add_bos_token", False)
    ids = [dictionary.bos() if with_bos else dictionary.eos()]
    for number, text in enumerate(line.rstrip().split("\t")):
        if number and task.cfg.separator_token is not None:  # before the second sentence of a pair
            ids.append(task.cfg.separator_token)
        ids += dictionary.encode_line(text, add_if_not_exist=False, append_eos=encoder).tolist()
    tokens = torch.tensor(ids)
    _refuse_padding(tokens, dictionary.pad())
    _check_length(tokens, model.max_positions(), "text")
    return _placed({"net_input": {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}}, model)


def _refuse_padding(tokens: Tensor, pad: int) -> None:
    if tokens.eq(pad).any():  # the model would not see it
        raise ValueError("the text has the symbol of padding, <pad>: leave it out")


def _check_length(tokens: Tensor, longest: int, side: str) -> None:
    if len(tokens) > longest:
        raise ValueError(f"the {side} of a sentence has {len(tokens)} tokens: the model allows {longest}")


def _placed(sample: Sample, model: nn.Module) -> Sample:
    device = next(model.parameters()).device
    return utils.move_to_cuda(sample, device) if device.type == "cuda" else sample
