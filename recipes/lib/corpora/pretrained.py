"""Download a trained model of fairseq for translation, or a RoBERTa, by its name in torch.hub.

    python3 recipes/lib corpora.pretrained NAME FOLDER [--data-dir PLACE]      for example transformer.wmt14.en-fr

The archive is downloaded to FOLDER/downloads, or found in PLACE, as corpora.get does. The files inside it, the
checkpoint, dictionaries and BPE codes, are unpacked to FOLDER/model.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel

from commands import ArgumentParser, Refused
from corpora.archives import unpack
from corpora.fetching import Source, fetch


def address_of(name: str) -> str:
    models = TransformerModel.hub_models() | RobertaModel.hub_models()
    if name not in models:
        raise Refused(f"{name!r} is not a trained model of fairseq: choose from {', '.join(models)}")
    found = models[name]
    return found["path"] if isinstance(found, dict) else found


def unpack_model(archive: Path, folder: Path) -> None:
    """Unpack the files of the one folder inside the archive. `folder` appears when it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    unpack(archive, part)
    inside = [path for path in part.iterdir() if not path.name.startswith(".")]
    if len(inside) == 1 and inside[0].is_dir():
        inside[0].rename(folder)
        shutil.rmtree(part)
    else:
        part.rename(folder)


def work(args: argparse.Namespace) -> None:
    address = address_of(args.name)
    source = Source(address.rpartition("/")[2], address)
    fetch([source], args.folder / "downloads", args.data_dir)
    if not (args.folder / "model").exists():
        unpack_model(args.folder / "downloads" / source.name, args.folder / "model")


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--data-dir", metavar="PLACE")
    work(parser.parse_args(argv))
