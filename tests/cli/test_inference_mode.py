"""The form of the decoder step, as a user asks for it: for one command of fairseq, for `evaluate`, in a training."""

import json
import re

import pytest
import torch
from support.analysis import SEARCH, one_line
from support.commands import EVALUATION

from fairseq_headgates.inference.device_search import DeviceSearch


@pytest.fixture
def searched(monkeypatch):
    """The numbers of sentences that the search on the device has translated."""
    found, results = [], DeviceSearch._results
    monkeypatch.setattr(
        DeviceSearch, "_results", lambda self, table: found.append(table.size(1)) or results(self, table)
    )
    return found


def test_fairseq_generate_takes_it_from_overrides_and_the_search_from_the_task(run, toy, gated_checkpoint, searched):
    def generated(*options):
        places = [toy.data, "--path", gated_checkpoint, "--gen-subset", "valid", *SEARCH]
        return re.findall(r"^H-.*$", run("fairseq-generate", *places, *options, *EVALUATION).out, re.MULTILINE)

    expected = generated()
    assert len(expected) == 30
    for mode in ("eager", "static", "graph"):
        override = ["--model-overrides", f"{{'inference_mode': '{mode}'}}"]
        for task in ([], ["--task", "translation_device_search"]):
            assert texts(generated(*override, *task)) == texts(expected)
            assert sum(searched) == (30 if task else 0)
        searched.clear()


def texts(lines):
    return [line.split("\t")[::2] for line in lines]


def test_evaluate_searches_on_the_device(on_toy, searched):
    found = [
        json.loads(on_toy("evaluate", *options, *SEARCH, "--json")) for options in ([], ["--inference-mode", "graph"])
    ]
    assert sum(searched) == len(found[1]["predictions"]) == 30
    assert found[0]["predictions"] == found[1]["predictions"]
    assert found[0]["signature"] == found[1]["signature"]


def test_a_training_stores_it(train, tmp_path):
    done = train(tmp_path, "--inference-mode", "static", updates=1)
    assert "--inference-mode static has no effect on training and validation" in done.text
    assert torch.load(tmp_path / "checkpoint_last.pt")["cfg"]["model"].inference_mode == "static"


def test_other_modes_are_refused(on_toy, train, tmp_path):
    words = "unknown inference mode 'fast': choose from eager, static, graph"
    assert words in one_line(on_toy("evaluate", "--inference-mode", "fast", code=2))
    assert words in train(tmp_path, "--inference-mode", "fast", code=2).text
