"""Triton's interpreter without work that it does over and over: it gives the same, in two thirds of the time.

Whenever one function of a kernel calls another it lists all members of Triton's language anew, to patch those
that are not patched yet. For every operation it makes a table of NumPy's types, types of blocks and shapes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def quick_interpreter() -> Iterator[None]:
    """Where the interpreter is in use; what a newer one has no more stays as it is."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    with pytest.MonkeyPatch.context() as patch:
        if interpreter is not None:
            for owner, name, quick in _quick(interpreter):
                if hasattr(owner, name):
                    patch.setattr(owner, name, quick)
        yield


def _quick(interpreter: Any) -> Iterator[tuple[Any, str, Any]]:
    language = interpreter.tl
    is_builtin = language.core.is_builtin

    @functools.cache
    def builtins_of(part: Any) -> tuple[str, ...]:
        return tuple(name for name, member in inspect.getmembers(part) if is_builtin(member))

    def patch_builtin(part: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(part):
            member = getattr(part, name)
            if is_builtin(member):  # and not patched already
                interpreter._patch_attr(part, name, member, builder, scope)

    tensor, core = language.tensor, language.core
    for part in (language, core, tensor, language.math, core.tensor_descriptor_base):
        builtins_of(part)  # while nothing is patched
    yield interpreter, "_patch_builtin", patch_builtin
    numpy_type = interpreter._get_np_dtype
    plain = functools.cache(numpy_type)

    def quick_numpy_type(given: Any) -> Any:
        scalar = given.element_ty if type(given) is core.block_type else given
        return plain(scalar) if type(scalar) is core.dtype else numpy_type(given)

    yield interpreter, "_get_np_dtype", quick_numpy_type
    made: dict[tuple[Any, ...], Any] = {}

    def block_of(scalar: Any, shape: Any) -> Any:
        """Types are never changed once they are made."""
        if type(scalar) is not core.dtype:
            return core.block_type(scalar, shape)
        key = (scalar, *(core._unwrap_if_constexpr(size) for size in shape))
        if key not in made:
            made[key] = core.block_type(scalar, shape)
        return made[key]

    yield core.block_type, "with_element_ty", lambda self, scalar: block_of(scalar, self.shape)
    yield interpreter.InterpreterBuilder, "get_block_ty", lambda self, scalar, shape: block_of(scalar, shape)
    new_tensor = tensor.__init__

    def quick_tensor(self: Any, handle: Any, given: Any) -> None:
        parts = given.__dict__.get("_parts")
        if parts is None:
            new_tensor(self, handle, given)
            given._parts = self.shape, self.numel, self.dtype
        else:
            self.handle, self.type = handle, given
            self.shape, self.numel, self.dtype = parts

    yield tensor, "__init__", quick_tensor
