#!/usr/bin/env python3
"""Compare relevance of heads and tokens in a language model with LXT (Achtibat et al. 2024): values, time, memory.

    python benchmarks/relevance_speed.py [--size base] [--length 30] [--json FILE]

Both models are decoder-only transformers with the same random weights, evaluated on the same tokens:

    attnlrp, alti, story-of-heads, epsilon   this plugin's methods, on fairseq's `transformer_lm`
    LXT                                      the efficient rules of LXT, on GPT-2 of `transformers`: one forward pass,
                                             then one backward pass for each position

Every position of one sentence is explained: relevance of tokens and, except by alti, of heads (activation times
gradient at the input of the output projection). Each row is relative to a forward pass of the same model. The largest
differences between attnlrp and LXT are printed, relative to the largest relevance. Needs `pip install lxt transformers
torchvision` (measured with lxt 2.1 and transformers 4.52.4).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from bench_models import SIZES, check_least, machine, make_task, peak_bytes, time_works
from fairseq.models.transformer_lm import TransformerLanguageModel
from lxt.efficient import monkey_patch
from lxt.efficient.models.gpt2 import attnLRP
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2 import modeling_gpt2

from fairseq_headgates.analysis.relevance.explaining import explain
from fairseq_headgates.analysis.relevance.predictions import Relevance
from fairseq_headgates.files import write_whole
from fairseq_headgates.plugin.models.language_model import TransformerLMHeadGatesModel
from fairseq_headgates.report.tables import text_table

METHODS = ("attnlrp", "alti", "story-of-heads", "epsilon")
LONGEST = 1024  # positions


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    tokens = torch.randint(4, options.vocabulary, (1, options.length))
    ours = fairseq_model(options)
    theirs = gpt2(ours, options)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    forwards = {
        "fairseq": torch.no_grad()(partial(ours, tokens)),
        "GPT-2": torch.no_grad()(partial(theirs, tokens)),
    }
    works: dict[str, Callable] = {name: partial(explain, ours, {"src_tokens": tokens}, name) for name in METHODS}
    works["LXT"] = partial(explain_by_lxt, theirs, tokens)
    seconds = time_works({**forwards, **works}, options.rounds, "cpu")
    rows = {}
    for name, work in works.items():
        base = "GPT-2" if name == "LXT" else "fairseq"
        rows[name] = figures(seconds, name, base, work, forwards[base], options.length)
    print(
        f"{machine('cpu')}, torch {torch.__version__}, {options.size}, {options.length} positions; parameters: fairseq "
        f"{sizes[0]:,}, GPT-2 {sizes[1]:,}"
    )
    differences = compared(works["attnlrp"](), works["LXT"]())
    print("largest difference between attnlrp and LXT: " + ", ".join(f"{k} {v:.1e}" for k, v in differences.items()))
    columns = ["ms a position", "/ forward pass", "MB", "/ forward pass"]
    print(text_table(["", *columns], [[name, *map("{:,.2f}".format, row.values())] for name, row in rows.items()]))
    if options.json:
        signature = {"machine": machine("cpu"), "torch": torch.__version__, "threads": torch.get_num_threads()}
        text = json.dumps(
            {**signature, "options": vars(options), "parameters": sizes, "differences": differences, "rows": rows},
            indent=1,
        )
        write_whole(options.json, text + "\n", force=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", choices=SIZES, default="base", help="of the decoder (default: %(default)s)")
    add("--vocabulary", type=int, default=8000, help="(default: %(default)s)")
    add("--length", type=int, default=30, help="positions that are explained (default: %(default)s)")
    add("--rounds", type=int, default=5, help="(default: %(default)s)")
    add("--threads", type=int, help="threads on the CPU (default: torch's)")
    add("--json", metavar="FILE", help="also write all figures to FILE")
    options = parser.parse_args()
    check_least(Path(__file__).name, options, {"vocabulary": 5, "length": 1, "rounds": 1})
    return options


def fairseq_model(options: argparse.Namespace) -> nn.Module:
    """Return a pre-norm language model of fairseq that computes what GPT-2 does, with random biases and norms."""
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {"embed_dim": width, "input_dim": width, "output_dim": width, "ffn_embed_dim": ffn, "layers": layers}
    args = {f"decoder_{name}": value for name, value in {**sizes, "attention_heads": heads}.items()}
    args |= {"decoder_normalize_before": True, "share_decoder_input_output_embed": True, "decoder_learned_pos": True}
    args |= {"activation_fn": "gelu_accurate", "no_scale_embedding": True}
    namespace = SimpleNamespace(**args, tokens_per_sample=LONGEST, max_target_positions=LONGEST)
    TransformerLMHeadGatesModel.set_defaults(namespace)
    model = TransformerLanguageModel.build_model(namespace, make_task(options.vocabulary - 4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def gpt2(ours: Any, options: argparse.Namespace) -> nn.Module:
    """Return a GPT-2 with the weights of a model of fairseq, and the rules of LXT."""
    monkey_patch(modeling_gpt2, patch_map=attnLRP)
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {"n_embd": width, "n_inner": ffn, "n_layer": layers, "n_head": heads, "vocab_size": options.vocabulary}
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id"), 2)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **tokens, n_positions=LONGEST, attn_implementation="eager")).eval()
    decoder, into = ours.decoder, model.transformer
    into.wte.weight.copy_(decoder.embed_tokens.weight)
    into.wpe.weight.copy_(decoder.embed_positions.weight[decoder.padding_idx + 1 :])
    into.ln_f.load_state_dict(decoder.layer_norm.state_dict())
    for layer, block in zip(decoder.layers, into.h, strict=True):
        block.ln_1.load_state_dict(layer.self_attn_layer_norm.state_dict())
        block.ln_2.load_state_dict(layer.final_layer_norm.state_dict())
        joined = [getattr(layer.self_attn, f"{name}_proj") for name in "qkv"]
        block.attn.c_attn.weight.copy_(torch.cat([part.weight for part in joined]).t())
        block.attn.c_attn.bias.copy_(torch.cat([part.bias for part in joined]))
        copies = [
            (block.attn.c_proj, layer.self_attn.out_proj),
            (block.mlp.c_fc, layer.fc1),
            (block.mlp.c_proj, layer.fc2),
        ]
        for target, source in copies:
            target.weight.copy_(source.weight.t())
            target.bias.copy_(source.bias)
    return model.requires_grad_(False)


def explain_by_lxt(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relevance for the top-1 logit of every position: of tokens [T, T], and of heads [T, L, H]."""
    blocks, seen = model.transformer.h, []

    def start(_: nn.Module, args: tuple) -> tuple:
        seen.append(args[0].detach().requires_grad_())
        return seen[0], *args[1:]

    hooks = [blocks[0].register_forward_pre_hook(start)]
    hooks += [block.attn.c_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in blocks]
    logits = model(tokens, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    of_tokens, of_heads = [], []
    for top in logits.amax(-1):
        first, *others = torch.autograd.grad(top, seen, retain_graph=True)
        of_tokens.append((first * seen[0]).sum(-1)[0].detach())
        products = [(gradient * x).detach().abs()[0].sum(0) for gradient, x in zip(others, seen[1:], strict=True)]
        of_heads.append(torch.stack(products).unflatten(-1, (blocks[0].attn.num_heads, -1)).sum(-1))
    return torch.stack(of_tokens), torch.stack(of_heads)


def compared(ours: Relevance, theirs: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return the largest differences, relative to the largest relevance."""
    pairs = {"tokens": (ours.target[0], theirs[0]), "heads": (ours.heads["dec-self"][0], theirs[1])}
    return {name: float((a - b).abs().max() / b.abs().max()) for name, (a, b) in pairs.items()}


def figures(seconds: dict, name: str, base: str, work: Callable, forward: Callable, length: int) -> dict[str, float]:
    """Return milliseconds a position and megabytes, and both relative to a forward pass."""
    taken, once = statistics.median(seconds[name]), statistics.median(seconds[base])
    memory, least = peak_bytes(work, "cpu") / 1e6, peak_bytes(forward, "cpu") / 1e6
    return {"ms": 1000 * taken / length, "time": taken / length / once, "MB": memory, "memory": memory / least}


if __name__ == "__main__":
    main()
