# What all Snakefiles share.
import os
import re
import sys

sys.path.insert(0, str(workflow.basedir))
from plan import Family, Training, check, command_line, cuts, models, trainings, whole_length


def plain_or_gz(plain):
    """The path of a raw text, plain or compressed."""
    return f"{plain}.gz" if os.path.exists(f"{plain}.gz") and not os.path.exists(plain) else plain


SCRIPTS = os.path.relpath(f"{workflow.basedir}/../scripts")
# Without a byte order mark, and with the line ends of Unix.
READ = r"gzip -cdf {input[0]} | LC_ALL=C sed '1s/^\xef\xbb\xbf//; s/\r$//'"
