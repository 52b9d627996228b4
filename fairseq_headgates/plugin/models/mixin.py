"""Heads for any architecture of fairseq: `HeadGatesMixin` applies the options of this plugin to a stock model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, register_model_architecture
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.cuts import remove_heads
from fairseq_headgates.attention.freezing import freeze
from fairseq_headgates.attention.gating import fix_heads, insert_gates
from fairseq_headgates.attention.modules import use_head_attention
from fairseq_headgates.attention.neurons import set_ffn_dims
from fairseq_headgates.compat import complete, mend_swish, remove_copies
from fairseq_headgates.gates import METHODS
from fairseq_headgates.inference.beam_stacks import use_beam_stacks
from fairseq_headgates.inference.packed_linear import pack_linears, usable_dtype
from fairseq_headgates.plugin.models.presets import base_preset, gated_name, preset_of, presets_of, stock_name
from fairseq_headgates.plugin.models.start import MARK, PARSED, check_kept, prepare_training, register_unknown
from fairseq_headgates.plugin.options.declared import DEFAULTS, OPTIONS, HeadOptions, add_head_gate_args
from fairseq_headgates.plugin.options.reading import one_line_errors, read_options
from fairseq_headgates.safety.checkpoint import architecture
from fairseq_headgates.safety.literals import check_evaluated

logger = logging.getLogger(__name__)
GATE_METHOD = "gate_method."  # prefix of its names in the state dict


def apply_head_options(model: nn.Module, options: HeadOptions) -> nn.Module:
    """Apply the options to a newly built stock model, in place: remove or mask heads, insert gates, freeze.

    Raises:
        ValueError: for options that contradict the model
    """
    use_head_attention(model)
    if options.ffn_dims:
        set_ffn_dims(model, options.ffn_dims)
    if (mask := options.alive_heads) is not None:
        remove_heads(model, mask) if options.remove_heads else fix_heads(model, mask)
    if options.gate_heads:
        gates = (options.distribution, options.gate_init, options.gate_lr_scale)
        insert_gates(model, options.gate_heads, *gates, method=options.method)
    if options.freeze_params:
        for line in freeze(model, options.freeze_params, options.freeze_dropout).lines():
            logger.info(line)
    return model


def warn_of_no_penalty(options: HeadOptions, args: Any) -> None:
    """Warn of a criterion without penalty, if the gates need one."""
    name = getattr(args, "criterion", None)  # of hydra's `model` it is None
    if not options.gate_heads or name is None or getattr(CRITERION_REGISTRY.get(name), "adds_penalty", False):
        return
    ours = f"{name}_l0" if f"{name}_l0" in CRITERION_REGISTRY else None
    if METHODS[options.sparsity_method].has_penalty:
        logger.warning(
            f"--criterion {name} adds no penalty on the gates, so the number of open heads is not controlled: "
            + (f"use --criterion {ours}" if ours else "use --sparsity-method subset, which needs no penalty")
        )


class HeadGatesMixin:
    """Mixin that adds gates, masks and removal of heads to a fairseq model; list it before the stock model.

    Attributes:
        stock: fairseq's architecture, whose checkpoints this model loads
        prepared_for: data type of the inference that the model is prepared for, None before
    """

    stock: ClassVar[type]
    args: Any
    num_updates = 0
    prepared_for: str | None = None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the stock model and of this plugin; fairseq calls it."""
        super().add_args(parser)  # type: ignore[misc]
        options = getattr(cls.stock, "__dataclass", None)
        if options is not None:  # without defaults, which a preset sets
            gen_parser_from_dataclass(parser, options(), delete_default=True)
        add_head_gate_args(parser)
        parser.set_defaults(**{MARK: PARSED})

    @classmethod
    def set_defaults(cls, args: Any) -> None:
        """Set the options that `args` leaves open, as fairseq does for their architecture, or else for `stock`."""
        preset_of(cls.stock, architecture(args))(args)

    @classmethod
    def current_names(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a checkpoint by the names of today's fairseq."""
        return dict(weights)

    @classmethod
    def gated_architecture(cls, name: str) -> str:
        """Return this plugin's counterpart: "transformer_iwslt_de_en" -> "transformer_head_gates_iwslt_de_en"."""
        if ARCH_MODEL_REGISTRY.get(name) is cls:
            return name
        stock = stock_name(cls.stock)
        preset = gated_name(name, stock)
        return preset if ARCH_MODEL_REGISTRY.get(preset) is cls else gated_name(stock, stock)

    @classmethod
    def stock_architecture(cls, name: str) -> str:
        """Return fairseq's counterpart: "transformer_head_gates_iwslt_de_en" -> "transformer_iwslt_de_en".

        Raise ValueError for an architecture that fairseq does not have.
        """
        if cls.stock not in MODEL_REGISTRY.values():
            raise ValueError(f"fairseq has no architecture for {name}: leave out --stock")
        preset = name.replace("_head_gates", "")
        return preset if ARCH_MODEL_REGISTRY.get(preset) is cls.stock else stock_name(cls.stock)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> nn.Module:
        """Build the model from options of the command line, of hydra or of a checkpoint; fairseq calls it."""
        with one_line_errors():
            return cls.build_checked(args, task)

    @classmethod
    def build_checked(cls, args: Any, task: Any) -> nn.Module:
        """Build the model that `args` describe. Raise ValueError for options that cannot be used."""
        check_evaluated(args if isinstance(args, Mapping) else vars(args))
        register_unknown(cls, args)
        options = read_options(args)
        options.store(args)
        warn_of_no_penalty(options, args)
        model = super().build_model(args, task)  # type: ignore[misc]
        if type(model) is cls.stock:  # some models of fairseq build their own class, whatever `cls` is
            model.__class__ = cls
        mend_swish(model)
        use_beam_stacks(model)
        apply_head_options(model, options)
        model.args = args
        return model

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates before the next one; fairseq calls it."""
        super().set_num_updates(num_updates)  # type: ignore[misc]
        self.num_updates = num_updates

    def set_beam_size(self, beam_size: int) -> None:
        """Set the beam size of the decoder's cache; fairseq's beam search calls it."""
        self.decoder.set_beam_size(beam_size)  # type: ignore[attr-defined]

    @property
    def inference_dtype(self) -> str:
        """Data type of linear layers on a CPU, one of `inference.DTYPES`, for `make_generation_fast_`; stored."""
        return getattr(self.args, "inference_dtype", None) or DEFAULTS["inference_dtype"]

    @inference_dtype.setter
    def inference_dtype(self, dtype: str) -> None:
        self.args.inference_dtype = OPTIONS["inference_dtype"].parse(dtype)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare for inference; fairseq's commands call it.

        Packed weights and constant gates follow all changes of parameters that torch counts, such as those in place
        within `torch.no_grad()`. After changes of `parameter.data`, call it again.
        """
        dtype = usable_dtype(self, self.inference_dtype)  # type: ignore[arg-type]
        if self.prepared_for not in (None, dtype):
            raise ValueError(f"the model is prepared for inference in {self.prepared_for}: load it again for {dtype}")
        self.prepared_for = dtype
        super().make_generation_fast_(**kwargs, dtype=dtype)  # type: ignore[misc]
        for module in attention_modules(self):  # type: ignore[arg-type]
            module.attention.make_generation_fast_(dtype=dtype)  # fairseq calls it only once
        pack_linears(self, dtype)  # type: ignore[arg-type]
        for module in attention_modules(self):  # type: ignore[arg-type]
            module.attention.stay_in_bfloat16()

    def upgrade_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Rename the weights of older versions of fairseq; fairseq's commands call it."""
        with one_line_errors():  # fairseq hides any other exception behind one of its own
            self.upgrade_checked(state_dict)

    def upgrade_checked(self, state_dict: dict[str, Any]) -> None:
        """Rename the weights of older versions of fairseq. Raise ValueError for weights of other sizes or heads."""
        super().upgrade_state_dict(state_dict)  # type: ignore[misc]
        remove_copies(state_dict)
        method_state = {name: value for name, value in self.state_dict().items() if name.startswith(GATE_METHOD)}  # type: ignore[attr-defined]
        for name in [name for name in state_dict if name.startswith(GATE_METHOD) and name not in method_state]:
            del state_dict[name]  # of a run with another method
        for name, value in method_state.items():
            if name in state_dict and state_dict[name].shape != value.shape:
                logger.warning(f"{name} of the checkpoint is not used: it is of other gates or targets")
                del state_dict[name]
            state_dict.setdefault(name, value)


def register_preset(model: str, architecture: str, preset: Callable[[Any], Any]) -> None:
    """Register an architecture of a model: `preset` sets the options that the command line or hydra leaves open.

    Before it, a checkpoint that a training starts from sets those that change the function of its weights.
    """

    def set_options(args: Any) -> None:
        with one_line_errors():
            taken = prepare_training(MODEL_REGISTRY[model], args)
        complete(preset, args)
        with one_line_errors():
            check_kept(taken, args, model)

    register_model_architecture(model, architecture)(set_options)


def register_presets(model: str) -> None:
    """Register the counterpart of every architecture of the stock model, and of the model itself."""
    model_class = MODEL_REGISTRY[model]
    name, base = stock_name(model_class.stock), base_preset(model_class.stock)
    for each, preset in {name: base, **presets_of(model_class.stock)}.items():
        register_preset(model, gated_name(each, name), preset)


def head_gates_class(architecture: str) -> type[HeadGatesMixin] | None:
    """Return the model of this plugin that loads checkpoints of an architecture, None if there is none.

    Args:
        architecture: name of one of this plugin's architectures, or of one of fairseq's, presets included
    """
    model_class = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    classes = [each for each in MODEL_REGISTRY.values() if isinstance(each, type) and issubclass(each, HeadGatesMixin)]
    return next((each for each in classes if model_class in (each, each.stock)), None)
