"""The same data, four headlines, in words: the table, what each file says, and which faults show. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.importers.headlines import Headlines
from harness.importers.records import MAYBE_UNKNOWN, Imported
from harness.report.text import plain, told

TITLE = "The same data, {count} headlines"
SLIGHT = 0.005  # relative; a smaller difference is not told as a fault
Row = dict[str, str]


def headline_rows(found: Headlines) -> list[Row]:
    """A row for each way to put it; the first is what a user of the workload gains."""
    return [
        {
            "headline": one.name,
            "speedup": f"{one.speedup:.3f}x",
            "used by": one.used_by,
            "what it is": one.formula,
        }
        for one in found.found
    ]


def file_rows(baseline: Imported, method: Imported) -> list[Row]:
    """What each file says, and what it does not."""
    return [
        {
            "file": plain(one.source),
            "tool": one.tool,
            "says": ", ".join(
                f"{name} {told(getattr(one, name))}" for name in MAYBE_UNKNOWN if name not in one.unknown
            ),
            "does not say": ", ".join(one.unknown) or "-",
        }
        for one in (baseline, method)
    ]


def faults(found: Headlines) -> tuple[str, ...]:
    """What the other headlines make of these requests, in sentences; only what shows in them."""
    return tuple(_faults(found))


def _faults(found: Headlines) -> Iterator[str]:
    whole = found.found[0].speedup
    for one in found.found[1:]:
        if (one.speedup - 1.0) * (whole - 1.0) < 0.0:
            yield (
                f"By {one.name} ({one.used_by}) the method is {_word(one.speedup)}, {one.speedup:.2f}x; all "
                f"requests together took {'more' if whole < 1.0 else 'less'} time, {whole:.2f}x. A short "
                "request weighs as much there as a long one."
            )
    mean = next((one for one in found.found if one.name == "mean of tokens/s"), None)
    again = next((one for one in found.found if one.name.endswith("re-tokenised")), None)
    if mean is not None and again is not None and abs(again.speedup / mean.speedup - 1.0) > SLIGHT:
        yield (
            f"Counting the baseline's tokens in another way than the method's moves the ratio from "
            f"{mean.speedup:.3f}x to {again.speedup:.3f}x; not one token or second is different."
        )
    if found.without_first is not None and abs(found.without_first / whole - 1.0) > SLIGHT:
        yield (
            "Without the first request of the baseline the total-time ratio is "
            f"{found.without_first:.3f}x in place of {whole:.3f}x: what is cold at the start is charged to "
            "whoever runs first, where nothing warms up (dflash runs autoregressive decoding first)."
        )
    if found.lengths is not None:
        alike, apart = found.lengths.steps_alike, found.lengths.requests_alike
        if abs(apart / alike - 1.0) > SLIGHT:
            yield (
                f"The acceptance length is {alike:.3f} over all verify steps, and {apart:.3f} as the mean of "
                "the requests' own means."
            )


def title(found: Headlines) -> str:
    """Says how many headlines there are."""
    words = {2: "two", 3: "three", 4: "four", 5: "five"}
    return TITLE.format(count=words.get(len(found.found), str(len(found.found))))


def _word(speedup: float) -> str:
    return "faster" if speedup > 1.0 else "slower"
