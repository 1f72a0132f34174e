"""One vLLM engine: `python -m ...worker ARGUMENTS`, a JSON object for `vllm.LLM`.

Answers with one JSON line when it is ready (`Facts`), then reads {"batch", "prompt", "output"} lines from its
standard input and answers each with a `Call`; {"error"} is its last line if something fails. What vLLM prints
goes to standard error. When the input ends, the engine and all its processes end.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

DRAFTS = "vllm:spec_decode_num_drafts"
Answer = Callable[[dict[str, Any]], dict[str, Any]]  # to one line


def main(arguments: dict[str, Any], answering: Callable[[Any], Answer] | None = None) -> None:
    """Start the engine and serve until the input ends.

    Args:
        arguments: of `vllm.LLM`.
        answering: gives, of an engine, what answers a line; None: `Call`s.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Its own file object: vLLM forks, and a child closes `sys.stdin`.
    threading.Thread(target=_listen, args=(os.fdopen(os.dup(0), "rb"), asked), daemon=True).start()
    try:
        began = time.perf_counter()
        llm = _start(arguments)
        _tell(answers, {**_facts(llm), "ready_s": time.perf_counter() - began})
        answer = _calls(llm, arguments) if answering is None else answering(llm)
        while True:
            _tell(answers, answer(json.loads(asked.get())))
    except Exception as error:
        traceback.print_exc()
        _tell(answers, {"error": f"{type(error).__name__}: {error}"})
        raise


def vocabulary_of(arguments: dict[str, Any]) -> int:
    """Of the model that an engine is started with."""
    found: int = json.loads((Path(arguments["model"]) / "config.json").read_text())["vocab_size"]
    return found


def _calls(llm: Any, arguments: dict[str, Any]) -> Answer:
    vocabulary, drafted = vocabulary_of(arguments), "speculative_config" in arguments
    rng = random.Random(0)  # noqa: S311 - prompts of dummy weights

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        prompts = [
            [rng.randrange(vocabulary) for _ in range(request["prompt"])] for _ in range(request["batch"])
        ]
        return _timed(llm, prompts, request["output"], drafted)

    return answer


def _listen(source: IO[bytes], asked: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        asked.put(line)
    if os.getpgrp() == os.getpid():  # as it is started: vLLM's processes go too, whatever they do now
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _tell(answers: IO[str], what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")


def _start(arguments: dict[str, Any]) -> Any:
    from vllm import LLM  # noqa: PLC0415 - its failure is an answer

    return LLM(**arguments)


def _facts(llm: Any) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import vllm  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    from reference_mechanisms.weight12.plugin.step_times.contents import contents  # noqa: PLC0415

    config = llm.llm_engine.vllm_config
    return {
        **llm.apply_model(contents)[0],
        "device": str(current_platform.get_device_name()),
        "vllm": vllm.__version__,
        "torch": str(torch.__version__),
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
    }


def _timed(llm: Any, prompts: list[list[int]], output: int, drafted: bool) -> dict[str, Any]:
    """A `Call`, as JSON."""
    from vllm import SamplingParams  # noqa: PLC0415

    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    before = counted(llm, DRAFTS) if drafted else None
    began = time.perf_counter()
    outputs = llm.generate(inputs, sampling, use_tqdm=False)
    wall = time.perf_counter() - began
    after = counted(llm, DRAFTS) if drafted else None
    return {
        "batch": len(prompts),
        "output": output,
        "tokens": sum(len(one.outputs[0].token_ids) for one in outputs),
        "wall_s": wall,
        "drafts": None if before is None or after is None else after - before,
    }


def counted(llm: Any, name: str) -> float | None:
    """A counter of the engine; None: it has none of this name."""
    found = [float(one.value) for one in llm.get_metrics() if one.name == name]
    return sum(found) if found else None


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
