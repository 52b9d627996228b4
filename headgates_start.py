"""Entry point of the `headgates` command.

It is outside of the package, so that Ctrl-C is handled before the package is imported, and so that the package knows
that the command imports it.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command. Ctrl-C during imports ends it with one line and exit code 130, as it does afterwards."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, _stop)
    from fairseq_headgates.cli.main import main as run

    return run(started=_restore)


def _stop(number: int, frame: object) -> None:
    """End the process at once: nothing has been written, and libraries catch exceptions while they are imported."""
    os.write(2, b"headgates: stopped\n")
    os._exit(130)


def _restore() -> None:
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
