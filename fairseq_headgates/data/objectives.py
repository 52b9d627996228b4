"""What the model of a task predicts: which targets count, their loss, the metrics, the files of the data.

Shapes: B batch, T target length (1 for a classifier), C number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor, nn

from fairseq_headgates.data.losses import LN2, Sample, at_least_single, draw, token_losses, uniforms
from fairseq_headgates.messages import quoted

BLOCK = ("tokens_per_sample", "sample_break_mode", "stream_blocks")  # how a text is cut


class Objective:
    """Prediction of target tokens, each from the source and the target tokens before it: translation.

    Attributes:
        metrics: the choices of --metric, the default of `headgates curve` last
        stacks: the stacks of layers that a model for this task has
        unit: what the loss is a mean over
        target: what a target is
        hint: what to do about a target that the dictionary does not have
        signed: options of the task that `signature` names
        classification_head: name of the classification head that is used
    """

    metrics: ClassVar[tuple[str, ...]] = ("nll", "ppl", "bleu")
    stacks: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    unit: ClassVar[str] = "target token"
    target: ClassVar[str] = "token"
    hint: ClassVar[str] = "run fairseq-preprocess again"
    signed: ClassVar[tuple[str, ...]] = ("source_lang", "target_lang")

    classification_head: str | None = None

    def __init__(self, task: Any):
        self.task = task

    def metric(self, chosen: str | None) -> str:
        """Return the chosen metric, by default that of the task. Raise ValueError if the task does not have it."""
        if chosen is not None and chosen not in self.metrics:
            choices = " or ".join(self.metrics)
            raise ValueError(f"--metric is {chosen}, which this --task does not have: choose {choices}")
        return chosen or self.metrics[-1]

    def dictionaries(self) -> dict[str, Any]:
        """Return the dictionary of the embeddings of each stack of layers."""
        sides = (self.task.source_dictionary, self.task.target_dictionary)  # one stack alone reads the source
        return dict(zip(self.stacks, sides, strict=False))

    def signature(self) -> dict[str, str]:
        """Return the options of the task that results depend on, as parts of a signature."""
        languages = (getattr(options_of(self.task), name, None) for name in self.signed)
        return {"langs": "-".join(filter(None, languages))}

    def folders(self, data: str) -> list[Path]:
        """Return the folders that hold the subsets of the data."""
        return [Path(data)]

    def check_relevance(self) -> None:
        """Raise ValueError if there is no relevance for what the model predicts."""

    def block_length(self) -> int:
        """Return the largest number of tokens of a block of text, 0 where a task reads sentences."""
        return int(getattr(options_of(self.task), "tokens_per_sample", 0))

    def targets(self) -> int:
        """Return the number of symbols or classes that a target can be."""
        return len(self.task.target_dictionary)

    def counted(self, sample: Sample) -> Tensor:
        """Return which targets count: [B, T]."""
        return sample["target"].ne(self.task.target_dictionary.pad())

    def losses(self, model: nn.Module, sample: Sample, sampled: bool = False) -> Tensor:
        """Return -log2 p of every target, in bits, 0 for those that do not count: [B, T].

        With `sampled`, targets are drawn from the model's own distribution.
        """
        return token_losses(model, sample, self.counted(sample), sampled)


class NextToken(Objective):
    """Prediction of each token of a text from those before: language modelling.

    Raises:
        ValueError: for options with which fairseq-eval-lm cannot evaluate these models
    """

    metrics = ("nll", "ppl")
    stacks = ("decoder",)
    signed = BLOCK

    def __init__(self, task: Any):
        super().__init__(task)
        leave_out = "leave it out, these models predict the next token"
        _refuse(task.args, self_target=leave_out, past_target=leave_out, pad_to_fixed_bsz="leave it out")
        if len(task.target_dictionary) != len(task.source_dictionary):
            raise ValueError(
                "--output-dictionary-size cannot be used here: leave it out, the model predicts all symbols"
            )

    def signature(self) -> dict[str, str]:
        """Return how the text is cut into blocks."""
        return {"block": _block(self.task.args)}

    def counted(self, sample: Sample) -> Tensor:
        """Return which targets count: [B, T]. The <s> of --add-bos-token, which a block begins with, does not."""
        counted = super().counted(sample)
        if getattr(self.task.args, "add_bos_token", False):
            counted[:, 0] = False
        return counted


class FromLogits(Objective):
    """Prediction of targets from logits that the model returns for all that count: [N, C]."""

    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the logits of the targets that count: [N, C]."""
        raise NotImplementedError

    def losses(self, model: nn.Module, sample: Sample, sampled: bool = False) -> Tensor:
        """Return -log2 p of every target, in bits, 0 for those that do not count: [B, T].

        With `sampled`, targets are drawn from the model's own distribution.
        """
        counted = self.counted(sample)
        logits, targets = at_least_single(self.logits(model, sample)), sample["target"].view_as(counted)[counted]
        targets = draw(logits.detach(), uniforms(sample, counted)) if sampled else targets
        found = F.cross_entropy(logits, targets, reduction="none") / LN2
        return found.new_zeros(counted.shape).masked_scatter(counted, found)


