"""The opposite of ragged acceptance, for comparison: all requests go on as far as the slowest.

What a request accepted behind the cut is thrown away and drafted again. The token at the cut is the draft
that was accepted there, which is what the target chose; at temperature above 0 it has the target's
distribution, for whether the cut falls there hangs on earlier positions and on other requests alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.verification.chain import Verified


def held_back(drafts: Sequence[Sequence[int]], verified: Sequence[Verified]) -> list[Verified]:
    """Outcomes cut to the fewest accepted drafts among them.

    Args:
        drafts: chain of each request.
        verified: outcome of each.
    """
    most = min((one.accepted for one in verified), default=0)
    return [
        one if one.accepted == most else Verified(most, draft[most])
        for draft, one in zip(drafts, verified, strict=True)
    ]
