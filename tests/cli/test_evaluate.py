"""`headgates evaluate` as a user runs it, on toy models, against fairseq's and sacreBLEU's commands."""

import json
import re
import subprocess
import sys

import numpy
import pytest
from sacrebleu.metrics import BLEU, CHRF
from support import all_attention, classifiers, language_models
from support.analysis import READ, SEARCH, one_line
from support.commands import EVALUATION, valid_loss

from fairseq_headgates import evaluation
from fairseq_headgates.evaluation import read_evaluations


def test_smoke(headgates, toy, checkpoints, tmp_path):
    paths = f"{checkpoints['baseline']}:{checkpoints['fixed']}:{checkpoints['mixed']}"
    print(headgates("evaluate", toy.data, "--path", paths, "--gen-subset", "test", "--loss-subset", "valid", *READ, *SEARCH, "--speed", "--out", tmp_path / "e.json"))
    print((tmp_path / "e.json").read_text()[:3000])
    print(headgates("evaluate", "--help"))
    assert 0
