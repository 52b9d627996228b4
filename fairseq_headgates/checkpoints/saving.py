"""Write checkpoint files atomically."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fairseq_headgates.files import replacing


def save_checkpoint(state: Mapping[str, Any], path: str, force: bool = False) -> None:
    """Write a checkpoint atomically; replace an existing file only with `force`. Raise ValueError."""
    with replacing(path, force) as temporary:
        try:
            torch.save(dict(state), temporary)
        except RuntimeError as error:  # torch's error for a full disk or a missing folder
            reason = str(error).partition("\n")[0]
            raise ValueError(f"cannot write {path} ({reason}): check the folder and the space on the disk") from None
