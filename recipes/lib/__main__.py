"""The programs of the recipes: python3 recipes/lib ROOM.PROGRAM ARGUMENTS, for example text.clean --help."""

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the package, where it is not installed

from commands import run

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # with "--help | head" end as other programs do
    sys.exit(run(*sys.argv[1:]))
