#!/usr/bin/env python3
"""Compare the outputs and the speed of seven versions of a checkpoint on real sentences.

    python benchmarks/same_outputs.py CKPT DATA-BIN [--gen-subset test] [--beam 4] [--time 5] [--json FILE]

The versions: `gated`, the checkpoint itself; `masked`, with its closed heads masked; `pruned` and `stock`, the files
that `headgates prune` writes without and with --stock; `int8`, the pruned file with --inference-dtype int8;
`ctranslate2` and `ctranslate2-int8`, the models that `headgates convert` writes in single precision and with
--quantization int8. --all-layers also quantises small layers of `int8`, which is slower.

It compares the logits of the reference translations (CTranslate2 has only the log-probabilities of their words), the
translations by beam search, prepared as in fairseq-generate, and their BLEU and chrF2 on tokenised text. With --time N
each version also translates the set N times, in turn; the speed is the median, in output words with </s> per second.

On a CPU without VNNI instructions, set CT2_USE_MKL=1: CTranslate2's default backend for int8, oneDNN, saturates there.
`int8` does not need it.
"""

import argparse
import contextlib
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path

import sacrebleu
import torch
from bench_models import changed
from fairseq import checkpoint_utils, tasks, utils
from fairseq.sequence_generator import SequenceGenerator
from tqdm import tqdm

import fairseq_headgates  # noqa: F401  (registration)
from fairseq_headgates import masked
from fairseq_headgates.attention.cuts import open_mask, prune
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.extensions.export.ctranslate2 import to_ctranslate2
from fairseq_headgates.inference import packed_linear

LENGTH_LIMIT = 200  # words of a translation: --max-len-b of fairseq-generate


