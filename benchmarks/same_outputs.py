#!/usr/bin/env python3
"""Compare the outputs of eight versions of a checkpoint on real sentences.

    python benchmarks/same_outputs.py CKPT DATA-BIN [--gen-subset test] [--beam 4] [--json FILE]

The versions: `gated`, the checkpoint itself; `masked`, with its closed heads masked; `pruned` and `stock`, the files
that `headgates prune` writes without and with --stock; `bfloat16` and `int8`, the pruned model with --inference-dtype;
`ctranslate2` and `ctranslate2-int8`, the models that `headgates convert` writes in single precision and with
--quantization int8. --all-layers also rounds small layers of `bfloat16` and `int8`, which is slower.

It prints the largest difference from `gated` in log-probabilities of words of the references, the translations by beam
search that differ (not those of 200 words, the limit, where CTranslate2 ends differently), and BLEU of tokenised text.
On a CPU without VNNI, set CT2_USE_MKL=1: CTranslate2's default backend for int8, oneDNN, saturates there.
"""

import argparse
import contextlib
import copy
import tempfile

import sacrebleu
import torch
from bench_ctranslate2 import Translator, words
from fairseq import checkpoint_utils, tasks
from fairseq.sequence_generator import SequenceGenerator
from harness import finish
from tqdm import tqdm

from fairseq_headgates import masked, prune
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.inference import packed_linear
from fairseq_headgates.plugin.models.building import build_model

LENGTH_LIMIT = 200  # words of a translation: --max-len-b of fairseq-generate


def main() -> None:
    options = parse()
    state = load_checkpoint(options.checkpoint)
    task, batches = load_data(state, options)
    references = [" ".join(words(task.target_dictionary, row)) for batch in batches for row in batch["target"]]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        forms = make_forms(state, task, options, folder, stack)
        found = {name: outputs(form, batches, name) for name, form in forms.items()}
    rows = {name: compared(output, found["gated"], references) for name, output in found.items()}
    finish(options, {f"{len(references)} sentences": rows})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("data", metavar="DATA-BIN")
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--all-layers", action="store_true", help="bfloat16, int8: small layers, too")
    parser.add_argument("--json", metavar="FILE", help="also write the table to FILE")
    return parser.parse_args()


class FairseqForm:
    """A fairseq model."""

    def __init__(self, task, model, beam: int):
        self.model, self.target = model, task.target_dictionary
        self.generator = SequenceGenerator([model], self.target, beam_size=beam)

    def prepare(self) -> None:
        """Prepare for generation, as fairseq-generate does."""
        self.model.make_generation_fast_(need_attn=None)

    @torch.no_grad()
    def score(self, batch: dict) -> torch.Tensor:
        """Return the log-probabilities of the words of the references."""
        log_p = self.model.get_normalized_probs(self.model(**batch["net_input"]), log_probs=True)
        return log_p.gather(2, batch["target"].unsqueeze(2)).squeeze(2)[batch["target"] != self.target.pad()]

    def translate(self, batch: dict) -> list[str]:
        return [
            " ".join(words(self.target, best["tokens"])) for best, *_ in self.generator.generate([self.model], batch)
        ]


class CTranslate2Form:
    """A CTranslate2 model, searching as fairseq does by default (see `to_ctranslate2`)."""

    def __init__(self, task, model, beam: int, folder: str, dtype: str):
        self.source, self.target, self.beam = task.source_dictionary, task.target_dictionary, beam
        self.translator = Translator(model, self.source, self.target, folder, dtype)

    def prepare(self) -> None:
        pass

    def score(self, batch: dict) -> torch.Tensor:
        targets = [words(self.target, row) for row in batch["target"]]
        return torch.cat([torch.tensor(row) for row in self.translator.score(self._sources(batch), targets)])

    def translate(self, batch: dict) -> list[str]:
        found = self.translator.translate(self._sources(batch), self.beam, LENGTH_LIMIT, length_penalty=1)
        return [" ".join(each) for each in found]

    def _sources(self, batch: dict) -> list[list[str]]:
        return [words(self.source, row) for row in batch["net_input"]["src_tokens"]]


def make_forms(state: dict, task, options: argparse.Namespace, folder: str, stack: contextlib.ExitStack) -> dict:
    gated = build_model(state)
    mask = open_mask(gated)
    models = {"gated": gated, "masked": stack.enter_context(masked(copy.deepcopy(gated), mask))}
    for name, smaller in (("pruned", prune_checkpoint(state, mask)), ("stock", stock_checkpoint(state, mask))):
        save_checkpoint(smaller, f"{folder}/{name}.pt")
        (models[name],), *_ = checkpoint_utils.load_model_ensemble_and_task([f"{folder}/{name}.pt"], task=task)
    rounded = ("bfloat16", "int8")
    for dtype in rounded:
        models[dtype] = copy.deepcopy(models["pruned"])
        models[dtype].inference_dtype = dtype
    forms = {name: FairseqForm(task, model.eval(), options.beam) for name, model in models.items()}
    usual = packed_linear.WORTH_PACKING
    packed_linear.WORTH_PACKING = 1 if options.all_layers else usual
    for dtype in rounded:
        forms[dtype].prepare()  # before it scores
    packed_linear.WORTH_PACKING = usual
    exported = prune(gated, mask)
    for name, dtype in (("ctranslate2", "float32"), ("ctranslate2-int8", "int8_float32")):
        forms[name] = CTranslate2Form(task, exported, options.beam, f"{folder}/{name}", dtype)
    return forms


def load_data(state: dict, options: argparse.Namespace):
    """Return the task and its batches, as in fairseq-generate."""
    settings = {**state["cfg"]["task"], "data": options.data}
    task = tasks.setup_task(argparse.Namespace(**{"eval_bleu": False, **settings, "task": settings["_name"]}))
    task.load_dataset(options.gen_subset)
    limits = {"max_tokens": 4000, "max_positions": (1024, 1024), "ignore_invalid_inputs": True}
    iterator = task.get_batch_iterator(task.dataset(options.gen_subset), required_batch_size_multiple=1, **limits)
    return task, list(iterator.next_epoch_itr(shuffle=False))


def outputs(form, batches: list[dict], name: str) -> tuple[torch.Tensor, list[str]]:
    """Return the log-probabilities of the references, and the translations."""
    log_p = torch.cat([form.score(batch) for batch in tqdm(batches, desc=f"{name}: references", leave=False)])
    form.prepare()
    return log_p, [line for batch in tqdm(batches, desc=name, leave=False) for line in form.translate(batch)]


def compared(output: tuple, expected: tuple, references: list[str]) -> dict:
    """Return the largest differences, and BLEU of the text without subwords."""
    pairs = zip(output[1], expected[1], strict=True)
    text, truth = ([line.replace("@@ ", "") for line in lines] for lines in (output[1], references))
    return {
        "max |log p diff|": float((output[0] - expected[0]).abs().max()),
        "different": sum(a != b and len(b.split()) < LENGTH_LIMIT for a, b in pairs),
        "BLEU": f"{sacrebleu.corpus_bleu(text, [truth], tokenize='none', force=True).score:.10f}",
    }


if __name__ == "__main__":
    main()
