"""A task with subwords, and sentences with trees and alignments, for the functions of heads."""

import torch
from fairseq.data import Dictionary

from fairseq_headgates.extensions.functions.counting import Annotations
from fairseq_headgates.extensions.functions.results import find
from fairseq_headgates.extensions.functions.trees import Tree
from fairseq_headgates.scores.options import FunctionOptions
from support.models import VOCABULARY
from support.sentences import EOS

RELATIONS = ("nsubj", "obj")
UNKNOWN = 3
LANGUAGES = {4: "__de__", 5: "[en_XX]"}  # tokens of languages, by number


class Task:
    """A joint dictionary in which the symbols with an even number continue a word; maybe with `LANGUAGES`."""

    def __init__(self, subwords=True, languages=False):
        dictionary = Dictionary()
        for i in range(VOCABULARY):
            word = f"w{i}" + ("@@" if subwords and i % 2 == 0 else "")
            # The counts of pairs of symbols are the same; one is rarer than FREQUENT others if these are 30.
            dictionary.add_symbol(LANGUAGES.get(i + 4, word) if languages else word, n=1000 - i // 2)
        self.source_dictionary = self.target_dictionary = dictionary
        self.no_words = {EOS, *(LANGUAGES if languages else ())}


def sentences(languages=False):
    """Pairs of source and target, all with EOS, and maybe with tokens of languages at different places."""
    generator = torch.Generator().manual_seed(5)
    pairs = []
    for source, target in ((9, 8), (4, 11), (12, 3), (6, 6), (1, 2)):
        words = torch.randint(4, VOCABULARY + 4, (source + target,), generator=generator).tolist()
        pairs.append((words[:source] + [EOS], words[source:] + [EOS]))
    pairs[0][0][2] = pairs[0][0][5] = pairs[0][0][6]  # a token that occurs three times
    pairs[1][1][3] = pairs[1][1][4] = pairs[1][1][0]
    pairs[2][0][3] = UNKNOWN
    for source, target in pairs if languages else ():
        source[:0], target[:0] = [4] * (5 - len(source) % 5), [4] * (len(target) % 2)
        source.append(5)
    return pairs


def symbol(task, token):
    return "<unk>" if token == UNKNOWN else task.source_dictionary.symbols[token]


def words_of(task, tokens):
    """[[positions of the tokens of a word], ...], EOS and tokens of languages left out."""
    words, inside = [], False
    for i, token in enumerate(tokens):
        if token in task.no_words:
            continue
        if not inside or token == UNKNOWN:
            words.append([])
        words[-1].append(i)
        inside = symbol(task, token).endswith("@@") and token != UNKNOWN
    return words


def tree_of(task, tokens):
    """A chain of words: each is the subject or the object of the next but one, or of the word before."""
    words = words_of(task, tokens)
    forms = ["".join(symbol(task, tokens[i]).removesuffix("@@") for i in word) for word in words]
    heads = [i + 2 if i + 2 < len(words) else i - 1 for i in range(len(words))]
    return Tree(tuple(forms), tuple(heads), tuple(("nsubj:pass", "obj", "dep")[i % 3] for i in range(len(words))))


def links_of(task, pair):
    source, target = (len(words_of(task, side)) for side in pair)
    return frozenset((a, b) for a in range(source) for b in range(target) if (a + 2 * b) % 3 == 0)


def annotated(task, pairs):
    trees = {"source": [tree_of(task, s) for s, _ in pairs], "target": [tree_of(task, t) for _, t in pairs]}
    return Annotations(trees, RELATIONS, [links_of(task, pair) for pair in pairs])


def found(model, task, batches, annotations, **options):
    return find(model, task, batches, annotations, FunctionOptions(**options))


def conllu(path, sentences, relation="nsubj"):
    """Trees in which every word but the last depends on the next one."""
    blocks = []
    for words in sentences:
        rows = [
            f"{i}\t{word}\t_\t_\t_\t_\t{i + 1 if i < len(words) else 0}\t{relation if i < len(words) else 'root'}\t_\t_"
            for i, word in enumerate(words, start=1)
        ]
        blocks.append("\n".join(rows) + "\n\n")
    path.write_text("".join(blocks))
    return path
