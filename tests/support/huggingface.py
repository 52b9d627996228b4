"""Models of transformers, where it is installed."""

import pytest
import torch


def import_transformers(monkeypatch):
    """transformers without torchaudio, which fairseq needs but which may not fit the installed torch."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    monkeypatch.setattr("transformers.utils.is_torchaudio_available", lambda: False)
    return transformers


def randomized(model, biases=0.25):
    """Gives a model random weights everywhere, biases, norms and the bias of the output included, in place.

    With small biases its translations depend on the source.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" in name and not tensor.requires_grad:
                continue  # sinusoids
            noise = torch.randn(tensor.shape, generator=generator)
            scale = biases if name.endswith("bias") else 0.25 if "shared" in name or "embed" in name else 0.5
            tensor.copy_(1 + noise / 3 if name.endswith("norm.weight") else noise * scale)
    return model
