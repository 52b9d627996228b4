"""Reduce the vocabulary of a model to the symbols of a data set (`headgates trim`): docs/vocabulary.md."""
