#!/usr/bin/env python3
"""Compare relevance of heads and tokens in a language model with LXT (Achtibat et al. 2024): time and memory.

    python benchmarks/relevance_speed.py [--size base] [--length 30] [--json FILE]

Both models are decoder-only transformers of the same size with random weights, evaluated on the same tokens:

    story-of-heads, epsilon   this plugin's rules, on fairseq's `transformer_lm`
    LXT                       gradient times input by the efficient rules of LXT, on GPT-2 of `transformers`: one
                              forward pass, then one backward pass for each position. The row is relevance of
                              tokens; that of heads is the same product at the input of the output projection.

Every position of one sentence is explained. Each row is relative to a forward pass of the same model. Needs
`pip install lxt transformers torchvision`.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from bench_models import SIZES, check_least, machine, make_task, peak_bytes, time_works
from fairseq.models.transformer_lm import TransformerLanguageModel
from lxt.efficient import monkey_patch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2 import modeling_gpt2

from fairseq_headgates.analysis.relevance import explain
from fairseq_headgates.files import write_whole
from fairseq_headgates.models import TransformerLMHeadGatesModel
from fairseq_headgates.report import text_table

RULES = ("story-of-heads", "epsilon")


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    tokens = torch.randint(4, options.vocabulary, (1, options.length))
    ours, theirs = fairseq_model(options), gpt2(options)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    forwards = {
        "fairseq": torch.no_grad()(partial(ours, tokens)),
        "GPT-2": torch.no_grad()(partial(theirs, tokens)),
    }
    works = {rule: partial(explain, ours, {"src_tokens": tokens}, rule) for rule in RULES}
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
    columns = ["ms a position", "/ forward pass", "MB", "/ forward pass"]
    print(text_table(["", *columns], [[name, *map("{:,.2f}".format, row.values())] for name, row in rows.items()]))
    if options.json:
        signature = {"machine": machine("cpu"), "torch": torch.__version__, "threads": torch.get_num_threads()}
        text = json.dumps({**signature, "options": vars(options), "parameters": sizes, "rows": rows}, indent=1)
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
    """Return a pre-norm language model of fairseq."""
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {"embed_dim": width, "input_dim": width, "output_dim": width, "ffn_embed_dim": ffn, "layers": layers}
    args = {f"decoder_{name}": value for name, value in {**sizes, "attention_heads": heads}.items()}
    args |= {"decoder_normalize_before": True, "share_decoder_input_output_embed": True}
    namespace = SimpleNamespace(**args, tokens_per_sample=1024, max_target_positions=1024)
    TransformerLMHeadGatesModel.set_defaults(namespace)
    return TransformerLanguageModel.build_model(namespace, make_task(options.vocabulary - 4)).eval()


def gpt2(options: argparse.Namespace) -> nn.Module:
    """Return a GPT-2 of the same size, with the rules of LXT."""
    monkey_patch(modeling_gpt2)
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {"n_embd": width, "n_inner": ffn, "n_layer": layers, "n_head": heads, "vocab_size": options.vocabulary}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager")).eval()
    return model.requires_grad_(False)


def explain_by_lxt(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the relevance [T, T] of tokens, by explained position and token, for the top-1 logit."""
    embedded = model.get_input_embeddings()(tokens).requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits[0]
    found = []
    for top in logits.amax(-1):
        (gradient,) = torch.autograd.grad(top, embedded, retain_graph=True)
        found.append((gradient * embedded).sum(-1)[0].detach())
    return torch.stack(found)


def figures(seconds: dict, name: str, base: str, work: Callable, forward: Callable, length: int) -> dict[str, float]:
    """Return milliseconds a position and megabytes, and both relative to a forward pass."""
    taken, once = statistics.median(seconds[name]), statistics.median(seconds[base])
    memory, least = peak_bytes(work, "cpu") / 1e6, peak_bytes(forward, "cpu") / 1e6
    return {"ms": 1000 * taken / length, "time": taken / length / once, "MB": memory, "memory": memory / least}


if __name__ == "__main__":
    main()
