#!/usr/bin/env python3
"""Measure the cost of counting what all heads of a model attend to, relative to a forward pass over the same sentences.

    python benchmarks/functions_speed.py TREES TARGET [--size small|base] [--device cpu|cuda]

TREES is a CoNLL-U file of the source, TARGET a text file with a translation on each line. Words are not segmented; the
weights are random, because the cost does not depend on them. Relations, rare tokens and alignments are all counted (as
alignments, words at the same position). The forward pass is that of fairseq's model up to the last layer, without the
projection to the vocabulary. Reading the files is not timed, matching words and tokens is.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from bench_models import DTYPES, SIZES, machine, machine_options, make_args, make_task, median_ratio, time_works
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.models.transformer import TransformerModel
from fairseq.utils import apply_to_sample

from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.extensions.functions.counting import Annotations, count_functions
from fairseq_headgates.extensions.functions.trees import parse_relations, read_trees
from fairseq_headgates.files import lines_of, read_text

Sequences = Sequence[Sequence[str]]  # sentences of words


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.manual_seed(1)
    trees = read_trees(str(options.trees))[: options.sentences]
    targets = [line.split() for line in read_lines(options.target)[: options.sentences]]
    if len(trees) != len(targets):
        sys.exit(f"{options.trees} has {len(trees)} trees and {options.target} {len(targets)} lines: give as many")
    corpus = make_corpus([tree.forms for tree in trees], targets, options.max_tokens, options.device)
    args = make_args(options.size)
    args.share_all_embeddings = False
    model = TransformerModel.build_model(args, corpus.task).to(options.device, DTYPES[options.dtype]).eval()
    ours = copy.deepcopy(model)  # which gets this plugin's attention
    lengths = [min(len(tree.forms), len(words)) for tree, words in zip(trees, targets, strict=True)]
    links = [frozenset((i, i) for i in range(length)) for length in lengths]
    annotations = Annotations({"source": trees}, parse_relations(None, trees), links)
    works = {
        "forward pass": partial(forward, model, corpus),
        "functions": partial(count_functions, ours, corpus, annotations),
    }
    seconds = time_works(works, options.rounds, options.device)
    tokens = sum(batch["ntokens"] for batch in corpus.batches)
    print(f"{machine(options.device)}, torch {torch.__version__}, {options.size}, {options.dtype}, ", end="")
    print(f"{len(trees)} sentences, {tokens} target tokens, {len(corpus.batches)} batches")
    for name in works:
        print(f"{name:14}{statistics.median(seconds[name]):8.2f} s{median_ratio(seconds, name, 'forward pass'):8.2f}")


@torch.no_grad()
def forward(model: TransformerModel, corpus: Corpus) -> None:
    for batch in corpus.batches:
        model(**batch["net_input"], features_only=True)


def read_lines(path: Path) -> list[str]:
    return lines_of(read_text(str(path), "the text", "give one sentence per line"))


def make_corpus(sources: Sequences, targets: Sequences, max_tokens: int, device: str) -> Corpus:
    """Return the sentences in batches of similar length, made by fairseq, with dictionaries of their words."""
    task = make_task(0)
    task.source_dictionary, task.target_dictionary = dictionary_of(sources), dictionary_of(targets)
    sides = []
    for dictionary, sentences in ((task.source_dictionary, sources), (task.target_dictionary, targets)):
        ids = [dictionary.encode_line(" ".join(words), add_if_not_exist=False).long() for words in sentences]
        sides += [ids, [len(sentence) for sentence in ids], dictionary]
    pairs = LanguagePairDataset(*sides, shuffle=False)
    batches = pairs.batch_by_size(pairs.ordered_indices(), max_tokens=max_tokens)
    collated = [pairs.collater([pairs[i] for i in batch]) for batch in batches]
    return Corpus(task, [apply_to_sample(partial(torch.Tensor.to, device=device), batch) for batch in collated])


def dictionary_of(sentences: Sequences) -> Dictionary:
    dictionary = Dictionary()
    for words in sentences:
        for word in words:
            dictionary.add_symbol(word)
    return dictionary


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", type=Path, help="trees of the source, CoNLL-U, also .gz")
    parser.add_argument("target", type=Path, help="their translations, one per line, also .gz")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--sentences", type=int, default=1000, help="take the first N (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=4000, help="tokens in a batch (default: %(default)s)")
    machine_options(parser, rounds=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
