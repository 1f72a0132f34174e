"""Every Triton kernel of a step compiles for Hopper and for Blackwell workstation GPUs, without one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
WEIGHTED = {"_add_norm", "_recur", "_solve"}  # read weights, which are always there, before they wait
SHARED = 99 << 10  # bytes that a block of threads may have on the smallest of them; on Hopper 227 KiB
PRODUCTS = {"_attend_chunk", "_attend_layer", "_attend_tree"}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


FEW = ("_add_norm", "_attend_tree", "_settle_tree", "_plant", "_recur", "_replay_rows")


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        pytest.param(90, FEW, id="some for 90"),
        pytest.param(90, (), id="90", marks=pytest.mark.slow),
        pytest.param(120, (), id="120", marks=pytest.mark.slow),
    ],
)
def test_kernels_compile(tmp_path: Path, capability: int, names: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.reference_mechanisms.kernels.step.compiled", str(capability), *names],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert len(found) == (len(names) or 30)
    for name, told in found.items():
        assert told["bytes"] > 1000
        assert told["shared"] <= SHARED, name
        # one wait, in front of everything that is written; the follower may come at once
        assert told["waits"] == told["lets"] == 1, name
        assert 0 < told["first_wait"] < told["first_store"], name
        # a weight is always there, and with `early` what earlier forwards wrote
        assert told["first_wait"] < told["first_load"] or name.split()[0] in WEIGHTED or "early" in name, name
        # the warp's own product, whatever the number of rows
        assert told["products"] == (name.split()[0] in PRODUCTS), name
        assert told["tickets"] == ("joins" in name), name
        assert told["fetches"] == ("fetches" in name), name
        assert not told["group_products"], name
    # What a step computes behind a row is computed again where the row is kept: by the same roundings.
    step, kept = found["_recur"], found["_replay_rows"]
    assert step["fused_sums"] == kept["fused_sums"] == 0
    assert step["sums"] == kept["sums"] != []
    # What `ar` runs through and what a tree runs through are summed alike.
    assert names or found["_attend_tree"]["layouts"] == found["_attend_layer"]["layouts"] != []
