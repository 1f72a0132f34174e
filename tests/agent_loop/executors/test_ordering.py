"""Orders as they are carried out on another machine, without a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent_loop.executors.ordering import RAN_ON, THREADS, Done, Order, RanOn, carry_out
from agent_loop.executors.protocol import ConfirmRequest
from agent_loop.executors.ray_cluster import RayCluster
from harness.codec import canonical_json, from_json
from harness.errors import EXIT_INVALID, DataError, ModelError


def order(tmp_path: Path, kind: str, **fields: object) -> bytes:
    usual = {"kind": kind, "folder": str(tmp_path / "trial"), "timeout_s": 60.0}
    return canonical_json(usual | {"lock": str(tmp_path / "lock")} | fields)


def test_a_trial_that_fails_is_an_answer_and_where_it_ran_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, "1")  # as a cluster sets it
    request = ConfirmRequest(schema="candidate/1", name="x", backend="a:b")
    where = {"unseen": str(tmp_path / "unseen"), "controller": str(tmp_path / "keys")}
    text = order(tmp_path, "confirm", request=request, threads="3", **where)
    done = from_json(carry_out(text, "node-1"), Done, "answer")
    assert done.line is None
    assert done.failed is not None
    assert "campaign.json" in done.failed
    assert done.exit_code == EXIT_INVALID
    assert os.environ[THREADS] == "3"
    ran = from_json((tmp_path / "trial" / RAN_ON).read_bytes(), RanOn, RAN_ON)
    assert ran.node == "node-1"
    answer = from_json(carry_out(order(tmp_path, "answer"), "node-1"), Done, "answer")
    assert answer == Done()
    assert THREADS not in os.environ


def test_what_a_confirmation_has_said_is_read_once_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "said.txt").write_text("noise\nreject: not-faster\n")
    answer = from_json(carry_out(order(tmp_path, "answer"), "n"), Done, "answer")
    assert answer.line == "reject: not-faster"


def test_an_order_that_lacks_its_job_is_no_trial(tmp_path: Path) -> None:
    done = from_json(carry_out(order(tmp_path, "measure"), "n"), Done, "answer")
    assert done.failed == "an order to measure that lacks its job or arm"
    with pytest.raises(DataError, match="order"):
        carry_out(b"{}", "n")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModelError, match=r"install specpilot-harness\[ray\]"):
        RayCluster("auto")


def test_an_order_survives_its_way(tmp_path: Path) -> None:
    text = order(tmp_path, "start-unseen", options=["--shards", "2"])
    assert canonical_json(from_json(text, Order, "order")) == canonical_json(
        Order(
            kind="start-unseen",
            folder=str(tmp_path / "trial"),
            timeout_s=60.0,
            lock=str(tmp_path / "lock"),
            options=("--shards", "2"),
        )
    )
