"""The miniature mirrors of support/mirror.py, with the functions that make their parts."""

from support.miniature import gz, lines, sides, tgz, zipped
from support.miniature_subtitles import ALIGNMENT, SUBTITLES, make_subtitles_mirror
from support.miniature_talks import IWSLT14, IWSLT_SETS, make_iwslt_mirror
from support.miniature_wmt import (
    COMMONCRAWL,
    HEADLINES,
    NEWS_COMMENTARY,
    WIKI_TITLES,
    WMT_SHARES,
    YANDEX,
    make_wmt_mirror,
)
from support.mirror import main, read_pairs

__all__ = [
    "ALIGNMENT",
    "COMMONCRAWL",
    "HEADLINES",
    "IWSLT14",
    "IWSLT_SETS",
    "NEWS_COMMENTARY",
    "SUBTITLES",
    "WIKI_TITLES",
    "WMT_SHARES",
    "YANDEX",
    "gz",
    "lines",
    "main",
    "make_iwslt_mirror",
    "make_subtitles_mirror",
    "make_wmt_mirror",
    "read_pairs",
    "sides",
    "tgz",
    "zipped",
]