class MaskedTokens(FromLogits):
    """Prediction of masked tokens: the pre-training of RoBERTa (Liu et al. 2019)."""

    metrics = ("nll", "ppl")
    stacks = ("encoder",)
    unit = "masked token"
    signed = (*BLOCK, "mask_prob", "leave_unmasked_prob", "random_token_prob", "seed")

    def __init__(self, task: Any):
        super().__init__(task)
        _refuse(task.cfg, skip_masking="leave it out")  # other tokens are predicted with it

    def check_relevance(self) -> None:
        """Raise ValueError: masked tokens have none."""
        raise ValueError(
            "relevance is that for the next token or a class: use a classifier, --task sentence_prediction"
        )

    def signature(self) -> dict[str, str]:
        """Return how the text is cut into blocks and masked: shares of masked, unchanged, random tokens; seed."""
        cfg = self.task.cfg
        shares = (f"{share:g}" for share in (cfg.mask_prob, cfg.leave_unmasked_prob, cfg.random_token_prob))
        return {"block": _block(cfg), "mask": "-".join([*shares, str(cfg.seed)])}

    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the logits of the masked tokens: [N, C]."""
        return model(**sample["net_input"], masked_tokens=self.counted(sample))[0]


class Classes(FromLogits):
    """Prediction of the class of a sentence, or of a pair of sentences.

    Raises:
        ValueError: for a task of regression
    """

    metrics = ("nll", "accuracy")
    stacks = ("encoder",)
    unit = "sentence"
    target = "label"
    signed = ("classification_head_name", "num_classes")
    hint = "check --num-classes and label/dict.txt (-1 is a label that is not in it)"

    def __init__(self, task: Any):
        super().__init__(task)
        hint = "choose heads by their gates (headgates prune), or measure masked tokens (DATA/input0 --task masked_lm)"
        _refuse(task.cfg, regression_target=f"only classifiers are measured; {hint}")
        self.classification_head = task.cfg.classification_head_name

    def signature(self) -> dict[str, str]:
        """Return the name of the classification head."""
        return {"head": str(self.classification_head)}

    def folders(self, data: str) -> list[Path]:
        """Return the folders of the sentences and of the labels."""
        return [folder for name in ("input0", "input1", "label") if (folder := Path(data, name)).is_dir()]

    def targets(self) -> int:
        """Return the number of classes."""
        return int(self.task.cfg.num_classes)

    def counted(self, sample: Sample) -> Tensor:
        """Return that every label counts: [B, 1]. The number of a class may be that of the padding symbol."""
        return torch.ones_like(sample["target"], dtype=torch.bool).view(-1, 1)

    def logits(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the logits of the classes: [B, C]."""
        options = {"features_only": True, "classification_head_name": self.classification_head}
        return model(**sample["net_input"], **options)[0]

    def predicted(self, model: nn.Module, sample: Sample) -> Tensor:
        """Return the class with the highest logit, the first of equal ones: [B]."""
        return self.logits(model, sample).argmax(-1)

    def check_head(self, model: Any) -> None:
        """Raise ValueError unless a model has the classification head of the task, with as many classes."""
        name, heads = self.classification_head, getattr(model, "classification_heads", {})
        if name not in heads:
            raise ValueError(
                f"the checkpoint has no classification head {quoted(name)} (it has {', '.join(heads) or 'none'}): "
                "fine-tune it with --criterion sentence_prediction, or name another with --classification-head-name"
            )
        classes = heads[name].out_proj.out_features
        if classes != self.targets():
            raise ValueError(
                f"--num-classes is {self.targets()}: it must be {classes}, as in the classification head "
                f"{quoted(name)} of the checkpoint"
            )


def _block(options: Any) -> str:
    return "-".join(str(part) for name in BLOCK if (part := getattr(options, name, None)) is not None)


def _refuse(cfg: Any, **hints: str) -> None:
    for option, hint in hints.items():
        if getattr(cfg, option, False):
            raise ValueError(f"--{option.replace('_', '-')} cannot be used here: {hint}")


# Tasks of fairseq that this package evaluates, and why not others.
SUPPORTED = [
    *"translation translation_multi_simple_epoch".split(),
    *"language_modeling multilingual_language_modeling masked_lm sentence_prediction".split(),
]
UNSUPPORTED = {
    "online_backtranslation": "its training data are made by the model; to evaluate it, use translation",
    "denoising": "fairseq draws its noise anew in every evaluation, so that losses of two models cannot be compared",
}
KINDS: Sequence[tuple[type, type[Objective]]] = (
    (SentencePredictionTask, Classes),
    (MaskedLMTask, MaskedTokens),
)


def check_supported(name: str) -> None:
    """Raise ValueError, with the reason, for a task of fairseq that is not supported, or one derived from it."""
    task = TASK_REGISTRY[name]
    for base, reason in UNSUPPORTED.items():
        if base in TASK_REGISTRY and issubclass(task, TASK_REGISTRY[base]):
            raise ValueError(f"--task {name} cannot be used here: {reason}")
    if task.__module__.startswith("fairseq.tasks.") and name not in SUPPORTED:
        raise ValueError(f"--task {name} cannot be used here: choose from {', '.join(SUPPORTED)}")


def objective_of(task: Any) -> Objective:
    """Return what the model of a task predicts. Raise ValueError for options with which it cannot be measured."""
    if hasattr(task, "eval_lm_dataloader"):  # those that fairseq-eval-lm evaluates
        return NextToken(task)
    return next((objective for kind, objective in KINDS if isinstance(task, kind)), Objective)(task)


def options_of(task: Any) -> Any:
    """Return the options of a task, which fairseq's tasks store as `cfg` or, older ones, as `args`."""
    return task.args if task.cfg is None else task.cfg
