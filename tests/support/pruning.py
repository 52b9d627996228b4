"""Models with gates of every kind, random cases of gates and masks, and their stock twins."""

import argparse
import math
from dataclasses import dataclass

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import strategies as st

from fairseq_headgates import attention_modules
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from support.models import PAD, make_batch, make_task

ALL_TYPES = ",".join(TYPES)
PRESETS = ["", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_vaswani_wmt_en_de_big", "_acl19"]

# log_alpha of gates that are 0, 1 and between at evaluation. The last is barely open: its gate is about 4e-4.
CLOSED, OPEN, FRACTIONS = -3.0, 3.0, (0.4, -1.3, -2.394)


@dataclass(frozen=True)
class Case:
    """A model, the log_alpha of its gates and a mask: {type: one row for every layer}."""

    preset: str
    options: dict
    log_alpha: dict
    mask: dict

    def model(self, seed=0, gates=True):
        """With `gates`, every head has one; else the heads of the mask are fixed and nothing is removed."""
        args = argparse.Namespace(arch=f"transformer_head_gates{self.preset}", **self.options)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        args.gate_heads = ALL_TYPES if gates else ""
        torch.manual_seed(seed)
        model = stirred(TransformerHeadGatesModel.build_model(args, make_task()).eval())
        return set_gates(model, self.log_alpha) if gates else model

    def factors(self):
        """What each head is multiplied by: its gate, or 0 where the mask removes it."""
        return {
            attention_type: [
                [gate(a) * m for a, m in zip(*rows, strict=True)]
                for rows in zip(self.log_alpha[attention_type], self.mask[attention_type], strict=True)
            ]
            for attention_type in TYPES
        }


def gate(log_alpha):
    """The evaluation gate, by hand."""
    return min(1.0, max(0.0, 1.2 / (1 + math.exp(-log_alpha)) - 0.1))


def stirred(model, seed=5):
    """Biases and norms that are not 0 and 1, and sharp attention: they hide no mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate" in name:
                continue
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
            elif "attn" in name:
                parameter *= 1.5
    return model


def set_gates(model, log_alpha):
    for module in attention_modules(model):
        row = torch.tensor(log_alpha[module.attention_type][module.layer])
        if module.attention.gate is not None:
            with torch.no_grad():
                module.attention.gate.theta.copy_(row / module.attention.gate.lr_scale)
    return model


def random_rows(generator, shapes, values):
    """{type: [L][H]} of random choices of `values`."""
    return {
        each: [[values[i] for i in torch.randint(len(values), (heads,), generator=generator)] for _ in range(layers)]
        for each, (layers, heads) in shapes.items()
    }


def rows_of(draw, shapes, values, extremes):
    """The same for hypothesis, where now and then a whole layer is alike."""
    return {
        attention_type: [
            draw(
                st.one_of(
                    st.sampled_from([[value] * heads for value in extremes]),
                    st.lists(st.sampled_from(values), min_size=heads, max_size=heads),
                )
            )
            for _ in range(layers)
        ]
        for attention_type, (layers, heads) in shapes.items()
    }


@st.composite
def cases(draw, fractions=FRACTIONS):
    share = draw(st.sampled_from(["none", "decoder", "all"]))
    encoder_width = draw(st.sampled_from([12, 24]))
    decoder_width = encoder_width if share == "all" else draw(st.sampled_from([12, 24]))
    options = {"share_decoder_input_output_embed": share == "decoder", "share_all_embeddings": share == "all"}
    for side, width in (("encoder", encoder_width), ("decoder", decoder_width)):
        options |= {
            f"{side}_embed_dim": width,
            f"{side}_ffn_embed_dim": 16,
            f"{side}_layers": draw(st.integers(1, 2)),
            f"{side}_attention_heads": draw(st.sampled_from([1, 2, 3, 4, 6])),
        }
        if draw(st.booleans()):  # else as the preset has it
            options[f"{side}_normalize_before"] = draw(st.booleans())
    shapes = {
        attention_type: (options[f"{side}_layers"], options[f"{side}_attention_heads"])
        for attention_type, side in (("enc-self", "encoder"), ("dec-self", "decoder"), ("dec-enc", "decoder"))
    }
    log_alpha = rows_of(draw, shapes, [CLOSED, OPEN, *fractions], [OPEN])
    return Case(draw(st.sampled_from(PRESETS)), options, log_alpha, rows_of(draw, shapes, [0, 1], [0, 1]))


def stock_twin(model, factors, dtype=torch.float32):
    """fairseq's own transformer with the same weights, and the columns of every head times its factor."""
    twin = TransformerModel.build_model(model.args, make_task()).eval()
    twin.load_state_dict({k: v for k, v in model.state_dict().items() if "gate" not in k}, strict=True)
    for module in attention_modules(twin):
        size = module.attention.head_dim
        for head, factor in enumerate(factors[module.attention_type][module.layer]):
            module.attention.out_proj.weight.data[:, head * size : (head + 1) * size] *= factor
    return twin.to(dtype)


def assert_logits(actual, expected, atol=1e-5, rtol=1e-5):
    """At the positions that are no padding."""
    real = make_batch()["prev_output_tokens"].ne(PAD)
    assert actual.isfinite().all()
    torch.testing.assert_close(actual[real], expected[real], atol=atol, rtol=rtol)


def positions(heads, size):
    """The rows of the query, key and value projections (columns of the output projection) of `heads`."""
    return [head * size + i for head in heads for i in range(size)]


def make_case(seed, values=(CLOSED, OPEN, *FRACTIONS), **options):
    """A case with random gates and mask on the model of support/models.py."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        f"{side}_{k}": v
        for side in ("encoder", "decoder")
        for k, v in {"layers": 2, "attention_heads": 4, "embed_dim": 32, "ffn_embed_dim": 64}.items()
    }
    shapes = dict.fromkeys(TYPES, (2, 4))
    log_alpha = random_rows(generator, shapes, list(values))
    return Case("", {**sizes, **options}, log_alpha, random_rows(generator, shapes, [0, 1, 1]))


NO_HEADS_SOMEWHERE = {
    "enc-self": [[0, 0, 0, 0], [0, 1, 0, 0]],
    "dec-self": [[1, 0, 0, 1], [0, 0, 0, 0]],
    "dec-enc": [[0, 0, 0, 0], [0, 0, 1, 0]],
}


def generate(model, beam, batch=None):
    """The tokens of all hypotheses of every sentence of a batch, by default that of `make_batch`."""
    dictionary = make_task().target_dictionary
    generator = SequenceGenerator([model], dictionary, beam_size=beam, max_len_b=12)
    found = generator.generate([model], {"net_input": batch or make_batch()})
    return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]
