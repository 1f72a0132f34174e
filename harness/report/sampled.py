"""Above temperature 0: the test of each arm's distribution, and what it would have caught, as a table."""

from __future__ import annotations

from harness.report import numbers, text
from harness.report.text import plain
from harness.results import Deviation, Report

TESTS = {
    "seeded": "seeded: under the same seed every arm gave the baseline's own ids; the distribution as well",
    "distribution": "distribution: the same seed did not give the same ids, so the distribution is tested",
}
TITLE = "Distribution of the sampled tokens"
NOTE = (
    "The tokens of one response a prompt, against stock's own distribution at each position. Catches: the "
    "least departure from that distribution which the test finds with 80 % power at its level, computed from "
    "stock's distributions at these very positions, with its total variation (mean over all positions)."
)


def rows(report: Report) -> list[dict[str, str]]:
    """A row for each arm that was tested."""
    return [
        {
            "arm": text.name(arm.name),
            "tokens": str(test.tokens),
            "z": f"{test.z:.3g}",
            "p": numbers.probability(test.p_value),
            "level": f"{test.level:g}",
            "passed": numbers.yes_no(test.passed),
            "catches": "; ".join(map(_caught, test.detects)) or numbers.ABSENT,
        }
        for arm in report.arms
        if arm.losslessness is not None and (test := arm.losslessness.distribution_test) is not None
    ]


def _caught(found: Deviation) -> str:
    """One departure with its least size."""
    what = plain(found.what)
    if found.share is None:
        return f"not {what}, even at every position"
    where = "" if found.share == 1.0 else f" at {found.share:.2%} of positions"
    far = "" if found.total_variation is None else f" (total variation {found.total_variation:.2g})"
    return f"{what}{where}{far}"
