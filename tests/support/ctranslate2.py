"""Models with removed heads, and the same converted for CTranslate2."""

import pytest

from fairseq_headgates.extensions.convert.ctranslate2 import to_ctranslate2
from support.models import make_task

ctranslate2 = pytest.importorskip("ctranslate2")

DICTIONARY = make_task().source_dictionary


def convert(model, folder, quantization=None, **options):
    to_ctranslate2(model, DICTIONARY, DICTIONARY, folder / "model", quantization, **options)
    return ctranslate2.Translator(str(folder / "model"), compute_type="float32", intra_threads=1)
