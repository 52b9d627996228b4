"""Ablations and curves against the masked model run from the start; a journal that survives a stop."""

import itertools
import json
import math
from functools import cache

import pytest
import torch
from support.sentences import ODD, TASK, loss_of, make_gates, make_model, sample, sentences

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import TYPES, HeadId
from fairseq_headgates.scores import ablation
from fairseq_headgates.scores.ablation import ablation_losses, ablation_masks, masked_predictions
from fairseq_headgates.scores.curves import pruning_curve
from fairseq_headgates.scores.options import ABLATION_MODES

FULL = HeadTable({attention_type: [[1] * 4] * 2 for attention_type in TYPES})


def corpus(batches=None):
    return Corpus(TASK, batches or [sample(sentences()[:3]), sample(sentences()[3:])])


def bits(model, mask=FULL):
    """The loss in bits per token, one sentence at a time."""
    tokens = sum(len(target) for _, target in sentences())
    with torch.no_grad(), masked(model, mask):
        return sum(loss_of(model, pair).item() for pair in sentences()) / tokens / math.log(2)


def with_row(attention_type, layer, row):
    return HeadTable({attention_type: [row if i == layer else [1] * 4 for i in range(2)]})


def gated(normalize_before):
    sides = {f"{side}_normalize_before": normalize_before for side in ("encoder", "decoder")}
    return make_gates(make_model(gate_heads="enc-self,dec-self,dec-enc", **sides))


@cache
def naive_losses(normalize_before, mode):
    """The loss of `gated` whole and with one head masked, or all others of its layer."""
    model = gated(normalize_before)
    found = {"whole": bits(model)}
    for attention_type, layer, head in itertools.product(TYPES, range(2), range(4)):
        row = [int((i == head) == (mode == "all-but-one")) for i in range(4)]
        found[attention_type, layer, head] = bits(model, with_row(attention_type, layer, row))
    return found


# One variant at a time, some, all in one batch.
@pytest.mark.cases(2)
@pytest.mark.parametrize(("tokens", "normalize_before"), [(1, False), (70, True), (4096, False)])
def test_losses_of_all_ablations(tokens, normalize_before, monkeypatch):
    monkeypatch.setattr(ablation, "TOKENS", tokens)
    model = gated(normalize_before)
    for mode in ABLATION_MODES:
        loss, without = ablation_losses(model, corpus(), mode)
        expected = naive_losses(normalize_before, mode)
        assert loss == pytest.approx(expected["whole"], abs=1e-9)
        for attention_type, layer, head in itertools.product(TYPES, range(2), range(4)):
            found = without.layers[attention_type][layer][head]
            place = attention_type, layer, head
            assert found == pytest.approx(expected[place], abs=1e-9), place


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", ODD)
def test_ablation_losses_of_unusual_architectures_match_a_naive_rewrite(name):
    model, pairs = make_model(**ODD[name]), sentences()[:2]
    loss, without = ablation_losses(model, corpus([sample([pair]) for pair in pairs]))

    def naive(mask):
        """From fairseq's own log-probabilities, in single precision, one sentence at a time."""
        total = tokens = 0
        with torch.no_grad(), masked(model, mask):
            for pair in pairs:
                one = sample([pair])
                logs = model.get_normalized_probs(model(**one["net_input"]), log_probs=True, sample=one)
                total -= logs.gather(-1, one["target"][..., None]).double().sum().item()
                tokens += len(pair[1])
        return total / tokens / math.log(2)

    assert loss == pytest.approx(naive(HeadTable({})), abs=1e-5)
    for attention_type, rows in without.layers.items():
        for layer, row in enumerate(rows):
            for head, value in enumerate(row):
                mask = HeadTable(
                    {attention_type: [[int((i, h) != (layer, head)) for h in range(4)] for i in range(len(rows))]}
                )
                assert value == pytest.approx(naive(mask), abs=1e-5), (attention_type, layer, head)


def test_masks_of_ablations():
    model = make_model()
    _, losses = ablation_losses(model, corpus(), "all-but-one")
    masks = ablation_masks(model, "all-but-one", losses)
    assert len(masks) == 6
    for (attention_type, layer, head), mask in masks.items():
        row = losses.layers[attention_type][layer]
        assert row[head] == min(row)
        assert mask.layers == with_row(attention_type, layer, [int(i == head) for i in range(4)]).layers
    masks = ablation_masks(model, "single", losses)
    assert len(masks) == 24
    assert masks[HeadId("dec-self", 1, 2)].layers == {"dec-self": [[1, 1, 1, 1], [1, 1, 0, 1]]}


class Words:
    """A metric whose 'translations' tell which heads of a model are masked, and how often the encoder worked."""

    def __init__(self, corpus):
        self.encoded, self.corpus = 0, corpus

    def prepared(self, model):
        def count(*_):
            self.encoded += 1

        model.encoder.register_forward_hook(lambda *_: None)
        model.encoder.layers[0].register_forward_hook(count)
        return model

    @torch.no_grad()
    def predict(self, model):
        return [str(model(**batch["net_input"])[0].sum().item()) for batch in self.corpus.batches]


