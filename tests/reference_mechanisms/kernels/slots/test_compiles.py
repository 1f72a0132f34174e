"""Every Triton kernel of many slots compiles for Hopper and for Blackwell workstation GPUs, without one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


@pytest.mark.parametrize("capability", [90, pytest.param(120, marks=pytest.mark.slow)])
def test_every_kernel_compiles(tmp_path: Path, capability: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.reference_mechanisms.kernels.slots.compiled", str(capability)],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert set(found) == {
        "_place_rows",
        "_attend_slots",
        "_join_splits",
        "_attend_paths",
        "_move_slots",
        "_recur_seats",
        "_recur_trees",
        "_replay_seats",
    }
    for name, told in found.items():
        assert told["bytes"] > 1000
        # one wait, in front of everything that is read or written; the follower may come at once
        assert told["waits"] == told["lets"] == 1, name
        assert 0 < told["first_wait"] < min(told["first_store"], told["first_load"]), name
    assert found["_attend_slots"]["products"] or found["_attend_slots"]["group_products"]
    recurrent = [found[name] for name in ("_recur_seats", "_recur_trees", "_replay_seats")]
    assert [one["fused_sums"] for one in recurrent] == [0, 0, 0]
    assert recurrent[0]["sums"] == recurrent[1]["sums"] == recurrent[2]["sums"] != []
    # A row of a tree is summed as the row of its chain is.
    kinds = ("layouts", "products", "group_products")
    for kind in kinds:
        assert found["_attend_paths"][kind] == found["_attend_slots"][kind]
