"""Results of the papers, for comparison."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A row of Voita et al. 2019: heads (encoder, decoder, decoder-encoder), BLEU from trained, BLEU from scratch."""

    heads: tuple[int, int, int]
    trained: str
    scratch: str = "-"


# Table 2; for the encoder alone section 6.2, which gives differences from the baseline.
VOITA = {
    "wmt": {
        "baseline": [Published((48, 48, 48), "29.6")],
        "all": [
            Published((14, 31, 30), "29.62", "29.47"),
            Published((12, 21, 25), "29.36", "28.95"),
            Published((8, 13, 15), "29.06", "28.56"),
            Published((5, 9, 12), "28.90", "28.41"),
        ],
        "enc-self": [Published((10, 48, 48), "-0.15")],
    },
    "opensubtitles": {
        "baseline": [Published((48, 48, 48), "32.4")],
        "all": [
            Published((27, 31, 46), "32.24", "32.23"),
            Published((13, 17, 31), "32.23", "31.98"),
            Published((6, 9, 13), "32.27", "31.84"),
        ],
        "enc-self": [Published((4, 48, 48), "-0.25")],
    },
}
VOITA_HEADS = 144

# Heads that Shim et al. 2021 keep on WikiText-103, of 128, by lambda; the model without gates has all of them.
SHIM, SHIM_HEADS = {0.01: 106, 0.015: 87, 0.02: 59}, 128

# BLEU of Michel et al. 2019 by epoch, section 6, IWSLT14 German-English, without pruning.
MICHEL = {"1": 3.0, "2": 6.2, "3": 18.1, "5": 26.9, "10": 30.6, "20": 34.5, "30": 34.7, "40": 34.9}
