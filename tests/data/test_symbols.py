"""Symbols of dictionaries."""

import json
from types import SimpleNamespace

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig

from fairseq_headgates.data.symbols import spell_numbers, subwords_of


def task_of(*symbols):
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, build_bpe=GPT2BPE)


def test_numbers_of_gpt2_are_shown_as_text_and_read_as_numbers(tmp_path):
    """Of a vocabulary in which the text of a token is the number of another."""
    files = {"encoder.json": json.dumps({"\u0120man": 7, "7": 13}), "vocab.bpe": "#version: 0.2\nm a\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    task = task_of("7", "13", "14", "<mask>")
    spell_numbers(task, GPT2BPEConfig(None, str(tmp_path / "encoder.json"), str(tmp_path / "vocab.bpe")))
    dictionary = task.source_dictionary
    assert dictionary.symbols[dictionary.nspecial :] == ["\u0120man", "7", "14", "<mask>"]
    assert subwords_of(dictionary.symbols) == "byte-level-bpe"
    assert dictionary.encode_line("13 7", add_if_not_exist=False).tolist() == [5, 4, 2]


def test_missing_files_of_gpt2(tmp_path):
    with pytest.raises(ValueError, match="--bpe gpt2 cannot be used .*: give its files with --gpt2-encoder-json"):
        spell_numbers(task_of("7"), GPT2BPEConfig(None, str(tmp_path / "none.json"), str(tmp_path / "none.bpe")))
