#!/usr/bin/env python3
"""Shows on real sentences that taking heads out changes nothing: five forms of one checkpoint, side by side.

    python benchmarks/same_outputs.py CKPT DATA-BIN [--gen-subset test] [--beam 4] [--json FILE]

The forms: `gated`, the checkpoint as it is; `masked`, its closed heads masked too; `pruned` and `stock`, the files
that `headgates prune` writes without and with --stock, loaded again; `ctranslate2`, what `headgates convert` writes.
Compared are the logits of the reference translations (CTranslate2 gives only the log-probabilities of their words), the
translations by beam search word by word, and their BLEU on words. Needs CTranslate2 for the last form only.
"""

import argparse
import json
import tempfile
from pathlib import Path

import sacrebleu
import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.sequence_generator import SequenceGenerator
from tqdm import tqdm

import fairseq_headgates  # noqa: F401  (registration)
from fairseq_headgates import masked
from fairseq_headgates.checkpoints import (
    build_model,
    load_checkpoint,
    prune_checkpoint,
    save_checkpoint,
    stock_checkpoint,
)
from fairseq_headgates.convert import to_ctranslate2
from fairseq_headgates.pruning import open_heads, prune


def main() -> None:
    options = parse()
    results = compare(options)
    print(f"{'':14}{'max |logit diff|':>18}{'max |log p diff|':>18}{'translations that differ':>26}{'BLEU':>18}")
    for name, row in results.items():
        logits = "" if row["logits"] is None else f"{row['logits']:.1e}"
        differ = f"{row['differ']} of {row['sentences']}"
        print(f"{name:14}{logits:>18}{row['log_p']:>18.1e}{differ:>26}{row['bleu']:>18.12f}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("data", metavar="DATA-BIN")
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--sentences", type=int, default=0, help="only the first N (default: all)")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=4000)
    parser.add_argument("--without-ctranslate2", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args()


def compare(options: argparse.Namespace) -> dict[str, dict]:
    """{form: largest differences to the gated model, sentences translated differently, BLEU}."""
    state = load_checkpoint(options.checkpoint)
    task, batches = load_data(state, options)
    gated = build_model(state)
    mask = open_heads(gated)
    with tempfile.TemporaryDirectory() as folder:
        for name, smaller in (("pruned", prune_checkpoint(state, mask)), ("stock", stock_checkpoint(state, mask))):
            save_checkpoint(smaller, f"{folder}/{name}.pt")
        results = {"gated": fairseq_outputs(task, gated, batches, options)}
        with masked(gated, mask):
            results["masked"] = fairseq_outputs(task, gated, batches, options)
        for name in ("pruned", "stock"):
            (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([f"{folder}/{name}.pt"], task=task)
            results[name] = fairseq_outputs(task, model.eval(), batches, options)
        if not options.without_ctranslate2:
            pruned = prune(build_model(state))
            to_ctranslate2(pruned, task.source_dictionary, task.target_dictionary, f"{folder}/ct2")
            results["ctranslate2"] = ctranslate2_outputs(task, f"{folder}/ct2", batches, options)
    references = [words(task, utils.strip_pad(row, 1)) for batch in batches for row in batch["target"]]
    return {name: difference(output, results["gated"], references) for name, output in results.items()}


def load_data(state: dict, options: argparse.Namespace):
    """The task and its batches, as fairseq-generate would make them."""
    settings = {**state["cfg"]["task"], "data": options.data}
    task = tasks.setup_task(argparse.Namespace(**{"eval_bleu": False, **settings, "task": settings["_name"]}))
    task.load_dataset(options.gen_subset)
    dataset = task.dataset(options.gen_subset)
    iterator = task.get_batch_iterator(
        dataset,
        max_tokens=options.max_tokens,
        max_positions=(1024, 1024),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=1,  # with the default of 8 fairseq drops what is left over
    ).next_epoch_itr(shuffle=False)
    batches = list(iterator)
    if options.sentences:
        kept, count = [], 0
        for batch in batches:
            if count < options.sentences:
                kept.append(batch)
                count += batch["nsentences"]
        batches = kept
    return task, batches


@torch.no_grad()
def fairseq_outputs(task, model, batches: list[dict], options: argparse.Namespace) -> dict:
    """Logits and log-probabilities of the references, and the translations of a fairseq model."""
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=options.beam)
    logits, log_p, translations = [], [], []
    for batch in tqdm(batches, leave=False):
        output = model(**batch["net_input"])
        present = batch["target"] != task.target_dictionary.pad()
        logits.append(output[0][present])
        scores = model.get_normalized_probs(output, log_probs=True).gather(2, batch["target"].unsqueeze(2)).squeeze(2)
        log_p += [row[keep] for row, keep in zip(scores, present, strict=True)]
        for hypotheses in generator.generate([model], batch):
            translations.append(words(task, hypotheses[0]["tokens"]))
    return {"logits": torch.cat(logits), "log_p": torch.cat(log_p), "translations": translations}


def ctranslate2_outputs(task, folder: str, batches: list[dict], options: argparse.Namespace) -> dict:
    """The same of a CTranslate2 model, searching as fairseq does by default (see `to_ctranslate2`)."""
    import ctranslate2

    translator = ctranslate2.Translator(folder)
    log_p, translations = [], []
    for batch in tqdm(batches, leave=False):
        sources = [words(task, utils.strip_pad(row, 1), "source").split() for row in batch["net_input"]["src_tokens"]]
        targets = [words(task, utils.strip_pad(row, 1)).split() for row in batch["target"]]
        log_p += [torch.tensor(score.log_probs) for score in translator.score_batch(sources, targets)]
        found = translator.translate_batch(sources, beam_size=options.beam, length_penalty=1, max_decoding_length=201)
        translations += [" ".join(result.hypotheses[0]) for result in found]
    return {"logits": None, "log_p": torch.cat(log_p), "translations": translations}


def words(task, tokens: torch.Tensor, side: str = "target") -> str:
    """Subword units of a sentence, without </s>."""
    dictionary = getattr(task, f"{side}_dictionary")
    return " ".join(dictionary[t] for t in tokens.tolist() if t != dictionary.eos())


def difference(output: dict, expected: dict, references: list[str]) -> dict:
    """The largest differences, and BLEU of the words that the subword units make up."""
    hypotheses, truth = ([line.replace("@@ ", "") for line in lines] for lines in (output["translations"], references))
    pairs = zip(output["translations"], expected["translations"], strict=True)
    return {
        "logits": None if output["logits"] is None else float((output["logits"] - expected["logits"]).abs().max()),
        "log_p": float((output["log_p"] - expected["log_p"]).abs().max()),
        "differ": sum(a != b for a, b in pairs),
        "sentences": len(references),
        "bleu": sacrebleu.corpus_bleu(hypotheses, [truth], tokenize="none", force=True).score,
    }


if __name__ == "__main__":
    main()
