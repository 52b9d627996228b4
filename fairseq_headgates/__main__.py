"""`python -m fairseq_headgates`: the `headgates` command, also of a checkout that is not installed."""

import sys

from headgates_start import main

if __name__ == "__main__":
    sys.exit(main())
