"""Download a file, and print its SHA-256.

    python3 download.py FILE ADDRESS [ADDRESS ...]

Several addresses are tried in their order. An ADDRESS may be the name of a trained model of fairseq in torch.hub, for
example roberta.base or transformer.wmt14.en-fr.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pooch

from script_errors import errors_in_one_line


def address_of(name: str) -> str:
    """Return the address of a trained model of fairseq."""
    from fairseq.models.roberta import RobertaModel
    from fairseq.models.transformer import TransformerModel

    models = TransformerModel.hub_models() | RobertaModel.hub_models()
    if name not in models:
        raise ValueError(f"{name!r} is not a trained model of fairseq: choose from {', '.join(models)}")
    found = models[name]
    return found["path"] if isinstance(found, dict) else found


def download(file: Path, addresses: list[str]) -> None:
    reasons = []
    for address in addresses:
        try:
            pooch.retrieve(address, None, file.name, file.parent, progressbar=True)
        except (OSError, ValueError) as error:
            reasons.append(f"{address} cannot be downloaded ({error})")
        else:
            print(f"{pooch.file_hash(file)}  {file}")
            return
    raise ValueError(f"{'; '.join(reasons)}: try again, or put the file at {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS")
    args = parser.parse_args()
    download(args.file, [name if "://" in name else address_of(name) for name in args.addresses])


if __name__ == "__main__":
    with errors_in_one_line():
        main()
