"""A trial as a record: what one machine asks another to run, and what comes back. Knows no cluster.

Orders name folders on a file system that both machines see; the other one runs them as `LocalProcesses`.
Only JSON travels: nothing that a candidate has made is unpickled anywhere.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from agent_loop.executors.local import LocalProcesses
from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from harness import paths
from harness.codec import Record, canonical_json, from_json
from harness.plan import Job
from harness.storage import write_atomic

RAN_ON = "ran-on.json"
THREADS = "OMP_NUM_THREADS"  # a cluster sets it for its workers; trials run as they would without one


class Order(Record, frozen=True):
    """One call of an `Executor`."""

    kind: Literal["start-unseen", "measure", "confirm", "answer"]
    folder: str
    timeout_s: float
    job: Job | None = None
    request: ConfirmRequest | None = None
    unseen: str = ""
    controller: str = ""
    options: tuple[str, ...] = ()
    evals_dir: str | None = None
    lock: str | None = None  # None: the machine's own
    threads: str | None = None  # `OMP_NUM_THREADS` of whoever asks


class Done(Record, frozen=True):
    """What became of it."""

    line: str | None = None  # of a confirmation
    failed: str | None = None  # last words of the process, if the trial failed
    exit_code: int = 0


class RanOn(Record, frozen=True):
    """Where a trial was started, so that whoever comes later asks there."""

    node: str
    host: str


def carry_out(text: bytes, node: str) -> bytes:
    """Run an order on this machine.

    Args:
        text: an `Order`, as JSON.
        node: name of this machine in the cluster.

    Returns:
        A `Done`, as JSON; a trial that failed is an answer, too.

    Raises:
        DataError: the order cannot be read.
    """
    order = from_json(text, Order, "order")
    if order.threads is None:
        os.environ.pop(THREADS, None)
    else:
        os.environ[THREADS] = order.threads
    folder = Path(order.folder)
    if order.kind == "confirm":
        write_atomic(folder / RAN_ON, canonical_json(RanOn(node=node, host=socket.gethostname())))
    try:
        return canonical_json(Done(line=_call(order, folder)))
    except TrialFailed as error:
        return canonical_json(Done(failed=error.said, exit_code=error.exit_code))


def _call(order: Order, folder: Path) -> str | None:
    lock = paths.user_cache() / "host.lock" if order.lock is None else Path(order.lock)
    evals_dir = None if order.evals_dir is None else Path(order.evals_dir)
    local = LocalProcesses(lock, timeout_s=order.timeout_s, evals_dir=evals_dir)
    unseen, controller = Path(order.unseen), Path(order.controller)
    if order.kind == "answer":
        return local.answer(folder)
    if order.kind == "confirm" and order.request is not None:
        return local.confirm(order.request, folder, unseen, controller)
    if order.kind == "measure" and order.job is not None:
        local.measure(order.job, folder)
    elif order.kind == "start-unseen" and order.job is not None:
        local.start_unseen(order.job, folder, controller, order.options)
    else:
        raise TrialFailed(f"an order to {order.kind} that lacks its job or arm", 2)
    return None
