from __future__ import annotations

import pytest

from harness.report import sampled
from harness.report.html import render_html
from harness.report.markdown import render_markdown
from tests.harness.report import build


def test_each_arm_tells_its_test_and_what_it_would_have_caught() -> None:
    rows = sampled.rows(build.distribution())
    assert [row["arm"] for row in rows] == ["ar", "stock", "null", "replay"]
    (row, *_) = rows
    assert (row["tokens"], row["level"], row["passed"]) == ("6000", "0.01", "yes")
    assert row["catches"].split("; ") == [
        "stock's best token in place of a draw at 4.21% of positions (total variation 0.021)",
        "a token dropped at 0.07% of positions",
        "not a lower temperature, even at every position",
        "drawn at 1.09 times the temperature (total variation 0.034)",
    ]


@pytest.mark.parametrize("render", [render_html, render_markdown], ids=["HTML", "Markdown"])
def test_both_faces_show_the_test_and_only_above_temperature_0(render: object) -> None:
    assert callable(render)
    shown = render(build.distribution())
    assert sampled.TITLE in shown
    assert "80 % power" in shown
    assert "the same seed did not give the same ids" in shown
    assert sampled.TITLE not in render(build.report())
