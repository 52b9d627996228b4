"""What the plugin can do besides gates, scores, pruning and evaluation: a folder for each capability.

An extension imports the rest of the package, but no other extension; nothing else imports it. Its files have the same
names in every extension:

- `command.py`: the options of its command (no torch), `action.py`: what the command does
- `drawing.py`: its tables and figures (no torch), `templates/`: its web pages
- `plugin.py`: what it registers with fairseq
- `scores.py`: its importance scores, as entries of `analysis.options.SCORES` (no torch)

Deleting the folder, the folder of its tests and the page that its docstring names removes an extension.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType


def load(part: str) -> list[ModuleType]:
    """Import the module `part` of every extension that has it, and return them."""
    files = sorted(Path(__file__).parent.glob(f"*/{part}.py"))
    return [import_module(f"{__name__}.{file.parent.name}.{part}") for file in files]
