"""The reference engine with a request set in a process of its own: `python -m ...own_worker ASKED`.

Speaks the lines of `vllm_worker`: `Facts` when it is ready, then a `Served` for each `Wanted`; {"error"} is
its last line if something fails. A load's first answer decodes the set without drafts before, untimed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from reference_mechanisms.batching.bench.lines import Served, Wanted
from reference_mechanisms.batching.bench.own import Asked
from reference_mechanisms.weight12.plugin.step_times.engine import Facts

Serve = Callable[[Wanted], Served]
Engine = tuple[Facts, Serve]


def main(asked: Asked, start: Callable[[Asked], Engine], lines: IO[bytes], answers: IO[bytes]) -> None:
    """Start the engine and serve until the input ends."""
    try:
        facts, serve = start(asked)
        _tell(answers, facts)
        for line in lines:
            _tell(answers, serve(msgspec.json.decode(line, type=Wanted)))
    except Exception as error:
        traceback.print_exc()
        _tell(answers, {"error": f"{type(error).__name__}: {error}"})
        raise


def _tell(answers: IO[bytes], what: object) -> None:
    answers.write(msgspec.json.encode(what) + b"\n")
    answers.flush()


def start(asked: Asked) -> Engine:
    """The engine on this machine's GPU."""
    import torch  # noqa: PLC0415 - its failure is an answer

    from reference_mechanisms.batching.bench.own import everything, own_parts  # noqa: PLC0415
    from reference_mechanisms.batching.bench.resident import Resident  # noqa: PLC0415
    from reference_mechanisms.batching.traces.format import read_traces  # noqa: PLC0415

    began, device = time.perf_counter(), torch.device("cuda")
    recording, traces = read_traces(Path(asked.traces))
    parts = own_parts(asked, recording, traces, device)
    costs = None if asked.costs is None else Path(asked.costs)
    about = [parts.new_runner(everything(asked.slots, costs)).about]
    if parts.singly is not None:
        about.append(parts.singly.about)
    engine = Resident(parts, recording, traces, seed=asked.seed)
    facts = Facts(
        packed_layers=parts.target.config.layers if asked.weights == "weight12" else 0,
        layouts=[parts.target.linear_kernel],
        parameter_gb=torch.cuda.memory_allocated() / 1e9,
        device=torch.cuda.get_device_name(),
        vllm="none: the reference engine",
        torch=str(torch.__version__),
        cudagraph_mode="; ".join(about),
        async_scheduling=False,
        ready_s=time.perf_counter() - began,
    )

    def serve(wanted: Wanted) -> Served:
        full = everything(wanted.concurrency, costs)
        return engine.serve(wanted.variant or asked.variant, full, wanted.requests, wanted.tokens)

    return facts, serve


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error
    main(msgspec.json.decode(sys.argv[1], type=Asked), start, sys.stdin.buffer, channel)
