"""The miniature mirrors of public corpora, in their real layouts, with the functions that make their parts.

The recipes download corpora of millions of sentences; with DATA_DIR=MIRROR they run on these files instead. A mirror is
a folder laid out `<host>/<path of the address>`, with a `SHA256SUMS`. Several mirrors may share a folder.
"""

from support.miniature import gz, lines, sides, tgz, zipped  # noqa: F401
from support.miniature_subtitles import ALIGNMENT, SUBTITLES, make_subtitles_mirror  # noqa: F401
from support.miniature_talks import IWSLT14, IWSLT_SETS, make_iwslt_mirror  # noqa: F401
from support.miniature_wmt import make_wmt_mirror  # noqa: F401
from support.mirror import read_pairs  # noqa: F401
