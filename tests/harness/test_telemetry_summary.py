"""From looks to loads: known counters, known shares."""

from __future__ import annotations

import pytest

from harness.errors import UndefinedMetric
from harness.measure.supervise import BlockWindow
from harness.nvml import GpuReading
from harness.telemetry_summary import (
    Effort,
    GpuLook,
    Sample,
    Spread,
    cut,
    foreign_between,
    foreign_share,
    own_share,
    summarise,
)

EFFORT = Effort(period_seconds=1.0, cpu_seconds=0.02, failed=0, problem=None)


def looks(*rates: tuple[float, float], cores: int = 4) -> list[Sample]:
    """One look a second from 100 s on; each rate is (busy, own) in CPU seconds a second."""
    samples = [Sample(at=100.0, total=50.0, busy=20.0, own=0.0)]
    for busy, own in rates:
        last = samples[-1]
        samples.append(Sample(last.at + 1.0, last.total + cores, last.busy + busy, last.own + own))
    return samples


def test_foreign_load_is_what_is_busy_without_the_run_as_a_share_of_all_cores() -> None:
    samples = looks((3.0, 2.0), (3.0, 2.0))
    assert foreign_share(samples) == pytest.approx(0.25)
    assert own_share(samples) == pytest.approx(0.5)


def test_a_rounding_below_nothing_is_nothing() -> None:
    assert foreign_share(looks((1.9, 2.0))) == 0.0


@pytest.mark.parametrize(
    ("started", "ended", "share"),
    [
        (100.0, 101.0, 0.0),
        (101.0, 102.0, 0.5),
        (100.5, 101.5, 0.25),
        (101.2, 101.3, 0.5),
        (100.0, 102.0, 0.25),
        (99.9, 101.0, None),
        (101.0, 102.1, None),
        (101.0, 101.0, None),
    ],
    ids=["quiet", "loud", "across", "shorter-than-a-period", "all", "too-early", "too-late", "no-length"],
)
def test_a_window_has_its_own_load(started: float, ended: float, share: float | None) -> None:
    found = foreign_between(looks((2.0, 2.0), (2.0, 0.0)), started, ended)
    assert found == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("samples", [[], looks(), looks((0.0, 0.0), cores=0)], ids=["none", "one", "frozen"])
def test_load_without_cpu_time_is_undefined_not_zero(samples: list[Sample]) -> None:
    with pytest.raises(UndefinedMetric):
        foreign_share(samples)
    with pytest.raises(UndefinedMetric):
        own_share(samples)
    summary = summarise(samples, [], EFFORT, 4)
    assert summary.foreign_mean is None
    assert summary.foreign_max is None
    assert "no CPU time" in (summary.problem or "")


def test_a_cut_keeps_the_looks_inside_and_adds_its_ends() -> None:
    inside = cut(looks((2.0, 1.0), (2.0, 1.0), (2.0, 1.0)), 100.5, 102.5)
    assert [sample.at for sample in inside] == [100.5, 101.0, 102.0, 102.5]
    assert inside[0].busy == pytest.approx(21.0)
    assert inside[-1].own == pytest.approx(2.5)


def test_each_block_tells_its_mean_and_its_worst_moment() -> None:
    samples = [s._replace(load_1m=n) for n, s in enumerate(looks((2.0, 2.0), (4.0, 0.0), (2.0, 2.0)))]
    windows = [BlockWindow(0, 1, 100.0, 102.0), BlockWindow(1, 0, 102.2, 102.8), BlockWindow(1, 1, 103, 104)]
    mixed, quiet, unwatched = summarise(samples, windows, EFFORT, 4).blocks
    assert (mixed.launch, mixed.block, mixed.samples, mixed.seconds) == (0, 1, 1, 2.0)
    assert mixed.foreign_mean == pytest.approx(0.5)
    assert mixed.foreign_max == pytest.approx(1.0)
    assert mixed.own_mean == pytest.approx(0.25)
    assert mixed.load_1m_max == 1.0
    assert quiet.foreign_max == 0.0
    assert (unwatched.foreign_mean, unwatched.foreign_max, unwatched.own_mean) == (None, None, None)


def test_the_whole_run_is_summed_up_too() -> None:
    summary = summarise(looks((2.0, 2.0), (4.0, 0.0)), [], EFFORT, 4)
    assert summary.foreign_mean == pytest.approx(0.5)
    assert summary.foreign_max == pytest.approx(1.0)
    assert summary.own_mean == pytest.approx(0.25)
    assert summary.overhead_share == pytest.approx(0.01)
    assert summary.problem is None
    assert summary.samples == 3


def test_a_look_that_failed_is_told_though_load_is_known() -> None:
    effort = EFFORT._replace(failed=2, problem="OSError")
    summary = summarise(looks((2.0, 2.0)), [], effort, 4)
    assert (summary.failed_looks, summary.problem, summary.foreign_mean) == (2, "OSError", 0.0)


def test_clocks_are_spread_over_the_looks_that_saw_them() -> None:
    samples = [
        sample._replace(mhz=mhz)
        for sample, mhz in zip(looks((0, 0), (0, 0), (0, 0)), (3000.0, None, 1000.0, 2500.0), strict=True)
    ]
    summary = summarise(samples, [], EFFORT, 4)
    assert summary.cpu_mhz == Spread(low=1000.0, median=2500.0, high=3000.0, samples=3)
    assert summary.cpu_celsius is None


def test_gpus_are_told_apart_and_a_refused_reading_is_none() -> None:
    def look(gpu: int, foreign: int | None, *slowed: str, mhz: int | None = 1500) -> GpuLook:
        pids = None if foreign is None else tuple(range(foreign + 1))
        return GpuLook(GpuReading(gpu, mhz, None, 60, 300.0, 1.0, slowed, pids), foreign)

    samples = [
        sample._replace(gpus=gpus)
        for sample, gpus in zip(
            looks((0, 0), (0, 0)),
            [(look(0, 0), look(3, None, mhz=None)), (), (look(0, 2, "power cap", mhz=1200),)],
            strict=True,
        )
    ]
    first, second = summarise(samples, [], EFFORT, 4).gpus
    assert (first.gpu, second.gpu) == (0, 3)
    assert first.sm_mhz == Spread(low=1200.0, median=1350.0, high=1500.0, samples=2)
    assert first.slowed_by == {"power cap": 1}
    assert (first.processes_max, first.foreign_processes_max) == (3, 2)
    assert (second.sm_mhz, second.processes_max, second.foreign_processes_max) == (None, None, None)
