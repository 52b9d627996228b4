"""Short names for the clauses of the artificial corpus."""

from artificial import grammar, lexicon


def noun(word, det="the", *adjectives, number="sg", **dependents):
    return grammar.NP(lexicon.NOUNS[word], number, "" if lexicon.NOUNS[word].proper else det, adjectives, **dependents)


def nouns(word, det="the", *adjectives, **dependents):
    return noun(word, det, *adjectives, number="pl", **dependents)


def pronoun(word):
    return grammar.NP(lexicon.PRONOUNS[word])


def clause(subj, verb, obj=None, **rest):
    return grammar.Clause(lexicon.VERBS[verb], subj, obj=obj, **rest)


def spell_out(sentence):
    tree, russian = grammar.render(sentence)
    return " ".join(node.form for node in tree.walk()), russian
