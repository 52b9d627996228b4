"""Freezing by name, shared parameters, and dropout in frozen modules."""

import pytest
from support.models import make_gated
from torch import nn

from fairseq_headgates import freeze


def trainable(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_only_what_matches_is_frozen():
    model = make_gated(gate_heads="enc-self")
    everything = trainable(model)
    report = freeze(model, r"^decoder\.layers\.1\.|fc1\.bias")
    frozen = everything - trainable(model)
    assert frozen == {name for name in everything if name.startswith("decoder.layers.1.") or name.endswith("fc1.bias")}
    assert report.parameters.total() == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert report.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_shared_parameter_is_frozen_by_any_of_its_names():
    model = make_gated(share_all_embeddings=True)
    freeze(model, r"^decoder\.")
    assert not model.encoder.embed_tokens.weight.requires_grad
    assert trainable(model) and all(name.startswith("encoder.layer") for name in trainable(model))
    separate = make_gated()
    freeze(separate, r"^decoder\.")
    assert separate.encoder.embed_tokens.weight.requires_grad


def test_the_report_groups_layers_and_counts():
    lines = freeze(make_gated(), r"^decoder\.layers\.\d+\.fc").lines()
    assert lines[0] == "frozen: decoder.layers.*.fc1 (4 tensors, 4,224 parameters)"
    assert lines[1] == "frozen: decoder.layers.*.fc2 (4 tensors, 4,160 parameters)"
    assert lines[2].startswith("frozen in all: 8,384 parameters; ") and "still train" in lines[2]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("decodr", "'decodr' matches no parameter: names look like 'encoder"),
        (".", "'.' matches every parameter: narrow the pattern"),
        ("(", "'.' is not a regular expression"),
        (r"\d{99999999999}", "is not a regular expression: the repetition number is too large"),
    ],
)
def test_bad_patterns_are_refused_and_nothing_is_frozen(pattern, message):
    model = make_gated()
    with pytest.raises(ValueError, match=message):
        freeze(model, pattern)
    assert len(trainable(model)) == len(list(model.named_parameters()))


def test_dropout_is_switched_off_only_in_frozen_modules():
    model = make_gated(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1)
    report = freeze(model, r"^decoder\.|^encoder\.layers\.0\.(self_attn|fc)", freeze_dropout=True)
    assert {m.p for m in model.decoder.modules() if type(m).__name__ == "FairseqDropout"} == {0.0}
    first, second = model.encoder.layers
    assert first.self_attn.dropout_module.p == 0  # all of this attention is frozen ...
    assert first.dropout_module.p == 0.3  # ... but not all of its layer: the layer norms train
    assert second.self_attn.dropout_module.p == 0.2 and model.encoder.dropout_module.p == 0.3
    assert (
        report.dropouts == 1 + 2 * 4 + 1
    )  # decoder, its layers (residual, activation, two attentions), enc. attention
    assert "dropouts turned off" in report.lines()[-1]


def test_torch_dropout_is_switched_off_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    freeze(model, r"^1\.", freeze_dropout=True)
    assert model[1][1].p == 0