def main() -> None:
    options = parse()
    results = compare(options)
    first = (
        "version",
        "max |logit diff|",
        "max |log p diff|",
        "different translations",
        "BLEU",
        "chrF2",
        "words/s",
        "/ stock",
    )
    print("{:17}{:>18}{:>18}{:>24}{:>17}{:>8}{:>11}{:>9}".format(*first))
    for name, row in results.items():
        logits = "" if row["logits"] is None else f"{row['logits']:.2e}"
        speed = f"{row['words_per_second']:,.0f}" if "words_per_second" in row else ""
        ratio = f"{row['to_stock']:.2f}" if "to_stock" in row else ""
        differ = f"{row['differ']} of {row['sentences']}"
        print(
            f"{name:17}{logits:>18}{row['log_p']:>18.2e}{differ:>24}{row['bleu']:>17.10f}{row['chrf']:>8.2f}{speed:>11}{ratio:>9}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("data", metavar="DATA-BIN")
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=4000)
    parser.add_argument("--without-ctranslate2", action="store_true")
    parser.add_argument("--all-layers", action="store_true", help="int8: small layers, too")
    parser.add_argument(
        "--time", type=int, default=0, metavar="N", help="also measure the speed, N times (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    return parser.parse_args()


class FairseqForm:
    """A fairseq model: scores references and translates."""

    def __init__(self, task, model, beam: int):
        self.task, self.model = task, model
        self.generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam)

    @torch.no_grad()
    def score(self, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [words, V] and log-probabilities [words] of the references."""
        output = self.model(**batch["net_input"])
        present = batch["target"] != self.task.target_dictionary.pad()
        log_p = self.model.get_normalized_probs(output, log_probs=True)
        return output[0][present], log_p.gather(2, batch["target"].unsqueeze(2)).squeeze(2)[present]

    def translate(self, batch: dict) -> list[str]:
        return [words(self.task, found[0]["tokens"]) for found in self.generator.generate([self.model], batch)]

    def prepare(self) -> None:
        self.model.make_generation_fast_(need_attn=None)


class CTranslate2Form:
    """A CTranslate2 model, searching as fairseq does by default (see `to_ctranslate2`)."""

    def __init__(self, task, pruned, folder: str, quantization: str | None, beam: int):
        from bench_ctranslate2 import Translator

        self.task, self.beam = task, beam
        to_ctranslate2(pruned, task.source_dictionary, task.target_dictionary, folder, quantization)
        self.translator = Translator(folder)

    def score(self, batch: dict) -> tuple[None, torch.Tensor]:
        targets = [words(self.task, utils.strip_pad(row, 1)).split() for row in batch["target"]]
        scores = self.translator.score(self._sources(batch), targets)
        return None, torch.cat([torch.tensor(score) for score in scores])

    def translate(self, batch: dict) -> list[str]:
        options = {"beam_size": self.beam, "length_penalty": 1, "max_decoding_length": LENGTH_LIMIT + 1}
        return [" ".join(found[0]) for found in self.translator.translate(self._sources(batch), **options)]

    def prepare(self) -> None:
        pass

    def _sources(self, batch: dict) -> list[list[str]]:
        return [words(self.task, utils.strip_pad(row, 1), "source").split() for row in batch["net_input"]["src_tokens"]]


def compare(options: argparse.Namespace) -> dict[str, dict]:
    """Return {version: largest differences from gated, sentences translated differently, BLEU, speed}."""
    state = load_checkpoint(options.checkpoint)
    task, batches = load_data(state, options)
    references = [words(task, utils.strip_pad(row, 1)) for batch in batches for row in batch["target"]]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        forms = make_forms(state, task, options, folder, stack)
        outputs = {name: run(form, batches, name) for name, form in forms.items()}
        results = {name: difference(output, outputs["gated"], references) for name, output in outputs.items()}
        if options.time:
            for name, seconds in measure(forms, batches, options.time).items():
                count = sum(len(line.split()) + 1 for line in outputs[name]["translations"])
                results[name]["words_per_second"] = count / statistics.median(seconds)
            for row in results.values():
                row["to_stock"] = row["words_per_second"] / results["stock"]["words_per_second"]
    return results


def make_forms(state: dict, task, options: argparse.Namespace, folder: str, stack: contextlib.ExitStack) -> dict:
    gated = build_model(state)
    mask = open_mask(gated)
    models = {"gated": gated, "masked": stack.enter_context(masked(copy.deepcopy(gated), mask))}
    for name, smaller in (("pruned", prune_checkpoint(state, mask)), ("stock", stock_checkpoint(state, mask))):
        save_checkpoint(smaller, f"{folder}/{name}.pt")
        (models[name],), *_ = checkpoint_utils.load_model_ensemble_and_task([f"{folder}/{name}.pt"], task=task)
    forms = {name: FairseqForm(task, model.eval(), options.beam) for name, model in models.items()}
    forms["int8"] = FairseqForm(task, changed(models["pruned"], inference_dtype="int8"), options.beam)
    usual = packed_linear.WORTH_PACKING
    packed_linear.WORTH_PACKING = 1 if options.all_layers else usual
    forms["int8"].prepare()  # before it scores
    packed_linear.WORTH_PACKING = usual
    if not options.without_ctranslate2:
        pruned = prune(gated, mask)
        for name, quantization in (("ctranslate2", None), ("ctranslate2-int8", "int8")):
            forms[name] = CTranslate2Form(task, pruned, f"{folder}/{name}", quantization, options.beam)
    return forms


def load_data(state: dict, options: argparse.Namespace):
    """Return the task and its batches, as in fairseq-generate."""
    settings = {**state["cfg"]["task"], "data": options.data}
    task = tasks.setup_task(argparse.Namespace(**{"eval_bleu": False, **settings, "task": settings["_name"]}))
    task.load_dataset(options.gen_subset)
    iterator = task.get_batch_iterator(
        task.dataset(options.gen_subset),
        max_tokens=options.max_tokens,
        max_positions=(1024, 1024),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=1,  # with the default of 8 fairseq drops the last sentences
    )
    return task, list(iterator.next_epoch_itr(shuffle=False))


def run(form, batches: list[dict], name: str) -> dict:
    """Return logits and log-probabilities of the references, and the translations."""
    scores = [form.score(batch) for batch in tqdm(batches, desc=f"{name}: logits", leave=False)]
    form.prepare()
    translations = [line for batch in tqdm(batches, desc=name, leave=False) for line in form.translate(batch)]
    logits = None if scores[0][0] is None else torch.cat([logits for logits, _ in scores])
    return {"logits": logits, "log_p": torch.cat([log_p for _, log_p in scores]), "translations": translations}


def measure(forms: dict, batches: list[dict], times: int) -> dict[str, list[float]]:
    """Return the seconds to translate all batches, each version in turn."""
    found: dict[str, list[float]] = {name: [] for name in forms}
    for _ in tqdm(range(times), desc="speed", leave=False):
        for name, form in forms.items():
            start = time.perf_counter()
            for batch in batches:
                form.translate(batch)
            found[name].append(time.perf_counter() - start)
    return found


def words(task, tokens: torch.Tensor, side: str = "target") -> str:
    """Return the subword units of a sentence, without </s>."""
    dictionary = getattr(task, f"{side}_dictionary")
    return " ".join(dictionary[t] for t in tokens.tolist() if t != dictionary.eos())


def difference(output: dict, expected: dict, references: list[str]) -> dict:
    """Return the largest differences, and BLEU of the text without subwords."""
    hypotheses, truth = ([line.replace("@@ ", "") for line in lines] for lines in (output["translations"], references))
    pairs = list(zip(output["translations"], expected["translations"], strict=True))
    return {
        "logits": None if output["logits"] is None else float((output["logits"] - expected["logits"]).abs().max()),
        "log_p": float((output["log_p"] - expected["log_p"]).abs().max()),
        "differ": sum(a != b for a, b in pairs),
        # at the length limit fairseq forces an end and CTranslate2 stops without one
        "differ_before_limit": sum(a != b and len(b.split()) < LENGTH_LIMIT for a, b in pairs),
        "sentences": len(references),
        "chrf": sacrebleu.corpus_chrf(hypotheses, [truth]).score,
        "bleu": sacrebleu.corpus_bleu(hypotheses, [truth], tokenize="none", force=True).score,
    }


if __name__ == "__main__":
    main()
