"""A simulated cluster of a head and two bench hosts on this machine: Ray's own processes, real trials."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_loop.executors import ray_cluster
from agent_loop.executors.ordering import RAN_ON, Done, Order
from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from agent_loop.executors.ray_cluster import RayCluster
from agent_loop.protocols import Desk
from agent_loop.records import Candidate, Hypothesis
from harness.codec import canonical_json, from_json
from harness.environment import ROOT
from harness.errors import EXIT_INVALID, UsageError
from tests.agent_loop.zoo import engine, pipeline

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
REQUEST = ConfirmRequest(schema="candidate/1", name="x", backend="a:b")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

    with pytest.MonkeyPatch.context() as patched, pipeline.in_root():
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", str(ROOT))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1, resources={ray_cluster.BENCH_HOST: 1})
        made.wait_for_nodes()
        yield made
        made.shutdown()


@pytest.fixture
def executor(cluster: Any, tmp_path: Path) -> Iterator[RayCluster]:
    found = RayCluster(cluster.address, timeout_s=600.0, lock=tmp_path / "host.lock")
    yield found
    found.close()


def noted(text: bytes) -> bytes:
    """In place of a trial: says where and when it ran."""
    folder = Path(from_json(text, Order, "order").folder)
    began, node = time.time(), ray.get_runtime_context().get_node_id()
    time.sleep(1.0)
    (folder / f"{os.getpid()}.json").write_text(json.dumps([began, time.time(), node]))
    return canonical_json(Done(line="accept"))


def dying(text: bytes) -> bytes:
    """In place of a trial: is killed while it runs."""
    with Path(from_json(text, Order, "order").folder, "begun").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_each_host_runs_one_trial_at_a_time_in_a_process_of_its_own(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_carry_out", noted)
    executor = RayCluster(cluster.address)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(executor.confirm, REQUEST, tmp_path, tmp_path, tmp_path) for _ in range(4)]
        assert [one.result() for one in asked] == ["accept"] * 4
    executor.close()
    spans = sorted(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert len(spans) == 4  # four processes
    heads = {one["NodeID"] for one in ray_nodes(cluster) if ray_cluster.BENCH_HOST not in one["Resources"]}
    nodes = {node for _, _, node in spans}
    assert len(nodes) == 2
    assert not nodes & heads
    for node in nodes:
        (_, ended, _), (began, _, _) = [span for span in spans if span[2] == node]
        assert ended <= began


def ray_nodes(cluster: Any) -> list[dict[str, Any]]:
    ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)
    found: list[dict[str, Any]] = ray.nodes()
    ray.shutdown()
    return found


def test_a_worker_that_dies_is_a_failed_trial_and_no_second_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_carry_out", dying)
    executor = RayCluster(cluster.address)
    with pytest.raises(TrialFailed, match="the worker is gone"):
        executor.confirm(REQUEST, tmp_path, tmp_path, tmp_path)
    time.sleep(2.0)
    executor.close()
    assert (tmp_path / "begun").read_text() == "x"


def test_a_whole_campaign_on_the_cluster(executor: RayCluster, tmp_path: Path) -> None:
    """Sealing, screen, measurement and confirmation, each an order that a bench host carries out."""
    honest = Candidate(
        name="wide",
        backend=f"{engine.HERE}:open_stock",
        params={"width": 12},
        hypothesis=Hypothesis(mechanism="width"),
        origin="search",
        explorer="zoo",
    )

    def work(desk: Desk) -> None:
        told = desk.submit(honest)
        assert told.passed, told

    campaign = pipeline.run(tmp_path, work, executor=executor)
    assert pipeline.outcomes(campaign)["wide"][:2] == ("confirm", "ACCEPT")
    (slot,) = campaign.database.slots()
    assert slot.line == "accept"
    folder = campaign.folders.trials / f"confirm-{slot.number:03}"
    assert (folder / RAN_ON).is_file()
    assert executor.answer(folder) == "accept"  # whoever comes back after a crash asks there
    assert executor.answer(tmp_path) is None  # nothing was started in that folder


def test_a_command_that_fails_tells_its_last_words(executor: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"campaign\.json") as told:
        executor.confirm(REQUEST, tmp_path / "trial", tmp_path / "unseen", tmp_path / "keys")
    assert told.value.exit_code == EXIT_INVALID


def test_without_a_bench_host_or_a_cluster_nothing_is_started(cluster: Any) -> None:
    del cluster
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

    bare = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    with pytest.raises(UsageError, match="no machine of it offers `bench_host`"):
        RayCluster(bare.address)
    bare.shutdown()
    with pytest.raises(UsageError, match="no cluster answers there"):
        RayCluster("127.0.0.1:1")
