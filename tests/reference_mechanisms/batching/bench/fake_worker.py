"""A worker without an engine: answers request sets with times by rule. Started as a script.

python fake_worker.py SPEED DRAFTS BEHAVIOUR: SPEED tokens a second for each request at a time, ten percent
less for each of DRAFTS above 7 at more than 16 of them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.reference_mechanisms.weight12.step_times_worker import FACTS

TOKENS = 10


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main(speed: float, drafts: int, behaviour: str) -> None:
    if behaviour == "dies":
        tell({"error": "MemoryError: no room"})
        sys.exit(1)
    tell(FACTS)
    for number, line in enumerate(sys.stdin):
        wanted = json.loads(line)
        load, requests = wanted["concurrency"], wanted["requests"]
        rate = speed * load * (1 + 0.1 * min(drafts, 7))
        if load > 16:
            rate *= 1 - 0.1 * max(drafts - 7, 0)
        if behaviour == "dies later" and number == 3:
            tell({"error": "RuntimeError: lost"})
            sys.exit(1)
        tokens = wanted["tokens"] or TOKENS
        told: dict[str, float] = {}
        if drafts:  # two drafts of each step are accepted
            steps = requests * tokens / 3
            told = {"verifications": steps, "drafted": steps * drafts, "accepted": 2 * steps}
        tell(
            {
                "concurrency": load + (behaviour == "answers something else"),
                "requests": requests,
                "variant": wanted["variant"],
                "tokens": requests * tokens,
                "wall_s": 1.0 * (behaviour == "prefills") + requests * tokens / rate,
                "full_tokens": tokens,
                "full_s": tokens / rate,
                **told,
            }
        )


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
