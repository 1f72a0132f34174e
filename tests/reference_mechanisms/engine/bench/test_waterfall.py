"""A step's time is given to its stages once, whatever overlaps, and what nothing did is idle."""

from __future__ import annotations

import pytest

from reference_mechanisms.engine.bench.waterfall import Work, waterfall


def step(start: float) -> list[Work]:
    """20 us: a draft of 6 in two kernels that overlap, 2 idle, products, 1 idle, the end."""
    return [
        Work("weight12_stream", start, start + 5),
        Work("_replay", start + 3, start + 6),
        Work("weight12_stream", start + 8, start + 15),
        Work("Memcpy DtoH", start + 8, start + 9),
        Work("strange_kernel", start + 12, start + 17),
        Work("_settle", start + 18, start + 20),
    ]


def test_stages_add_up_to_the_step() -> None:
    work = [Work("_settle", -2, 0), *step(0), *step(20), *step(40)]
    found = waterfall(list(reversed(work)))
    assert found.steps == 3
    assert found.step_us == 20
    assert found.stages == {
        "draft idle": 0,
        "draft sampling": 1,
        "draft weights": 5,
        "verify copies": 1,
        "verify idle": 3,
        "verify other": 2,
        "verify sampling": 2,
        "verify weights": 6,
    }
    assert sum(found.stages.values()) == found.step_us
    assert found.launches["draft weights"] == found.launches["verify weights"] == 1


def test_without_a_draft_all_is_verification() -> None:
    work = [Work("_settle", 0, 1), Work("_add_norm", 1, 3), Work("_settle", 3, 4)]
    assert waterfall(work).stages == {"verify idle": 0, "verify norms": 2, "verify sampling": 1}


def test_a_record_without_a_whole_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole step"):
        waterfall([Work("_settle", 0, 1), Work("_add_norm", 1, 3)])
