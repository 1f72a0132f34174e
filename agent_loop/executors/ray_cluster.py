"""Trials on the machines of a Ray cluster: one at a time on each that offers `bench_host`.

Ray moves one order and one answer. It retries nothing (`max_retries=0`): a worker that dies is a failed
trial, and a confirmation that was begun has spent its shard. Each order has a process of its own
(`max_calls=1`). Ray is no wall: candidates run in their sandbox there as they do here. Trials, rows and
keys lie in folders that all machines see under the same path, and bench hosts must be alike: floors are
those of the machine that the controller runs on.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from agent_loop.executors.local import read_evidence
from agent_loop.executors.ordering import RAN_ON, THREADS, Done, Order, RanOn, carry_out
from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from harness.codec import canonical_json, from_json
from harness.errors import ModelError, UsageError
from harness.oracle.stored import StoredRun, load_run
from harness.paths import RunFolder
from harness.plan import Job

BENCH_HOST = "bench_host"
REACH_SECONDS = 10.0
START = "ray start --address=HEAD:6379 --resources='{\"bench_host\": 1}'"


class RayCluster:
    """See `agent_loop.executors.protocol.Executor`."""

    def __init__(
        self,
        address: str,
        *,
        gpus: int = 0,
        timeout_s: float = 3600.0,
        evals_dir: Path | None = None,
        lock: Path | None = None,
    ) -> None:
        """Join a cluster.

        Args:
            address: of its head, "auto" for the one of this machine.
            gpus: that a trial needs on its host.
            timeout_s: of a trial.
            evals_dir: folder of original evaluation files.
            lock: file that every measurement on a host holds; None is each host's own.

        Raises:
            ModelError: Ray is not installed.
            UsageError: there is no cluster, or no machine of it offers `bench_host`.
        """
        self._ray = _ray()
        self._timeout = timeout_s
        self._evals_dir = evals_dir
        self._lock = lock
        _reach(address)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            self._ray.init(
                address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"--ray {address}: no cluster answers there: {str(error)[:200]}") from None
        if self._ray.cluster_resources().get(BENCH_HOST, 0) < 1:
            self.close()
            raise UsageError(
                f"--ray {address}: no machine of it offers `{BENCH_HOST}`; start one by: {START}"
            )
        self._gpus = gpus
        limits = {"max_retries": 0, "max_calls": 1, "num_cpus": 0, "num_gpus": gpus}
        self._remote = self._ray.remote(**limits, resources={BENCH_HOST: 1})(_carry_out)

    def close(self) -> None:
        """Leave the cluster; what this executor started on it ends."""
        self._ray.shutdown()

    def start_unseen(self, job: Job, folder: Path, controller: Path, options: tuple[str, ...]) -> None:
        """See `Executor`."""
        self._ask(Order(**self._fields("start-unseen", folder, controller), job=job, options=options))

    def measure(self, job: Job, folder: Path) -> StoredRun:
        """See `Executor`."""
        run = RunFolder(folder / "run")
        if not run.report_json.is_file():
            self._ask(Order(**self._fields("measure", folder), job=job))
        return load_run(run.root)

    def confirm(self, request: ConfirmRequest, folder: Path, unseen: Path, controller: Path) -> str:
        """See `Executor`."""
        fields = self._fields("confirm", folder, controller)
        line = self._ask(Order(**fields, request=request, unseen=str(unseen.absolute()))).line
        if line is None:
            raise TrialFailed("evals confirm said no verdict", 2)
        return line

    def answer(self, folder: Path) -> str | None:
        """See `Executor`; asked of the machine that it ran on, if that is still there."""
        path = folder / RAN_ON
        if not path.is_file():
            return None  # nothing was started
        node = from_json(path.read_bytes(), RanOn, str(path)).node
        if node not in {one["NodeID"] for one in self._ray.nodes() if one["Alive"]}:
            node = ""  # what ran there has ended with it; any machine can read what it said
        return self._ask(Order(**self._fields("answer", folder)), node).line

    def evidence(self, request: ConfirmRequest, unseen: Path, controller: Path) -> StoredRun | None:
        """See `Executor`."""
        return read_evidence(request, unseen, controller)

    def _fields(self, kind: str, folder: Path, controller: Path | None = None) -> dict[str, Any]:
        return {
            "kind": kind,
            "folder": str(folder.absolute()),
            "controller": "" if controller is None else str(controller.absolute()),
            "timeout_s": self._timeout,
            "evals_dir": None if self._evals_dir is None else str(self._evals_dir.absolute()),
            "lock": None if self._lock is None else str(self._lock.absolute()),
            "threads": os.environ.get(THREADS),
        }

    def _ask(self, order: Order, node: str = "") -> Done:
        """Have an order carried out, once.

        Raises:
            TrialFailed: it failed, or the worker is gone: nobody tries again.
        """
        remote = self._remote
        if node:
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            remote = remote.options(scheduling_strategy=strategy)
        try:
            done = from_json(self._ray.get(remote.remote(canonical_json(order))), Done, "answer")
        except self._ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()
            raise TrialFailed(f"the worker is gone: {said[0] if said else type(error).__name__}", 2) from None
        if done.failed is not None:
            raise TrialFailed(done.failed, done.exit_code)
        return done


def _carry_out(text: bytes) -> bytes:
    """Runs on the other machine."""
    import ray  # noqa: PLC0415 - an extra

    return carry_out(text, ray.get_runtime_context().get_node_id())


def _reach(address: str) -> None:
    """Look whether anybody listens; Ray itself tries for minutes.

    Raises:
        UsageError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and the like, which Ray explains
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise UsageError(f"--ray {address}: no cluster answers there: {error}") from None


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError:
        raise ModelError("trials on a cluster need Ray; install specpilot-harness[ray]") from None
    return ray
