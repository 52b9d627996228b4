"""Models whose sentences end at different times, and their searches."""

from unittest.mock import patch

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from fairseq_headgates import HeadTable, prune
from fairseq_headgates.inference import beam_stacks
from support.language_models import make_lm
from support.models import PAD, VOCABULARY, make_args, make_gated, make_task
from support.pruning import ALL_TYPES, NO_HEADS_SOMEWHERE, stirred

EOS = 2
TASK = make_task()
DICTIONARY = TASK.target_dictionary


def ending(model, bias, seed=1):
    """The model with other logits: those of </s> have a bias, high for sentences that end at once."""
    torch.manual_seed(seed)
    layer = nn.Linear(model.decoder.output_embed_dim, len(DICTIONARY))
    nn.init.normal_(layer.weight, std=0.6)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.bias[EOS] = bias
    model.decoder.output_projection = layer
    return model.eval()


def of_family(name, **options):
    args = make_args(arch=name, **options)
    ARCH_CONFIG_REGISTRY[name](args)
    torch.manual_seed(3)
    return MODEL_REGISTRY[name].build_model(args, TASK)


# Every family that generates with fairseq's decoder.
FAMILIES = {
    "transformer": lambda: make_gated(),
    "post-norm": lambda: make_gated(encoder_normalize_before=False, decoder_normalize_before=False),
    "learned-positions": lambda: make_gated(encoder_learned_pos=True, decoder_learned_pos=True),
    "other-dimensions": lambda: make_gated(decoder_input_dim=16, decoder_output_dim=24, layernorm_embedding=True),
    "no-cross-attention": lambda: make_gated(no_cross_attention=True),
    "gates": lambda: stirred(make_gated(gate_heads=ALL_TYPES)),
    "pruned": lambda: prune(make_gated(), HeadTable(NO_HEADS_SOMEWHERE)),
    "compressed": lambda: make_gated(ffn_dims='{"encoder": [3, 0], "decoder": [40, 1]}'),
    "language-model": lambda: make_lm(),
    "bart": lambda: of_family("bart_head_gates"),
}


def batch(sentences, seed=0, longest=9):
    """Random sentences of 1 to `longest` - 1 words, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (sentences,), generator=generator)
    source = torch.randint(4, VOCABULARY, (sentences, int(lengths.max())), generator=generator)
    source[torch.arange(source.size(1)) < source.size(1) - lengths[:, None]] = PAD
    source[:, -1] = EOS
    return {"src_tokens": source, "src_lengths": lengths}


def search(models, beam, net_input, **options):
    """The hypotheses of all sentences: tokens, score and scores of the tokens of each."""
    models = models if isinstance(models, list) else [models]
    generator = SequenceGenerator(models, DICTIONARY, beam_size=beam, **{"max_len_b": 12, **options})
    found = generator.generate(models, {"net_input": net_input})
    return [[{key: each[key] for key in ("tokens", "score", "positional_scores")} for each in s] for s in found]


def cached_search(models, *args, **options):
    """The same with fairseq's cache."""
    with patch.object(beam_stacks, "has_step", lambda decoder: False):
        return search(models, *args, **options)


def assert_same_search(found, expected):
    """The same hypotheses in the same order, with the same scores up to rounding."""
    assert [len(sentence) for sentence in found] == [len(sentence) for sentence in expected]
    for ours, other in zip(sum(found, []), sum(expected, []), strict=True):
        assert ours["tokens"].tolist() == other["tokens"].tolist()
        for name in ("score", "positional_scores"):
            torch.testing.assert_close(ours[name], other[name], rtol=1e-5, atol=1e-5)


def within_sentences(generator, sentences, beam):
    """What beam search does: hypotheses of a sentence are continued, dropped or continued twice; a sentence may end."""
    kept = [i for i in range(sentences) if sentences == 1 or torch.rand((), generator=generator) > 0.15] or [0]
    picks = torch.randint(0, beam, (len(kept), beam), generator=generator)
    return (torch.tensor(kept)[:, None] * beam + picks).view(-1)


def sentences_exchanged(generator, sentences, beam):
    order = torch.randperm(sentences, generator=generator)
    return (order[:, None] * beam + torch.arange(beam)).view(-1)


def anything(generator, sentences, beam):
    return torch.randint(0, sentences * beam, (sentences * beam,), generator=generator)


def single_row(generator, sentences, beam):
    return torch.tensor([int(torch.randint(0, sentences * beam, (), generator=generator))])


def orders(generator, steps, sentences, beam, strange):
    """A reordering for every step; one in the middle is `strange`, after which rows may belong to no group."""
    rows, found = sentences * beam, []
    for step in range(steps):
        if step == steps // 2 and strange is not None:
            order = strange(generator, rows // beam, beam)
        elif rows % beam == 0 and (strange not in (anything, single_row) or step < steps // 2):
            order = within_sentences(generator, rows // beam, beam)
        else:
            order = torch.randint(0, rows, (rows,), generator=generator)
        found.append(order)
        rows = order.numel()
    return found
