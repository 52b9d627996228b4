"""Starts the `headgates` command. It is outside of the package, whose import takes seconds for fairseq and torch."""

import os
import signal
import sys


def main() -> int:
    """Runs the command. Ctrl-C while it starts ends it with one line and exit code 130, as it does later on."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, _stop)
    from fairseq_headgates.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _stop(number: int, frame: object) -> None:
    """Ends the process at once: there is nothing to tidy up yet, and an exception would end in a library's handler."""
    os.write(2, b"headgates: stopped\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
