"""HTML pages of the sample reports; each is drawn once in a process."""

from __future__ import annotations

import functools
from collections.abc import Callable

from harness.report.html import render_html
from harness.results import Report


@functools.cache
def rendered(make: Callable[[], Report]) -> str:
    """The page of the report that `make` builds."""
    return render_html(make())
