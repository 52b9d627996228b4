"""Architectures with gates for fairseq's other encoder-decoders, such as `bart_head_gates_large`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq.models import MODEL_REGISTRY, FairseqMultiModel, register_model
from torch import Tensor, nn

from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_presets
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

# Encoder-decoders by their names in fairseq's registry: of text, and of speech to text.
OF_TEXT = (
    "bart transformer_align transformer_from_pretrained_xlm multilingual_transformer lightconv "
    "nonautoregressive_transformer iterative_nonautoregressive_transformer cmlm_transformer nacrf_transformer "
    "levenshtein_transformer insertion_transformer"
).split()
OF_SPEECH = "s2t_transformer s2t_conformer convtransformer".split()
# Models that differ from `transformer` in the weights that they start from alone, which they read again from files.
COMPUTES_AS_TRANSFORMER = ("transformer_from_pretrained_xlm",)


class PairsMixin(HeadGatesMixin):
    """`HeadGatesMixin` for a model with a part for each language pair; it has all of them in inference, too.

    fairseq builds the pair that it translates alone, but heads are numbered, and targets are met, over all pairs.
    """

    @classmethod
    def build_model(cls, args: Any, task: Any) -> nn.Module:
        """Build the models of all pairs; fairseq calls it."""
        used, stored = task.model_lang_pairs, getattr(args, "lang_pairs", None) or task.args.lang_pairs
        every = stored.split(",") if isinstance(stored, str) else stored
        task.model_lang_pairs = list(dict.fromkeys([*every, *used]))
        try:
            model: Any = super().build_model(args, task)
        finally:
            task.model_lang_pairs = used
        model.keys = list(used)
        return model

    @classmethod
    def stacks_in(cls, weights: Mapping[str, Tensor]) -> list[tuple[str, str]]:
        """Return the stacks of layers of a checkpoint: ("encoder" or "decoder", name of the module)."""
        parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in weights if name.startswith("models."))
        return [(side, f"{part}.{stack}") for part in parts for side, stack in cls.stacks.items()]

    def load_state_dict(
        self, state_dict: dict[str, Any], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load weights, those of gating methods too, which fairseq's model of this kind refuses."""
        return FairseqMultiModel.load_state_dict(self, state_dict, strict, model_cfg, args)

    def upgrade_checked(self, state_dict: dict[str, Any]) -> None:
        """Rename the weights of older versions of fairseq, and remove those of language pairs that the model lacks."""
        own = tuple(f"models.{pair}." for pair in self.models)  # type: ignore[attr-defined]
        for name in [name for name in state_dict if name.startswith("models.") and not name.startswith(own)]:
            del state_dict[name]
        super().upgrade_checked(state_dict)


def add_gates(name: str) -> None:
    """Register `{name}_head_gates`, a model of fairseq with `HeadGatesMixin`, and its presets."""
    stock: Any = MODEL_REGISTRY[name]
    mixin = PairsMixin if issubclass(stock, FairseqMultiModel) else HeadGatesMixin
    text = f"fairseq's `{name}` with head gates; without options of this plugin it computes the same."
    about = {"stock": stock, "__doc__": text, "__module__": __name__}
    if name in OF_SPEECH:
        about["reads_tokens"] = ("decoder",)
    if name in COMPUTES_AS_TRANSFORMER:
        about["checkpoint_class"] = TransformerHeadGatesModel
    ours: Any = type(f"{stock.__name__}HeadGates", (mixin, stock), about)
    globals()[ours.__name__] = ours  # where pickle looks for it
    register_model(f"{name}_head_gates")(ours)
    register_presets(f"{name}_head_gates")


for _name in (*OF_TEXT, *OF_SPEECH):
    if _name in MODEL_REGISTRY:
        add_gates(_name)
