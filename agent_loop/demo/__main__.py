"""``python -m agent_loop.demo``: two campaigns through the public command line, one summary.

The first improves a stock that is badly tuned on purpose, with cheats planted beside its candidates; the
second, another deployment, begins with what the memory learned. Exit code 0 if the first accepted
something, caught three cheats and the second accepted a record of the memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EXIT_OK, EXIT_VIOLATED
from harness.storage import write_atomic

HERE = Path(__file__).parent
CHEATS = 3  # that must be caught
CAUGHT = ("POLICY", "LOSSY", "BELOW_CEILING", "CHEAT", "INCOMPLETE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both campaigns and write summary.json."""
    parser = argparse.ArgumentParser(prog="python -m agent_loop.demo")
    parser.add_argument("--out", type=Path, default=Path("reports/loop-demo"))
    parser.add_argument(
        "--controller", type=Path, required=True, help="folder of keys, outside every git tree"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    planted = [word for path in sorted((HERE / "planted").glob("*.json")) for word in ("--plant", str(path))]
    found = [
        _campaign("first", planted, options.out, options.controller),
        _campaign("second", [], options.out, options.controller),
    ]
    whole = together(found, time.monotonic() - began)
    text = json.dumps(whole, indent=2) + "\n"
    write_atomic(options.out / "summary.json", text)
    print(text, end="")
    return EXIT_OK if succeeded(whole) else EXIT_VIOLATED


def together(found: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """One summary of several campaigns."""
    rejected: dict[str, int] = {}
    for one in found:
        for reason, count in one["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    best = [one["best_speedup"] for one in found if one["best_speedup"] is not None]
    return {
        "accepted": [
            accepted | {"campaign": one["campaign"]} for one in found for accepted in one["accepted"]
        ],
        "rejected": dict(sorted(rejected.items())),
        "confirm_slots_used": sum(one["confirm_slots_used"] for one in found),
        "best_speedup": max(best, key=lambda speedup: float(speedup["low"]), default=None),
        "reused_from_memory": any(one["reused_from_memory"] for one in found),
        "error_rates": {one["campaign"]: one["error_rates"] for one in found},
        "seconds": round(seconds, 1),
    }


def succeeded(summary: Mapping[str, Any]) -> bool:
    """Whether the demonstration shows what it is for: a gain found, one recalled, three cheats caught."""
    caught = sum(count for reason, count in summary["rejected"].items() if reason in CAUGHT)
    improved = {accepted["campaign"] for accepted in summary["accepted"]}
    all_improved = improved == set(summary["error_rates"])
    return bool(improved) and all_improved and caught >= CHEATS and bool(summary["reused_from_memory"])


def _campaign(name: str, planted: Sequence[str], out: Path, keys: Path) -> Mapping[str, Any]:
    """Run one campaign; an unfinished one is continued."""
    folder = out / name
    words = ["loop", "run", str(HERE / f"{name}.toml"), "--out", str(folder)]
    words += ["--memory", str(out / "memory.sqlite"), "--controller", str(keys), *planted]
    done = subprocess.run([sys.executable, "-m", "harness.cli", *words], check=False)
    summary = folder / "summary.json"
    if done.returncode not in (EXIT_OK, EXIT_VIOLATED) or not summary.is_file():
        raise SystemExit(done.returncode or 1)
    found: Mapping[str, Any] = json.loads(summary.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
