"""Models of several families for tests of inference."""

from support.all_attention import make_blocks
from support.all_attention import make_model as make_all_attention
from support.classifiers import HEAD, make_roberta, make_sentences
from support.language_models import make_lm, make_text

FAMILIES = {  # a model, and its batch
    "language model": (make_lm, make_text),
    "all-attention": (make_all_attention, lambda: {"src_tokens": make_blocks()[0][0]}),
    "classifier": (
        make_roberta,
        lambda: {**make_sentences()["net_input"], "features_only": True, "classification_head_name": HEAD},
    ),
}
