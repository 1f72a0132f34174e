"""A worker without vLLM: speaks the lines of `step_times.worker`, with times by rule. Started as a script.

python step_times_worker.py BEHAVIOUR STEP_MS [TOKENS_PER_STEP] [PIDS]: a call of N tokens for B prompts takes
100 ms, and B + 1 times STEP_MS for each step. Its process ids and those of its child go to PIDS.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FACTS = {
    "packed_layers": 3,
    "layouts": ["cuda"],
    "parameter_gb": 1.5,
    "device": "a device",
    "vllm": "1.2.3",
    "torch": "4.5.6",
    "cudagraph_mode": "FULL",
    "async_scheduling": True,
    "ready_s": 0.5,
}


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def answer(request: dict[str, int], step_ms: float, tokens_per_step: float | None) -> dict[str, Any]:
    batch, output = request["batch"], request["output"]
    steps = output / (tokens_per_step or 1)
    return {
        "batch": batch,
        "output": output,
        "tokens": batch * output,
        "wall_s": 0.1 + 1e-3 * steps * step_ms * (batch + 1),
        "drafts": batch * steps if tokens_per_step else None,
    }


def main(behaviour: str, step_ms: float, tokens_per_step: float | None, pids: Path | None) -> None:
    if pids:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pids.write_text(f"{child.pid}")
    if behaviour == "dies":
        print("ValueError: Free memory is too little", file=sys.stderr)
        print("RuntimeError: it failed. See root cause above.", file=sys.stderr)
        sys.exit(7)
    if behaviour == "silent":
        time.sleep(600)
    if behaviour == "babbles":
        print("Loading ...", flush=True)
    tell(FACTS | ({"packed_layers": 0} if behaviour == "unpacked" else {}))
    for number, line in enumerate(sys.stdin):
        found = answer(json.loads(line), step_ms, tokens_per_step)
        if number >= 4 and behaviour == "dies later":  # in the second round of one batch that counts
            tell({"error": "MemoryError: no room"})
            sys.exit(1)
        if behaviour == "never answers" or (number >= 4 and behaviour == "falls silent"):
            time.sleep(600)
        if behaviour == "compiles first" and number == 0:
            found["wall_s"] += 60
        if behaviour == "stops early":
            found["tokens"] -= 1
        if behaviour == "answers something else":
            found["output"] += 1
        tell(found)


if __name__ == "__main__":
    words = sys.argv[1:]
    per_step = float(words[2]) if len(words) > 2 and words[2] != "-" else None
    main(words[0], float(words[1]), per_step, Path(words[3]) if len(words) > 3 else None)
