"""The vLLM plug-in: `vllm serve FOLDER --quantization weight12` on a packed folder, or on a plain one.

vLLM finds `register` by the entry point group `vllm.general_plugins` and calls it in every process.
"""

from __future__ import annotations

import importlib


def register() -> None:
    """Make vLLM know the quantization method `weight12`. May be called again."""
    importlib.import_module("reference_mechanisms.weight12.plugin.config")  # registers; imports vLLM
