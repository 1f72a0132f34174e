"""One vLLM engine with a request set: `python -m ...vllm_worker ASKED`, a JSON object (`Asked`).

Speaks the lines of `step_times.worker`: `Facts` when it is ready, then a `Served` for each `Wanted`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from reference_mechanisms.batching.bench.lines import Served, Tally, Wanted
from reference_mechanisms.batching.bench.requests import request_set
from reference_mechanisms.batching.traces.format import Trace, read_traces
from reference_mechanisms.weight12.plugin.step_times import worker

VERIFICATIONS = worker.DRAFTS
DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"
ADMITTED = (
    "max_num_active_reqs",
    "max_num_running_reqs",
)  # of vLLM's scheduler, newer versions first


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which engine to be.

    Attributes:
        arguments: of `vllm.LLM`.
        traces: file of the request set.
        seed: of its prompts.
        held: several loads are asked of it, so its scheduler must be told of each.
    """

    arguments: dict[str, Any]
    traces: str
    seed: int = 0
    held: bool = False


def hold_running(_worker: object, requests: int) -> int:
    """Let vLLM's scheduler run so many requests at a time, no more.

    It is found in the engine that calls this: with one GPU, model and scheduler share a process.

    Returns:
        Schedulers that were told.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        scheduler = getattr(frame.f_locals.get("self"), "scheduler", None)
        name = next((name for name in ADMITTED if hasattr(scheduler, name)), None)
        if name is not None:
            setattr(scheduler, name, requests)
            return 1
    return 0


def serve(llm: Any, asked: Asked, traces: tuple[Trace, ...], wanted: Wanted) -> Served:
    """All requests are handed over at once, and wait in the engine for their turn.

    Raises:
        RuntimeError: this vLLM's scheduler cannot be told how many requests to run.
    """
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    if asked.held:
        held = llm.collective_rpc(hold_running, args=(wanted.concurrency,))
        if held != [1]:
            raise RuntimeError(f"schedulers found: {held}; give one --concurrency a run")
    works = [
        work.cut(wanted.tokens)
        for work in request_set(traces, wanted.requests, worker.vocabulary_of(asked.arguments), asked.seed)
    ]
    asked_for = [
        (
            {"prompt_token_ids": list(work.prompt)},
            SamplingParams(
                temperature=0.0,
                max_tokens=work.trace.tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            ),
        )
        for work in works
    ]
    before, engine = _counters(llm), llm.llm_engine
    began = time.perf_counter()
    tally = Tally(len(works), wanted.concurrency, began)
    for number, (prompt, sampling) in enumerate(asked_for):
        engine.add_request(f"{began}/{number}", prompt, sampling)
    while engine.has_unfinished_requests():
        told = engine.step()
        emitted = sum(len(one.outputs[0].token_ids) for one in told)
        tally.count(emitted, ended=sum(one.finished for one in told), now_s=time.perf_counter())
    wall = time.perf_counter() - began
    verifications, drafted, accepted = (
        None if one is None or two is None else two - one
        for one, two in zip(before, _counters(llm), strict=True)
    )
    return Served(
        concurrency=wanted.concurrency,
        requests=wanted.requests,
        variant=wanted.variant,
        tokens=tally.tokens,
        wall_s=wall,
        full_tokens=tally.full[0],
        full_s=tally.full[1],
        verifications=verifications,
        drafted=drafted,
        accepted=accepted,
    )


def _counters(llm: Any) -> list[float | None]:
    return [worker.counted(llm, name) for name in (VERIFICATIONS, DRAFTED, ACCEPTED)]


def _main(asked: Asked) -> None:
    traces = read_traces(Path(asked.traces))[1]

    def answering(llm: Any) -> worker.Answer:
        def answer(line: dict[str, Any]) -> dict[str, Any]:
            served = serve(llm, asked, traces, msgspec.convert(line, Wanted))
            found: dict[str, Any] = msgspec.to_builtins(served)
            return found

        return answer

    worker.main(asked.arguments, answering)


if __name__ == "__main__":
    _main(msgspec.json.decode(sys.argv[1], type=Asked))
