"""Register the architecture `transformer_lm_all_attention` and the task `language_modeling_segments`."""

from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_headgates.extensions.all_attention.model import TransformerLMAllAttentionModel
from fairseq_headgates.extensions.all_attention.task import SegmentTask
from fairseq_headgates.plugin.models.language_model import TransformerLMHeadGatesModel

# For `headgates options`: what registers options, and what registers the others that it has.
OPTIONS = {
    "further options of --arch transformer_lm_all_attention": (
        TransformerLMAllAttentionModel,
        TransformerLMHeadGatesModel,
    ),
    "further options of --task language_modeling_segments": (SegmentTask, LanguageModelingTask),
}
