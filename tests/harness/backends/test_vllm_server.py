"""A server that does not come up: what went wrong is told, and where its log lies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.backends.vllm_server import running
from harness.errors import BackendError

LAST_WORDS = """\
INFO: starting
(EngineCore pid=7) ValueError: Free memory on device is less than desired
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_error_that_another_points_to_is_told(tmp_path: Path) -> None:
    program = f"import sys; print({LAST_WORDS!r}); sys.exit(1)"
    log = tmp_path / "logs" / "ar.log"
    with pytest.raises(BackendError) as told, running(lambda port: [sys.executable, "-c", program], log):
        pass
    assert "code 1" in str(told.value)
    assert "Free memory on device" in str(told.value)
    assert "root cause" not in str(told.value)
    assert str(log) in str(told.value)
