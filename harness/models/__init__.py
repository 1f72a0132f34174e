"""Finds models: a Hugging Face folder, a package that carries weights, or a pinned hub revision."""

from harness.models.folder import ModelFolder, sampling_defaults
from harness.models.resolve import resolve_model
from harness.models.weights import weights_digest

__all__ = ["ModelFolder", "resolve_model", "sampling_defaults", "weights_digest"]
