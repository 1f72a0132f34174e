"""vLLM inside the measuring process: no HTTP between the clock and the engine.

Every arm is an engine of its own, so two of them must fit the memory together. Outputs arrive in
deltas, one an engine step; how many draft tokens a step verified is not told, so they are chunks.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from harness.backends.params import refuse_unknown
from harness.errors import BackendError, UsageError
from harness.models import resolve_model
from harness.plan import ArmSpec, Deployment
from harness.protocols import Clock, Exchange
from harness.records import Chunk, DecodeRequest, FinishReason

KNOWN = ("engine_args", "concurrency")
T = TypeVar("T")


class VllmEngineSession:
    """See `harness.protocols.ServerSession`."""

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        """Load an engine for each arm, in the order of the plan.

        Raises:
            UsageError: a parameter is wrong, or vLLM is not installed.
            BackendError: an engine did not start.
        """
        self._deployment = deployment
        self._settings = {arm.name: _settings(arm) for arm in arms}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engines: dict[str, Any] = {}
        self._serial = 0
        try:
            for arm in arms:
                self._engines[arm.name] = self._wait(self._open(arm.name))
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """Version, and the arguments each engine was given."""
        import vllm  # noqa: PLC0415 - optional and heavy

        return {
            "engine": "vLLM, in process",
            "version": str(vllm.__version__),
            "device": self._deployment.device,
            "arms": {name: {"engine_args": given} for name, (given, _) in self._settings.items()},
        }

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Empty the prefix cache, so that warm-up answers for nothing."""
        del requests
        self._wait(self._engines[arm].reset_prefix_cache())

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        """See `harness.protocols.ServerSession`; the prefix cache is emptied first."""
        self._wait(self._engines[arm].reset_prefix_cache())
        return self._wait(self._all(arm, requests, clock))

    def close(self) -> None:
        """End the engines and their processes."""
        for engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)

    async def _open(self, arm: str) -> Any:
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
            from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(f"vLLM cannot be imported: {error}; install specpilot-harness[vllm]") from None
        given, _ = self._settings[arm]
        deployment = self._deployment
        try:
            arguments = AsyncEngineArgs(
                **{
                    "model": str(resolve_model(deployment.target).path),
                    "dtype": deployment.target.dtype,
                    "max_model_len": deployment.context_length,
                    **given,
                }
            )
            return AsyncLLM.from_engine_args(arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BackendError(f"the engine of arm {arm} did not start: {error}") from None

    async def _all(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        places = asyncio.Semaphore(self._settings[arm][1])
        origin = clock.monotonic_ns()

        async def one(request: DecodeRequest) -> Exchange:
            async with places:
                return await self._one(arm, request, clock, origin)

        return list(await asyncio.gather(*map(one, requests)))

    async def _one(self, arm: str, request: DecodeRequest, clock: Clock, origin: int) -> Exchange:
        from vllm.inputs import TokensPrompt  # noqa: PLC0415

        self._serial += 1
        sent = clock.monotonic_ns()
        ids: list[int] = []
        chunks: list[Chunk] = []
        text = ""
        last: Any = None
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt_token_ids))
        try:
            stream = self._engines[arm].generate(prompt, _sampling(request), f"{arm}-{self._serial}")
            async for output in stream:
                last = output.outputs[0]
                if last.token_ids:
                    ids.extend(last.token_ids)
                    chunks.append(Chunk(num_tokens=len(last.token_ids), at_ns=clock.monotonic_ns() - sent))
                text += last.text
        except (ValueError, RuntimeError) as error:
            ended = clock.monotonic_ns() - sent
            return Exchange(sent_ns=sent - origin, end_ns=ended, error=f"{type(error).__name__}: {error}")
        reason: FinishReason | None = None
        if last is not None and last.finish_reason in ("stop", "length"):
            reason = "stop" if last.finish_reason == "stop" else "length"
        return Exchange(
            sent_ns=sent - origin,
            end_ns=chunks[-1].at_ns if chunks else clock.monotonic_ns() - sent,
            token_ids=tuple(ids),
            chunks=tuple(chunks),
            text=text,
            finish_reason=reason,
            stop_reason=None if last is None else last.stop_reason,
            error=None if reason is not None else "the engine ended the request without a finish reason",
        )

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> VllmEngineSession:
    """Load the engines.

    Args:
        deployment: target, dtype, context.
        arms: `params`: `engine_args` (a JSON object of vLLM's own engine arguments, such as
            `speculative_config`), `concurrency` (requests in flight).

    Raises:
        UsageError: a parameter is wrong, or vLLM is not installed.
        BackendError: an engine did not start.
    """
    return VllmEngineSession(deployment, arms)


def _settings(arm: ArmSpec) -> tuple[dict[str, Any], int]:
    where = f"arms[{arm.name}].params"
    refuse_unknown(arm, KNOWN, "an engine")
    given = arm.params.get("engine_args", "{}")
    try:
        found = json.loads(given) if isinstance(given, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{where}: `engine_args` must be a JSON object in text, got {given!r}")
    concurrency = arm.params.get("concurrency", 1)
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise UsageError(f"{where}: `concurrency` must be an integer of at least 1, got {concurrency!r}")
    return found, concurrency


def _sampling(request: DecodeRequest) -> Any:
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    given = request.sampling
    return SamplingParams(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        seed=request.seed,
        min_tokens=given.min_tokens,
        stop=list(given.stop),
        stop_token_ids=list(given.stop_token_ids),
        ignore_eos=given.ignore_eos,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        repetition_penalty=given.repetition_penalty,
        output_kind=RequestOutputKind.DELTA,
    )
