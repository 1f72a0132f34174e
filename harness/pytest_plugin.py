"""The pytest plug-in: the fixture `assert_lossless(engine, prompts)`.

The target's folder comes from ``--lossless-model`` or the ini option ``lossless_model``, or is passed
as ``model=``. Stock is loaded once for each model and length of a test session. Nothing of the harness
is imported before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.lossless import Engine, StockJudge
    from harness.oracle.judge import Judged
    from harness.plan import DType

MAX_TOKENS = 64


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the target lies."""
    text = "Hugging Face folder of the target that assert_lossless judges by"
    parser.getgroup("lossless").addoption("--lossless-model", metavar="FOLDER", help=text)
    parser.addini("lossless_model", text)


class AssertLossless:
    """What the fixture gives: call it with an engine and prompts."""

    def __init__(self, model: str | None) -> None:
        """Remember the default target; nothing is loaded."""
        self._model = model
        self._judges: dict[tuple[str, int, str], StockJudge] = {}

    def __call__(
        self,
        engine: Engine,
        prompts: Sequence[str | Sequence[int]],
        *,
        model: Path | str | None = None,
        max_tokens: int = MAX_TOKENS,
        dtype: DType = "float32",
    ) -> Judged:
        """Fail the test unless every emitted token is stock's own, near ties excused by the rule.

        Args:
            engine: called with prompt ids and the most tokens to emit; gives the emitted ids, greedy.
            prompts: texts, which get the target's chat template, or token ids.
            model: folder of the target; None takes the option's.
            max_tokens: the most the engine may emit for a prompt.
            dtype: what stock computes in; the engine's own.

        Returns:
            The verdict with its evidence, for further asserts.
        """
        __tracebackhide__ = True
        from harness.lossless import faults, judge_engine, open_judge  # noqa: PLC0415

        folder = str(model or self._model or "")
        if not folder:
            raise pytest.UsageError("assert_lossless: give model=FOLDER, --lossless-model or lossless_model")
        key = (folder, max_tokens, dtype)
        if key not in self._judges:
            self._judges[key] = open_judge(Path(folder), max_tokens=max_tokens, dtype=dtype)
        found = judge_engine(engine, prompts, self._judges[key])
        told = faults(found)
        if told:
            pytest.fail("\n".join(("not lossless:", *told)), pytrace=False)
        return found


@pytest.fixture(scope="session")
def assert_lossless(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`assert_lossless(engine, prompts)`: fails unless the engine's greedy tokens are the target's own."""
    model = request.config.getoption("--lossless-model") or request.config.getini("lossless_model")
    return AssertLossless(model or None)
