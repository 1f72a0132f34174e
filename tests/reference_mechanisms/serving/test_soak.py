"""A long life of `serve`: clients that leave, stop and send nonsense cost it no memory and no lane."""

from __future__ import annotations

import pytest

from tests.reference_mechanisms.serving.soak import LANES, soak

MOST_BYTES_A_REQUEST = 8192  # above it, memory is not flat: a million requests would take 8 GB


@pytest.mark.slow
def test_two_thousand_requests_leave_the_server_as_it_was() -> None:
    found = soak(2000, seed=2)
    assert found.faults == []
    assert sum(found.outcomes.values()) == 2000
    assert all(found.outcomes[kind] > 50 for kind in ("left inside a stream", "wrong, refused"))
    assert found.running_at_the_end == found.waiting_at_the_end == 0
    assert found.answered_after == LANES
    assert found.memory_bytes_per_request < MOST_BYTES_A_REQUEST
    assert found.open_files_last <= found.open_files_first + 4
