#!/usr/bin/env python3
"""Print the speed of a translation as JSON, from the log of fairseq-generate and the translations.

    speed.py GENERATE.log TRANSLATIONS

The time is that of the search alone, as fairseq measures it; words are separated by blanks in the detokenised text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from commands import ArgumentParser, exit_code

TRANSLATED = re.compile(r"Translated ([\d,]+) sentences \([\d,]+ tokens\) in ([\d.]+)s")


def speed(log: Path, translations: Path) -> dict[str, float]:
    """Return sentences, seconds, and words per second."""
    found = TRANSLATED.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found or not float(found[-1][1]):
        raise ValueError(f"{log} has no time of a translation: give the output of fairseq-generate")
    sentences, seconds = int(found[-1][0].replace(",", "")), float(found[-1][1])
    words = len(translations.read_text(encoding="utf-8").split())
    return {"sentences": sentences, "seconds": seconds, "words_per_second": words / seconds}


def work(args: argparse.Namespace) -> None:
    print(json.dumps(speed(args.log, args.translations)))


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("log", type=Path, metavar="GENERATE.log")
    parser.add_argument("translations", type=Path, metavar="TRANSLATIONS")
    return exit_code("speed.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
