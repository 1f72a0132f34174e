"""transformers' own `generate` as an arm: autoregressive, or assisted by prompt lookup.

The slowest engine a user can have and the one that everybody has. Tokens arrive in the bursts that
`generate` makes final together; how many it drafted it does not tell, so they are chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.backends.params import refuse_unknown
from harness.errors import BackendError, UsageError
from harness.models import ModelFolder, resolve_model
from harness.plan import ArmSpec, Deployment
from harness.protocols import Clock, Exchange
from harness.records import Chunk, DecodeRequest, FinishReason
from harness.tokenize import PromptTokenizer

MOST = 64  # draft tokens of prompt lookup


class _Recorder:
    """What `generate` calls with every burst; the first call is the prompt itself."""

    def __init__(self, clock: Clock, sent_ns: int) -> None:
        self._clock, self._sent = clock, sent_ns
        self._prompt_seen = False
        self.ids: list[int] = []
        self.chunks: list[Chunk] = []

    def put(self, value: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        new = [int(token) for token in value.reshape(-1).tolist()]
        self.ids.extend(new)
        self.chunks.append(Chunk(num_tokens=len(new), at_ns=max(1, self._clock.monotonic_ns() - self._sent)))

    def end(self) -> None:
        """Nothing is left over."""


class TransformersSession:
    """See `harness.protocols.ServerSession`; requests of a batch are decoded one after another."""

    def __init__(self, deployment: Deployment, model: ModelFolder, lookup: dict[str, int]) -> None:
        """Load the model once for all arms.

        Args:
            deployment: dtype, device, threads.
            model: the target's folder.
            lookup: draft tokens of prompt lookup by arm; 0 is autoregressive.
        """
        import torch  # noqa: PLC0415 - heavy: only the process that measures loads it
        from transformers import AutoModelForCausalLM  # noqa: PLC0415

        if deployment.threads is not None:
            torch.set_num_threads(deployment.threads)
        loaded = AutoModelForCausalLM.from_pretrained(
            model.path,
            dtype=getattr(torch, deployment.target.dtype),
            local_files_only=True,
            use_safetensors=True,
        )
        self._model: Any = loaded.eval().to(deployment.device)
        self._deployment = deployment
        self._eos = model.eos_token_ids
        self._tokenizer = PromptTokenizer(model.path)
        self._lookup = lookup

    def describe(self) -> dict[str, Any]:
        """Versions, device, and the drafts of each arm."""
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        cuda = self._deployment.device == "cuda"
        return {
            "engine": f"transformers.generate of {type(self._model).__name__}",
            "version": transformers.__version__,
            "torch": str(torch.__version__),
            "device": self._deployment.device,
            "gpu": torch.cuda.get_device_name() if cuda else None,
            "dtype": self._deployment.target.dtype,
            "arms": {name: {"prompt_lookup": drafts} for name, drafts in self._lookup.items()},
        }

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Nothing is needed."""

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        """See `harness.protocols.ServerSession`."""
        began = clock.monotonic_ns()
        return [self._one(arm, request, clock, began) for request in requests]

    def close(self) -> None:
        """Let go of the weights."""
        del self._model

    def _one(self, arm: str, request: DecodeRequest, clock: Clock, began: int) -> Exchange:
        import torch  # noqa: PLC0415

        sampling = request.sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            raise BackendError(
                f"{request.request_id}: transformers has no `frequency_penalty` and no `presence_penalty`"
            )
        sent = clock.monotonic_ns()
        recorder = _Recorder(clock, sent)
        stops = (() if sampling.ignore_eos else self._eos, sampling.stop_token_ids)
        ends = [token for group in stops for token in group]
        ids = torch.tensor([request.prompt_token_ids], device=self._deployment.device)
        options: dict[str, Any] = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens or None,
            "repetition_penalty": sampling.repetition_penalty,
            "eos_token_id": ends or None,
            "pad_token_id": self._eos[0] if self._eos else 0,
            "do_sample": not sampling.greedy,
            "streamer": recorder,
        }
        if not sampling.greedy:
            torch.manual_seed(request.seed)
            options |= {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
            }
        if sampling.stop:
            options |= {"stop_strings": list(sampling.stop), "tokenizer": self._tokenizer.inner}
        if self._lookup[arm]:
            options["prompt_lookup_num_tokens"] = self._lookup[arm]
        with torch.inference_mode():
            self._model.generate(ids, **options)
        text = self._tokenizer.decode(recorder.ids)
        stop = next((one for one in sampling.stop if one in text), None)
        by_token = bool(recorder.ids) and recorder.ids[-1] in ends
        reason: FinishReason = "stop" if by_token or stop is not None else "length"
        return Exchange(
            sent_ns=sent - began,
            end_ns=recorder.chunks[-1].at_ns if recorder.chunks else clock.monotonic_ns() - sent,
            token_ids=tuple(recorder.ids),
            chunks=tuple(recorder.chunks),
            text=text if stop is None or by_token else text[: text.index(stop)],
            finish_reason=reason,
            stop_reason=recorder.ids[-1] if by_token else stop,
        )


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> TransformersSession:
    """Load the target once for all arms.

    Args:
        deployment: target, device, threads.
        arms: `params`: `prompt_lookup`, draft tokens of prompt lookup (0, the default, is
            autoregressive).

    Raises:
        ModelError: the target cannot be used.
        UsageError: an arm's parameter is unknown or out of range.
    """
    lookup: dict[str, int] = {}
    for arm in arms:
        refuse_unknown(arm, ("prompt_lookup",), "transformers")
        drafts = arm.params.get("prompt_lookup", 0)
        if not isinstance(drafts, int) or isinstance(drafts, bool) or not 0 <= drafts <= MOST:
            raise UsageError(
                f"arms[{arm.name}].params: `prompt_lookup` must be an integer in 0..{MOST}, got {drafts!r}"
            )
        lookup[arm.name] = drafts
    return TransformersSession(deployment, resolve_model(deployment.target), lookup)
