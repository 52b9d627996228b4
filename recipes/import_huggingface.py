#!/usr/bin/env python3
"""Write a model of Hugging Face as a checkpoint of fairseq with the same outputs.

    python3 recipes/import_huggingface.py opus-mt-en-de OUT
    python3 recipes/import_huggingface.py nllb-200-distilled-600M OUT -s eng_Latn -t deu_Latn

FOLDER is a local folder with config.json (model_type marian, m2m_100, mbart, bart, bert, roberta or xlm-roberta),
model.safetensors or pytorch_model.bin, whole or in parts, and the files of the tokenizer. Nothing is downloaded, and no
code of the folder runs. Into OUT, replacing no files, the program writes model.pt, the dictionaries, task.txt with the
options of the task for fairseq's commands, and tokenizer.json if FOLDER has one. What cannot be exact is refused.
docs/huggingface.md has whole commands. Needs the package safetensors for model.safetensors, tokenizers for vocab.txt,
and sentencepiece for sentencepiece.bpe.model without tokenizer.json.

fairseq's dictionaries begin with <s>, <pad>, </s> and <unk>; the other symbols keep their order. Rows of embeddings
without a symbol, and symbols with blanks, become madeupword0000 and so on.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from fairseq_headgates.checkpoints import save_checkpoint
from fairseq_headgates.files import check_writable, write_whole
from huggingface.encoders import ENCODERS, import_encoder
from huggingface.folder import read_if_any, read_json, read_tokenizer
from huggingface.model import checkpoint
from huggingface.translators import TRANSLATORS, import_translator


def work(folder: Path, out: Path, pair: Sequence[str | None]) -> None:
    config = read_if_any(folder / "generation_config.json") | read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in {**TRANSLATORS, **ENCODERS}:
        known = ", ".join([*TRANSLATORS, *ENCODERS])
        raise ValueError(f"{folder / 'config.json'}: model_type is {str(kind)!r}, and must be one of {known}")
    found = import_translator(folder, config, pair) if kind in TRANSLATORS else import_encoder(folder, config)
    files = dict(found.files)
    if (folder / "tokenizer.json").is_file() or kind in ENCODERS:
        files["tokenizer.json"] = json.dumps(read_tokenizer(folder), ensure_ascii=False)
    out.mkdir(parents=True, exist_ok=True)
    for name in (*files, "model.pt"):
        check_writable(out / name)
    for name, text in files.items():
        write_whole(out / name, text)
    save_checkpoint(checkpoint(found.options, found.weights), str(out / "model.pt"))
    print(f"wrote {', '.join(files)}, model.pt to {out}; {found.said.replace('OUT/', f'{out}/')}", end="")


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("import_huggingface.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="FOLDER", type=Path, help="local folder of a model of Hugging Face")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write, made if missing")
    parser.add_argument("-s", "--source-lang", metavar="L", help="source language, as the model writes it: eng_Latn")
    parser.add_argument("-t", "--target-lang", metavar="L", help="target language")
    args = parser.parse_args(argv)
    try:
        work(args.model, args.out, (args.source_lang, args.target_lang))
    except ModuleNotFoundError as error:
        parser.exit(2, f"{parser.prog}: the package {error.name} is missing: pip install {error.name}\n")
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except (LookupError, TypeError, AttributeError, RuntimeError, AssertionError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        parser.exit(2, f"{parser.prog}: {args.model} is no whole model ({why}): download it again\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
