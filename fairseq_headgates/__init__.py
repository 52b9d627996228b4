"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed, and remove them.

Importing the package calls `register` (this is what ``--user-dir`` does). The names of the public API are imported when
they are first used, so that a training imports only what it needs. If `headgates_start` was imported before, as the
command and the recipes do, or with `python -m fairseq_headgates`, importing the package registers nothing: fairseq and
torch take seconds to import. The command then calls `register` where it needs models.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# The public API: modules, and names by the modules that define them. `api.py` of an extension adds the name of its
# folder: what it defines by this name, or itself.
MODULES = {
    "ablation": "scores.ablation",
    "agreement": "scores.agreement",
    "importance": "scores.importance",
    "relevance": "scores.relevance.explaining",
}
NAMES = {
    "cli.commands.compress": ("compress",),
    "compression.refit": ("refit",),
    "scores.relevance.explaining": ("explain",),
    "attention.choice": ("best_heads",),
    "attention.cuts": ("prune", "remove_heads"),
    "attention.freezing": ("freeze",),
    "attention.gating": ("fix_heads", "insert_gates", "masked"),
    "attention.head_attention": ("HeadAttention",),
    "attention.hooks": ("observe",),
    "attention.anatomy": ("attention_modules",),
    "attention.modules": ("gate_values", "l0_penalty", "open_probabilities", "use_head_attention"),
    "gates": ("HardConcrete", "HeadGates"),
    "heads": ("HeadId", "HeadTable", "parse_mask"),
    "plugin.models.language_model": ("TransformerLMHeadGatesModel",),
    "plugin.models.roberta": ("RobertaHeadGatesModel",),
    "plugin.models.transformer": ("TransformerHeadGatesModel",),
}
EXTENSIONS = [file.parent.name for file in Path(__file__).parent.glob("extensions/*/api.py")]
__all__ = sorted([*MODULES, *EXTENSIONS, *(name for names in NAMES.values() for name in names)])


def __getattr__(name: str) -> Any:
    """Import a module or a name of the public API."""
    if name in MODULES:
        return import_module(f"{__name__}.{MODULES[name]}")
    if name in EXTENSIONS:
        api = import_module(f"{__name__}.extensions.{name}.api")
        return getattr(api, name, api)
    for module, names in NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_extensions(part: str) -> list[ModuleType]:
    """Import the module `part` of every extension that has it (see `extensions`), and return these modules."""
    files = sorted(Path(__file__).parent.glob(f"extensions/*/{part}.py"))
    return [import_module(f"{__name__}.extensions.{file.parent.name}.{part}") for file in files]


def register() -> None:
    """Register architectures, criterions and tasks with fairseq, and let `torch.load` read fairseq's checkpoints."""
    # These register what they contain.
    from fairseq_headgates.plugin.criterions import losses  # noqa: F401
    from fairseq_headgates.plugin.models import bart, language_model, roberta, transformer  # noqa: F401
    from fairseq_headgates.safety.objects import allow_stored_objects

    load_extensions("plugin")
    allow_stored_objects()


if "headgates_start" not in sys.modules and sys.argv[:1] != ["-m"]:  # so it is while `python -m` finds its module
    from fairseq_headgates.compat import unsupported

    if problem := unsupported():
        raise ImportError(problem)

    register()
