"""`python -m fairseq_headgates.cli`: the `headgates` command of a checkout that is not installed."""

import sys

from fairseq_headgates.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
