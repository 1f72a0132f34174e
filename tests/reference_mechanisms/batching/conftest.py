from __future__ import annotations

from tests.reference_mechanisms.engine.conftest import hybrid_folder, target, tiny_folder

__all__ = ["hybrid_folder", "target", "tiny_folder"]
