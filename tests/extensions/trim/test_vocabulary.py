"""Which symbols are kept, and what a model without the others computes."""

import pytest
import torch
from fairseq.data import Dictionary
from support.families import FAMILIES
from support.models import VOCABULARY

from fairseq_headgates.extensions.trim.vocabulary import always_kept, chosen, trim_checkpoint
from fairseq_headgates.plugin.models.building import build_model

SIZE = VOCABULARY + 4
TRIMMED = ["transformer", "transformer, normalised embeddings, layers dropped", "transformer_lm", "bart",
           "roberta, masked tokens"]  # fmt: skip


def trimmed(name, kept):
    """A model of a family, and the same with the symbols `kept` alone."""
    model = FAMILIES[name].make()
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict(), "extra_state": {}}
    stacks = [stack for stack in ("encoder", "decoder") if hasattr(model, stack)]
    return model, build_model(trim_checkpoint(state, dict.fromkeys(stacks, kept), dict.fromkeys(stacks, SIZE)))


@pytest.mark.parametrize("name", TRIMMED)
def test_log_probabilities_of_kept_symbols_rise_by_the_mass_of_the_removed_ones(name):
    kept = torch.cat([torch.arange(4), torch.arange(5, SIZE, 2)])
    model, smaller = trimmed(name, kept)
    net_input = {k: v.clone() for k, v in FAMILIES[name].samples[0]["net_input"].items() if k != "features_only"}
    for k in net_input.keys() & {"src_tokens", "prev_output_tokens"}:
        net_input[k] = kept[net_input[k] % len(kept)]
    with torch.no_grad():
        before = model(**net_input)[0]
        for k in net_input.keys() & {"src_tokens", "prev_output_tokens"}:
            net_input[k] = torch.searchsorted(kept, net_input[k])
        after = smaller(**net_input)[0]
    torch.testing.assert_close(after, before[..., kept], rtol=0, atol=1e-6)
    p = before.softmax(-1)[..., kept].sum(-1, keepdim=True)
    torch.testing.assert_close(after.log_softmax(-1), before.log_softmax(-1)[..., kept] - p.log(), rtol=0, atol=1e-5)


def test_shared_weights_stay_one_tensor():
    _, smaller = trimmed("transformer, normalised embeddings, layers dropped", torch.arange(10))
    pointers = {smaller.encoder.embed_tokens.weight.data_ptr(), smaller.decoder.embed_tokens.weight.data_ptr()}
    assert len(pointers | {smaller.decoder.output_projection.weight.data_ptr()}) == 1


def test_a_vocabulary_in_parts_is_refused():
    name = "transformer, three layers, wider encoder, adaptive softmax, recomputed"
    with pytest.raises(ValueError, match="adaptive"):
        trimmed(name, torch.arange(10))


def dictionary(*symbols):
    made = Dictionary()
    for symbol in symbols:
        made.add_symbol(symbol)
    return made


@pytest.mark.parametrize(
    ("symbols", "kept"),
    [
        ("a b cd madeupword0000 é", "a b é"),
        ("a@@ bc@@ d ef x@@ yz@@", "a@@ d x@@"),
        ("▁a ▁ b ▁cd ef <0x0A>", "▁a ▁ b <0x0A>"),
        ("ab __en__ [en_XX] <mask>", "__en__ [en_XX] <mask>"),
        ("7 255 256 1000 1001 1002 <mask>", "7 255 <mask>"),  # the BPE of GPT-2
        ("7 ab 12", "7"),
    ],
)
def test_single_characters_and_languages_are_always_kept(symbols, kept):
    made = dictionary(*symbols.split())
    no_words = [made.index(symbol) for symbol in ("madeupword0000", "__en__", "[en_XX]", "<mask>") if symbol in made]
    always = always_kept(made, no_words, len(made))
    assert [made[number] for number in always.nonzero().view(-1)] == ["<s>", "<pad>", "</s>", "<unk>", *kept.split()]


def test_what_a_task_adds_to_the_file_is_always_kept():
    assert always_kept(dictionary("abc", "def", "ghi"), [], 5).tolist() == [True] * 4 + [False, True, True]


def test_the_most_frequent_symbols_are_chosen():
    counts, always = torch.tensor([0, 5, 3, 0, 5, 9]), torch.tensor([1, 0, 0, 0, 0, 0]).bool()
    assert chosen(counts, always, None).tolist() == [0, 1, 2, 4, 5]
    assert chosen(counts, always, 3).tolist() == [0, 1, 5]
    assert chosen(counts, always, 9).tolist() == [0, 1, 2, 4, 5]
    with pytest.raises(ValueError, match="--size is 0: .* alone are 1"):
        chosen(counts, always, 0)