def test_translations_share_the_encoder_where_it_is_the_same():
    model, data = make_model(), corpus()
    words = Words(data)
    masks = {
        "decoder": with_row("dec-enc", 1, [0, 1, 1, 1]),
        "encoder": with_row("enc-self", 0, [1, 1, 0, 1]),
        "again": with_row("dec-self", 0, [1, 0, 1, 1]),
    }
    found = masked_predictions(model, words, masks, ResumeJournal(None, ""))
    assert words.encoded == 2 * len(data.batches)  # for the whole model, and for the masked encoder
    for name, mask in {"full": FULL, **masks}.items():
        with masked(model, mask):
            assert found[name] == words.predict(model), name
    assert len(set(map(tuple, found.values()))) == 4


@pytest.mark.parametrize("types", [(), ("dec-enc",)])
def test_a_curve_removes_the_lowest_scores_first(types):
    model = make_model()
    scores = HeadTable(
        {each: [[4 * i + j + 10 * n for j in range(4)] for i in range(2)] for n, each in enumerate(TYPES)}
    )
    points = list(pruning_curve(model, corpus(), scores, FULL, [50, 0, 25, 100], types))
    there_are = 8 if types else 24
    assert [(p.removed, p.heads) for p in points] == [(s, there_are - there_are * s // 100) for s in (0, 25, 50, 100)]
    for point in points:
        gone = {
            (each, i, j)
            for each in TYPES for i in range(2) for j in range(4) if not point.mask.layers[each][i][j]
        }  # fmt: skip
        lowest = sorted((scores.layers[k][i][j], (k, i, j)) for k in types or TYPES for i in range(2) for j in range(4))
        assert gone == {head for _, head in lowest[: len(gone)]} and len(gone) == there_are - point.heads
        assert point.nll == pytest.approx(bits(model, point.mask), abs=1e-9)
        assert point.predictions is None


def test_a_curve_can_rescore_the_remaining_heads():
    model = make_model()
    seen = []

    def rescore(smaller):
        seen.append(open_mask(smaller))
        return HeadTable({each: [[-v for v in row] for row in rows] for each, rows in scores.layers.items()})

    scores = HeadTable({each: [[4.0 * i + j for j in range(4)] for i in range(2)] for each in TYPES})
    points = list(pruning_curve(model, corpus(), scores, FULL, [25, 50], ["enc-self"], rescore))
    assert points[0].mask.layers["enc-self"] == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert points[1].mask.layers["enc-self"] == [[0, 0, 1, 1], [1, 1, 0, 0]]  # now the highest go; the removed stay out
    assert [mask.layers for mask in seen] == [points[0].mask.layers]  # and not after the last step


def test_a_journal_resumes_after_the_last_complete_record(tmp_path):
    path = tmp_path / "out.part"
    journal = ResumeJournal(str(path), "work 1")
    assert journal.get("a", lambda: ["x"]) == ["x"]
    assert journal.get("b", lambda: 2) == 2
    with path.open("a") as file:
        file.write('["c", [1, ')  # killed while it wrote
    again = ResumeJournal(str(path), "work 1")
    assert again.results == {"a": ["x"], "b": 2}
    assert again.get("a", lambda: pytest.fail("known already")) == ["x"]
    assert again.get("c", lambda: 3) == 3
    assert ResumeJournal(str(path), "work 1").results == {"a": ["x"], "b": 2, "c": 3}
    for bad in (lambda: ResumeJournal(str(path), "work 2"), lambda: ResumeJournal(str(tmp_path), "work 1")):
        with pytest.raises(ValueError, match="has the partial results of a command with other data"):
            bad()
    assert ResumeJournal(str(path), "work 2", force=True).results == {}  # other work begins anew
    assert json.loads(path.read_text()) == "work 2"
    ResumeJournal(str(path), "work 2").discard()
    assert not path.exists()
    assert ResumeJournal(None, "").get("a", lambda: 1) == 1


def test_what_a_full_disk_breaks_off_does_not_count(tmp_path):
    import resource

    path = tmp_path / "out.part"
    journal = ResumeJournal(str(path), "work")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # Python ignores the signal: an OSError, as of a disk
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.get("a", lambda: "x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ResumeJournal(str(path), "work").results == {}


def test_a_malformed_journal_is_refused(tmp_path):
    path = tmp_path / "out.part"
    for line in ("[" * 100_000, "[]", '[["a"], 1]', "5", "\ud800".encode("utf-8", "surrogatepass")):
        text = line if isinstance(line, bytes) else line.encode()
        path.write_bytes(b'"work"\n' + text + b"\n")
        with pytest.raises(ValueError, match="has the partial results of a command with other data"):
            ResumeJournal(str(path), "work")
