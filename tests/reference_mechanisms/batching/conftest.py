from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from reference_mechanisms.engine.prompt_step import PIECE
from tests.reference_mechanisms.engine.conftest import hybrid_folder, target, tiny_folder

__all__ = ["hybrid_folder", "target", "tiny_folder"]
SHORT = 16


@pytest.fixture(scope="module")
def short_pieces() -> Iterator[None]:
    """Prompts in programs of 16 rows, not 64: recurrent layers run one row after another, padding too."""
    owners = ("reference_mechanisms.engine.", "reference_mechanisms.batching.")
    with pytest.MonkeyPatch.context() as patch:
        for name, module in sorted(sys.modules.items()):
            if name.startswith(owners) and hasattr(module, "PIECE"):
                assert module.PIECE == PIECE, name
                patch.setattr(module, "PIECE", SHORT)
        yield
