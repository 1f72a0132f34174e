"""CPU time of a tree whose processes come and go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from harness.process_tree import ProcessId, ProcessTimes, ProcessTree, TreeClock
from tests.harness.burners import SLEEPER, burn, burner, cpu_of_this_tree

TICK = 0.03  # CPU times come in steps of 10 ms


def times(pid: int, parent: int, used: float, waited: float = 0.0) -> ProcessTimes:
    return ProcessTimes(ProcessId(pid, float(pid)), parent, used, waited)


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        ([[times(1, 0, 5.0, 3.0)], [times(1, 0, 6.0, 3.0)]], [0.0, 1.0]),
        ([[times(1, 0, 5.0)], [times(1, 0, 5.0), times(2, 1, 2.0)]], [0.0, 2.0]),
        ([[times(1, 0, 5.0)], [times(1, 0, 5.0, 2.0)]], [0.0, 2.0]),
        ([[times(1, 0, 0.0), times(2, 1, 4.0)], [times(1, 0, 0.0, 6.0)]], [0.0, 2.0]),
        (
            [
                [times(1, 0, 0.0), times(2, 1, 4.0)],
                [times(1, 0, 1.0)],
                [times(1, 0, 1.0, 6.0)],
                [times(1, 0, 1.0, 9.0)],
            ],
            [0.0, 1.0, 3.0, 6.0],
        ),
        (
            [[times(1, 0, 0.0), times(2, 1, 4.0)], [times(1, 0, 1.0)], [times(1, 0, 2.0)]],
            [0.0, 1.0, 2.0],
        ),
        (
            [
                [times(1, 0, 0.0), times(2, 1, 4.0)],
                [times(1, 0, 0.0)],
                [times(1, 0, 0.0)],
                [times(1, 0, 0.0, 4.0)],
            ],
            [0.0, 0.0, 0.0, 4.0],
        ),
        (
            [
                [times(1, 0, 0.0), times(2, 1, 4.0, 1.0), times(3, 2, 7.0)],
                [times(1, 0, 0.0, 13.0)],
            ],
            [0.0, 1.0],
        ),
        (
            [
                [times(1, 0, 0.0), times(2, 1, 4.0), times(3, 2, 7.0)],
                [times(1, 0, 0.0, 4.0), times(3, 99, 8.0)],
            ],
            [0.0, 1.0],
        ),
    ],
    ids=[
        "what-was-before-the-first-look-is-left-out",
        "a-new-child",
        "a-child-between-two-looks",
        "a-child-that-ends-is-counted-once",
        "a-child-that-ends-while-we-look-is-counted-at-the-next",
        "a-child-that-nobody-waits-for-takes-nothing-back",
        "a-debt-is-forgotten-after-one-look",
        "a-child-and-its-parent-end-together",
        "an-orphan-goes-on",
    ],
)
def test_the_count_of_a_tree(looks: list[list[ProcessTimes]], counts: list[float]) -> None:
    clock = TreeClock()
    assert [clock.add(look) for look in looks] == pytest.approx(counts)


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    clock = TreeClock()
    clock.add([times(1, 0, 0.0), times(2, 1, 4.0)])
    again = ProcessTimes(ProcessId(2, 77.0), 1, 0.5, 0.0)
    assert clock.add([times(1, 0, 0.0, 4.0), again]) == pytest.approx(0.5)


def test_workers_that_ended_between_two_looks_are_counted_to_the_tick() -> None:
    tree = ProcessTree()
    before = cpu_of_this_tree()
    tree.look()
    for _ in range(3):
        burn(0.1)
    counted = tree.look()
    assert counted >= 0.3
    assert counted == pytest.approx(cpu_of_this_tree() - before, abs=TICK)


def test_a_worker_seen_alive_is_not_counted_again_when_it_has_ended() -> None:
    tree = ProcessTree()
    before = cpu_of_this_tree()
    tree.look()
    with burner(0.4) as worker:
        while worker.poll() is None:
            time.sleep(0.01)
            tree.look()
    assert tree.look() == pytest.approx(cpu_of_this_tree() - before, abs=TICK)


@pytest.fixture
def idle() -> Iterator[psutil.Process]:
    with subprocess.Popen(SLEEPER) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_a_process_beside_the_tree_is_not_counted(idle: psutil.Process) -> None:
    tree = ProcessTree(idle)
    tree.look()
    with burner(0.2) as worker:
        tree.look()
        worker.wait(timeout=20)
    assert tree.look() < 0.1
    assert tree.pids == {idle.pid}


def test_an_orphan_stays_in_the_tree() -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    burning = "import time\nwhile time.process_time() < 0.5: pass\nwhile True: time.sleep(1)"
    tree = ProcessTree()
    with subprocess.Popen(
        [sys.executable, "-c", script, burning], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as middle:
        assert middle.stdout is not None
        orphan = psutil.Process(int(middle.stdout.readline()))
        tree.look()
        middle.kill()
    try:
        assert orphan.ppid() not in (middle.pid, os.getpid())
        before, seen = tree.look(), sum(orphan.cpu_times()[:2])
        while sum(orphan.cpu_times()[:2]) < 0.4:
            time.sleep(0.02)
            tree.look()
        used = sum(orphan.cpu_times()[:2]) - seen
        assert used > 0.1
        assert tree.look() - before >= used - TICK
        assert orphan.pid in tree.pids
    finally:
        orphan.kill()
