"""A model with sharp attention, and its sentences one by one and as a batch, for comparisons with naive loops."""

import torch

from fairseq_headgates import HeadTable
from fairseq_headgates.attention.anatomy import attention_modules
from support.fairseq_0_12_2 import IS_0_12_2
from support.models import PAD, VOCABULARY, make_gated, make_task

EOS = 2
TASK = make_task()
MASK = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-self": [[1, 1, 1, 0]] * 2, "dec-enc": [[1] * 4] * 2})
# Models that differ from the usual encoder and decoder. fairseq 0.12.2 evaluates none without encoder layers.
ODD = {
    "no-cross-attention": {"no_cross_attention": True},
    "cross-self-attention": {"cross_self_attention": True},
    "both": {"no_cross_attention": True, "cross_self_attention": True},
    "adaptive-softmax": {"adaptive_softmax_cutoff": [10, 25]},
    **({} if IS_0_12_2 else {"no-encoder-layers": {"encoder_layers": 0}}),
    "no-decoder-layers": {"decoder_layers": 0},
    "checkpoint-activations": {"checkpoint_activations": True},
    "offload-activations": {"checkpoint_activations": True, "offload_activations": True},
}


def make_model(**options):
    """In double precision, with sharper attention than a new model's, so that heads differ."""
    model = make_gated(**options).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attn" in name:
                parameter.mul_(3.0)
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def make_gates(model):
    """Gates of all kinds: closed, open, between."""
    with torch.no_grad():
        for i, module in enumerate(attention_modules(model)):
            module.attention.gate.theta.copy_(
                torch.tensor([-4.0, 0.3, 4.0, -0.5]).roll(i).to(module.attention.gate.theta)
            )
    return model


def sentences():
    """Source and target tokens of four pairs, EOS at the end."""
    generator = torch.Generator().manual_seed(3)
    pairs = []
    for source, target in ((5, 4), (2, 6), (7, 1), (3, 3)):
        words = torch.randint(4, VOCABULARY, (source + target,), generator=generator).tolist()
        pairs.append((words[:source] + [EOS], words[source:] + [EOS]))
    return pairs


def many_sentences(number=40, seed=7):
    """Source and target tokens of many pairs."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (number, 2), generator=generator).tolist()
    words = lambda length: torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()  # noqa: E731
    return [(words(source) + [EOS], words(target) + [EOS]) for source, target in lengths]


PAIRS = many_sentences()


def sample(pairs, left_pad=True):
    """A batch as fairseq makes it: source padded on the left, target on the right, its prefix beginning with EOS."""

    def pad(rows, left):
        longest = max(map(len, rows))
        return torch.tensor([[PAD] * (longest - len(r)) + r if left else r + [PAD] * (longest - len(r)) for r in rows])

    sources, targets = zip(*pairs, strict=True)
    net_input = {
        "src_tokens": pad(sources, left_pad),
        "src_lengths": torch.tensor([len(s) for s in sources]),
        "prev_output_tokens": pad([[EOS, *t[:-1]] for t in targets], False),
    }
    return {"id": torch.arange(len(pairs)), "net_input": net_input, "target": pad(targets, False)}


def alone(pair):
    return sample([pair])


def loss_of(model, pair):
    """Sum of -ln p over the tokens of one sentence, token by token."""
    one = alone(pair)
    logits = model(**one["net_input"])[0][0]
    return sum(-(row - row.exp().sum().log())[token] for row, token in zip(logits, pair[1], strict=True))
