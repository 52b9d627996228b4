# What all Snakefiles share.
import os
import re
import sys

sys.path.insert(0, os.path.dirname(str(workflow.current_basedir)))
from plan import LOGGED, Family, Training, check, command_line, cuts, models, trainings, whole_length

SPLITS = ["train", "valid", "test"]
SCRIPTS = os.path.relpath(f"{workflow.current_basedir}/../../scripts")
# Without a byte order mark, and with the line ends of Unix.
READ = r"gzip -cdf {input[0]} | LC_ALL=C sed '1s/^\xef\xbb\xbf//; s/\r$//'"
# docs/benchmarks.md has what these bring: by default glibc returns large buffers to the kernel after each use, and on
# recent GPUs cuDNN's attention prepares for every new shape of a batch.
for name, value in {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
}.items():
    os.environ.setdefault(name, value)


def plain_or_gz(plain):
    """The path of a raw text, plain or compressed."""
    return f"{plain}.gz" if os.path.exists(f"{plain}.gz") and not os.path.exists(plain) else plain


wildcard_constraints:
    seed="[0-9]+",
