"""An arm under load: throughput of whole request sets, inter-chunk latency, goodput."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from harness.plan import StatsSpec
from harness.records import Response
from harness.results import Load
from harness.stats.pairs import batches


def load(responses: Sequence[Response], spec: StatsSpec) -> Load | None:
    """What a server did with whole sets; None for arms that are no server.

    Throughput is emitted tokens, counted by ids, over the wall time from the first request sent to
    the last answer, set by set. A failed request emitted nothing and is late. A request is good if
    it met every limit that `spec` sets; goodput counts good requests a second.

    Args:
        responses: of one arm, failed ones among them.
        spec: its `ttft_ms`, `tpot_ms`, `e2e_ms` are the limits.
    """
    good = [r for r in responses if r.status == "ok"]
    if not any(response.chunks for response in good):
        return None
    wall = sum(_wall_ns(group) for group in batches(responses)) / 1e9
    gaps = [
        (later.at_ns - earlier.at_ns) / 1e6
        for response in good
        for earlier, later in pairwise(response.chunks)
    ]
    limits = any(limit is not None for limit in (spec.ttft_ms, spec.tpot_ms, spec.e2e_ms))
    met = sum(_meets(response, spec) for response in good)
    return Load(
        wall_seconds=wall,
        output_tokens_per_second=sum(len(r.token_ids) for r in good) / wall,
        requests_per_second=len(good) / wall,
        icl_median=float(np.quantile(gaps, 0.5)) if gaps else None,
        icl_p99=float(np.quantile(gaps, 0.99)) if gaps else None,
        chunks=sum(len(r.chunks) for r in good),
        refusals=sum(r.refusals for r in responses),
        failed=len(responses) - len(good),
        late=len(responses) - met if limits else None,
        goodput=met / wall if limits else None,
    )


def _wall_ns(group: Sequence[Response]) -> int:
    """From the first request of a set to its last answer."""
    ends = [r.sent_ns + r.end_ns for r in group if r.end_ns is not None]
    return max(ends) - min(r.sent_ns for r in group) if ends else 0


def _meets(response: Response, spec: StatsSpec) -> bool:
    """Whether a response met every limit."""
    first, end = response.first_token_ns, response.end_ns
    if first is None or end is None:
        return False
    measured = (
        (spec.ttft_ms, first / 1e6),
        (spec.tpot_ms, (end - first) / 1e6 / max(1, len(response.token_ids) - 1)),
        (spec.e2e_ms, end / 1e6),
    )
    return all(limit is None or value <= limit for limit, value in measured)
