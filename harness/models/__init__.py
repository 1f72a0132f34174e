"""Finds models: a Hugging Face folder, a package that carries weights, or a pinned hub revision."""

from harness.models.folder import ModelFolder
from harness.models.resolve import resolve_model
from harness.models.weights import weights_digest

__all__ = ["ModelFolder", "resolve_model", "weights_digest"]
