from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launches import messages_of_a_thread


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Reports without plots, where nobody looks at the page: drawing takes longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.report.html.plots", lambda report: ())
        yield


@pytest.fixture(scope="module")
def launches_here() -> Iterator[None]:
    """Launches in a thread, where processes are not what is looked at: each would load torch anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.measure.supervise._messages", messages_of_a_thread)
        yield
