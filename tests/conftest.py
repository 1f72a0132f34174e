from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Reports without plots, where nobody looks at the page: drawing takes longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.report.html.plots", lambda report: ())
        yield
