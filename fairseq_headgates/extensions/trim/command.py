"""`headgates trim`: keep only the symbols of a vocabulary that a data set needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import CHOOSING, FirstSentences
from fairseq_headgates.cli.output import then_evaluate
from fairseq_headgates.cli.parser import counted, filled
from fairseq_headgates.files.writing import log_written, part_of, refuse_standard_output


@command(
    "trim",
    "headgates trim data-bin --path baseline/checkpoint_best.pt --keep train,valid --out trimmed",
    "headgates trim data-bin --path baseline/checkpoint_best.pt --size 16000 --out trimmed-16k",
)
class Trim(FirstSentences):
    """Keep only the symbols of a vocabulary that a data set needs.

    Remove the rows of embeddings and output layer whose symbols do not occur in the data: a large part of the
    parameters of a multilingual model (NLLB, M2M-100). Write a folder with the checkpoint (model.pt), the dictionaries,
    and the binarised data with new token indices. Special symbols, language tags and single characters are always
    kept. --gen-subset (default: valid) is the subset on which both models are compared.
    """

    subset = CHOOSING

    keep: str = option(
        metavar="S[,S...]",
        type=filled,
        default="train,valid",
        help="subsets of DATA whose symbols are kept, in all languages of DATA (default: %(default)s)",
    )
    size: int | None = option(
        metavar="N",
        type=counted,
        help="keep at most N symbols of each dictionary: those that are always kept, and the most frequent ones in "
        "--keep (default: all that occur in --keep)",
    )
    sentences: int = option(
        metavar="N",
        type=counted,
        default=200,
        help="measure with the first N sentences of --gen-subset (default: %(default)s)",
    )
    out: str = option(metavar="DIR", type=filled, required=True, help="the folder to write, which must not exist")

    def check(self) -> None:
        """Raise ValueError for a folder that exists."""
        refuse_standard_output(self.out)
        if os.path.lexists(self.out):
            raise ValueError(f"{self.out} exists: choose another name")

    def run(self, session: Any) -> Answer:
        """Choose the symbols, write the folder, and compare both models."""
        from fairseq_headgates.extensions.trim.writing import MODEL, trim

        if session.fairseq.distributed_world_size > 1:
            raise ValueError("a vocabulary is trimmed by one worker: start one")
        state, model, _ = session.checkpoint(session.only_path())
        corpus = session.corpus(model)
        target, keep = Path(self.out), [name.strip() for name in self.keep.split(",")]
        try:
            with part_of(target, folder=True) as part:
                found = trim(session, state, model, corpus, part, keep, self.size)
                part.rename(target)
        except OSError as error:
            raise ValueError(f"cannot write {target} ({error.strerror}): choose another place") from None
        log_written(target)
        new = {session.fairseq.data: self.out}  # what comes next reads the new folder
        if fixed := getattr(session.fairseq, "fixed_dictionary", None):
            new |= {before + fixed: f"{before}{target / Path(fixed).name}" for before in ("", "--fixed-dictionary=")}
        self.rest = [new.get(word, word) for word in self.rest]
        return Answer(text=found, next_command=then_evaluate(self, str(target / MODEL)))
