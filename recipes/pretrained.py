#!/usr/bin/env python3
"""Gets a trained translation model of fairseq, by the name that torch.hub knows it by.

    pretrained.py NAME FOLDER [--data-dir PLACE]      for example transformer.wmt14.en-fr

The archive is fetched as those of corpora are (fetching.py), to FOLDER/downloads; what is in it, the checkpoint,
dictionaries and BPE codes, goes to FOLDER/model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from fairseq.models.transformer import TransformerModel
from fetching import Refused, Source, fetch

from fairseq_headgates.cli.parser import ArgumentParser


def address_of(name: str) -> str:
    models = TransformerModel.hub_models()
    if name not in models:
        raise Refused(f"{name!r} is no trained model of fairseq: take one of {', '.join(models)}")
    found = models[name]
    return found["path"] if isinstance(found, dict) else found


def unpack(archive: Path, folder: Path) -> None:
    """The files of the one folder inside the archive; whole or not at all."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.unpack_archive(archive, part, filter="data")
    inside = [path for path in part.iterdir() if not path.name.startswith(".")]
    if len(inside) == 1 and inside[0].is_dir():
        inside[0].rename(folder)
        shutil.rmtree(part)
    else:
        part.rename(folder)


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--data-dir", metavar="PLACE")
    args = parser.parse_args(argv)
    try:
        address = address_of(args.name)
        source = Source(address.rpartition("/")[2], address)
        fetch([source], args.folder / "downloads", args.data_dir)
        if not (args.folder / "model").exists():
            unpack(args.folder / "downloads" / source.name, args.folder / "model")
    except (Refused, OSError) as error:
        print(f"pretrained.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
