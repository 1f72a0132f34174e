"""One reference engine in a process of its own: `python -m ...worker ARGUMENTS`, a JSON object (`Asked`).

Speaks the lines of vLLM's worker (`weight12.plugin.step_times.worker`): `Facts` when it is ready, then a
`Call` for each {"batch", "prompt", "output"}; {"error"} is its last line if something fails.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO

import msgspec

from reference_mechanisms.engine.fitting import WeightFormat
from reference_mechanisms.weight12.plugin.step_times.engine import Facts
from reference_mechanisms.weight12.plugin.step_times.steps import Call


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which engine to be.

    Attributes:
        shape: published shape of the target, with dummy weights.
        weights: format of target and drafter.
        drafts: of a DFlash drafter in every step; 0 decodes autoregressively.
        length: acceptance length that is replayed.
        positions: of the longest request.
        seed: of weights and prompts.
    """

    shape: str
    weights: WeightFormat
    drafts: int
    length: float
    positions: int
    seed: int = 0


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call."""

    batch: int
    prompt: int
    output: int


Answer = Callable[[list[list[int]], int], Call]
Engine = tuple[Facts, int, Answer]  # what it is, its vocabulary, what decodes


def main(asked: Asked, start: Callable[[Asked], Engine], lines: IO[bytes], answers: IO[bytes]) -> None:
    """Start the engine and serve until the input ends."""
    try:
        facts, vocabulary, call = start(asked)
        _tell(answers, facts)
        rng = random.Random(asked.seed)  # noqa: S311 - prompts of dummy weights
        for line in lines:
            wanted = msgspec.json.decode(line, type=Wanted)
            prompts = [[rng.randrange(vocabulary) for _ in range(wanted.prompt)] for _ in range(wanted.batch)]
            _tell(answers, call(prompts, wanted.output))
    except Exception as error:
        traceback.print_exc()
        _tell(answers, {"error": f"{type(error).__name__}: {error}"})
        raise


def _tell(answers: IO[bytes], what: object) -> None:
    answers.write(msgspec.json.encode(what) + b"\n")
    answers.flush()


def start(asked: Asked) -> Engine:
    """The engine on this machine's GPU.

    Raises:
        TargetError: the shape is unknown or does not fit.
        DrafterError: no drafter of this shape is known.
    """
    import torch  # noqa: PLC0415 - its failure is an answer

    from reference_mechanisms.engine.bench import engines  # noqa: PLC0415
    from reference_mechanisms.engine.beside_vllm.resident import Resident  # noqa: PLC0415

    began = time.perf_counter()
    sizes = engines.Sizes(asked.positions, asked.drafts + 1)
    target = engines.dummy_target(asked.shape, asked.weights, asked.seed, sizes, torch.device("cuda"))
    weights = torch.cuda.memory_allocated()
    drafter = None
    if asked.drafts:
        drafter = engines.dummy_drafter(asked.shape, target, asked.weights, asked.drafts, asked.seed + 1)
    engine = Resident(
        target,
        asked.positions,
        drafter=drafter,
        drafts=asked.drafts,
        length=asked.length,
        seed=asked.seed,
    )
    facts = Facts(
        packed_layers=target.config.layers if asked.weights == "weight12" else 0,
        layouts=[target.linear_kernel],
        parameter_gb=weights / 1e9,
        device=torch.cuda.get_device_name(),
        vllm="none: the reference engine",
        torch=str(torch.__version__),
        cudagraph_mode="one graph a step",
        async_scheduling=True,
        ready_s=time.perf_counter() - began,
    )
    return facts, target.config.vocab_size, torch.inference_mode()(engine.call)


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error
    main(msgspec.json.decode(sys.argv[1], type=Asked), start, sys.stdin.buffer, channel)
