"""Sees when the host waits for the device."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

WAITING = {"item", "tolist", "nonzero", "masked_select", "__bool__", "__int__", "__float__", "__index__"}


class Asking(TorchFunctionMode):
    """Notes calls that wait for the device: numbers for the host, and shapes that hang on data."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in WAITING:
            self.seen.add(func.__name__)
        return func(*args, **(kwargs or {}))
