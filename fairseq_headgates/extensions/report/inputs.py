"""Read files of results and checkpoints, by their content."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_headgates import load_extensions
from fairseq_headgates.compression import drawing as compression
from fairseq_headgates.data import comparison
from fairseq_headgates.drawing import figures, sweep
from fairseq_headgates.drawing.result import Result
from fairseq_headgates.extensions.report.heads import heads_results
from fairseq_headgates.files import parse_json, read_text
from fairseq_headgates.messages import described, quoted
from fairseq_headgates.plugin.models.building import load_model

CHECKPOINT_BEGINS = (b"PK\x03\x04", b"\x80\x02")  # torch.save, in its present and its old form
# File names of the checkpoint of a run folder, in order of preference: the report shows the first one that exists.
CHECKPOINTS = ("pruned.pt", "checkpoint_last.pt", "checkpoint_best.pt")
HINT = "give checkpoints, run folders of fairseq-train, and JSON files of headgates or of a recipe"
# By format, what turns the objects of files into results; extensions add theirs (`result.py`).
RESULTS: dict[str, Callable[[Sequence[Any]], Iterable[Result]]] = {
    "headgates.evaluation/1": comparison.results,
    "headgates.compressed/1": compression.results,
    "headgates.scores/1": figures.score_results,
    "headgates.ablation/1": figures.ablation_results,
    "headgates.curve/1": figures.curve_results,
    "headgates.overlap/1": figures.overlap_results,
    "headgates.sweep/1": sweep.results,
}


def read_results(paths: Sequence[str], trust: bool = False, arch: str | None = None) -> Iterator[tuple[str, Result]]:
    """Yield the results of files and run folders of any kind, each with the names of the files that they are of.

    Args:
        paths: checkpoints, run folders and files of results
        trust: load checkpoints with unrestricted unpickling
        arch: read checkpoints as this architecture

    Raises:
        ValueError: in one line that names the file, if one cannot be read or is of an unknown kind
    """
    results = {**RESULTS, **{name: of for each in load_extensions("result") for name, of in each.RESULTS.items()}}
    checkpoints: list[tuple[str, Any]] = []
    found: dict[str, list[tuple[str, Any]]] = {}
    for path in dict.fromkeys(_checkpoint_of(Path(path)) if Path(path).is_dir() else path for path in paths):
        text = _text(path)
        if text is None:
            checkpoints.append((path, load_model(path, trust, arch)))
            continue
        content = parse_json(text, path, HINT)
        for each in content if isinstance(content, list) else [content]:
            kind: Any = each.get("format") if isinstance(each, dict) else None
            if kind not in results:
                raise ValueError(f"{path} has the format {quoted(kind)}, not one of {', '.join(results)}: {HINT}")
            found.setdefault(kind, []).append((path, each))
    yield from (("", result) for result in heads_results(checkpoints))
    for kind, contents in found.items():
        names = ", ".join(dict.fromkeys(path for path, _ in contents))
        yield from ((names, result) for result in named(names, results[kind], [each for _, each in contents]))


def named(names: str, of: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that reads the content of files; whatever is wrong with that is a ValueError that names them."""
    try:
        found = of(*arguments)
        return list(found) if isinstance(found, Iterator) else found
    except Exception as error:
        raise ValueError(f"{names} lacks values, or has others than its format allows ({described(error)})") from error


def _checkpoint_of(folder: Path) -> str:
    """Return the checkpoint of a run folder; fairseq-hydra-train has those in its folder `checkpoints`."""
    paths = [place / name for place in (folder, folder / "checkpoints") for name in CHECKPOINTS]
    if found := next((path for path in paths if path.is_file()), None):
        return str(found)
    raise ValueError(f"{folder} has none of {', '.join(CHECKPOINTS)}: {HINT}")


def _text(path: str) -> str | None:
    """Return the text of a file, None for a checkpoint."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe could block
            raise ValueError(f"{quoted(path)} is not a regular file: {HINT}")
        with open(path, "rb") as file:
            if file.read(4).startswith(CHECKPOINT_BEGINS):
                return None
    except OSError as error:
        raise ValueError(f"cannot read {quoted(path)} ({error.strerror}): {HINT}") from None
    return read_text(path, "the input", HINT)
