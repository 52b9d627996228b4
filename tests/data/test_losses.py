"""The losses of models whose forward pass has no `features_only` are those of their probabilities."""

import math

import pytest
import torch
from support.any_model import SPOKEN, TEXT, build
from support.models import PAD

from fairseq_headgates.data.losses import token_losses

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
