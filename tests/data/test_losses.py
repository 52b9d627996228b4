"""Losses and drawn targets against the probabilities, also of models whose forward pass has no `features_only`."""

import math

import pytest
import torch
from support.any_model import SPOKEN, TEXT, build
from support.models import PAD
from support.sentences import PAIRS, make_model, sample

from fairseq_headgates.data.losses import draw, drawn_tokens, outputs, token_losses, uniforms

CUTOFF = {"adaptive_softmax_cutoff": "8,16"}


@pytest.mark.parametrize(
    ("name", "options", "inputs"),
    [
        ("transformer_align", {"alignment_layer": 1}, TEXT),
        ("transformer_align", {"alignment_layer": 1, **CUTOFF}, TEXT),
        (
            "lightconv",
            {**CUTOFF, "tie_adaptive_weights": False, "adaptive_softmax_factor": 4.0, "tie_adaptive_proj": False},
            TEXT,
        ),
        ("s2t_transformer", {}, {**SPOKEN, "prev_output_tokens": TEXT["prev_output_tokens"]}),
    ],
)
def test_losses_are_those_of_the_probabilities(name, options, inputs):
    model, target = build(name, **options).eval(), TEXT["prev_output_tokens"].roll(-1, 1)
    sample = {"net_input": inputs, "target": target}
    with torch.no_grad():
        found = token_losses(model, sample, target.ne(PAD))
        log_p = model.get_normalized_probs(model(**inputs), log_probs=True, sample=sample)
    expected = -log_p.gather(2, target[:, :, None]).squeeze(2) / math.log(2)
    torch.testing.assert_close(found, expected * target.ne(PAD), atol=1e-5, rtol=1e-5)


def test_drawn_numbers_have_the_probabilities():
    """Of evenly spread numbers from 0 to 1, the share of a class is its probability; that of an impossible one 0."""
    probabilities, number = torch.tensor([0.0, 0.3, 0.0, 0.5, 0.2, 0.0]), 1000
    drawn = draw(probabilities.log().expand(number, -1), torch.arange(number).double() / number)
    torch.testing.assert_close(drawn.bincount(minlength=6) / number, probabilities, atol=2 / number, rtol=0)


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [{}, {"adaptive_softmax_cutoff": [10, 25]}])
def test_a_sentence_draws_the_same_targets_in_every_batch(options):
    """Alone, and in two batches with others, whose padding differs; other sentences draw others."""
    model = make_model(**options)

    def drawn(batch):
        counted = batch["target"] != PAD
        tokens = drawn_tokens(model, outputs(model, batch)[counted], uniforms(batch, counted))
        # the losses are those of these tokens
        found = token_losses(model, batch, counted, sampled=True)
        targets = batch["target"].masked_scatter(counted, tokens)
        torch.testing.assert_close(found, token_losses(model, {**batch, "target": targets}, counted))
        return targets

    numbers = [[*range(0, 40, 2)], [*range(1, 40, 2)]]
    batches = [{**sample([PAIRS[i] for i in of_batch]), "id": torch.tensor(of_batch)} for of_batch in numbers]
    together = {}
    for batch in batches:
        rows = zip(batch["id"].tolist(), drawn(batch), batch["target"] != PAD, strict=True)
        together |= {number: targets[counted].tolist() for number, targets, counted in rows}
    for number, pair in enumerate(PAIRS):
        one = drawn({**sample([pair]), "id": torch.tensor([number])})
        assert together[number] == one[0].tolist()
    assert len({tuple(tokens) for tokens in together.values()}) > 30
