"""Stock, independent of every engine under test: transformers' own model, eager, its own cache.

Sees token ids only. It shares no code with the reference engine, so a bug would have to be made
twice, in the same way, to stay hidden.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidRun, ModelError
from harness.models import ModelFolder, resolve_model
from harness.plan import Deployment

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 256 * 2**20  # float32 logits held at once


def open_scorer(deployment: Deployment, model: ModelFolder | None = None) -> TransformersScorer:
    """Load stock for this deployment, in its dtype, on its device.

    Args:
        deployment: target, dtype, device, context.
        model: the target's folder, already checked; None finds it and hashes its weights.

    Raises:
        ModelError: the target cannot be used, or is not made for so long a context.
        InvalidRun: the deployment's device is not there.
    """
    import torch  # noqa: PLC0415 - heavy: only the process that judges loads it

    if model is None:
        model = resolve_model(deployment.target)
    if deployment.context_length > model.context_length:
        raise ModelError(
            f"`context_length` = {deployment.context_length} of deployment {deployment.name} exceeds the "
            f"{model.context_length} positions the target was made for; lower it"
        )
    if deployment.device == "cuda" and not torch.cuda.is_available():
        raise InvalidRun(f"deployment {deployment.name} needs a CUDA device and none is visible")
    if deployment.threads is not None:
        torch.set_num_threads(deployment.threads)
    device: str = deployment.device
    if device == "remote":  # servers run the arms; stock runs here, on what this machine has
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return TransformersScorer(model, dtype=deployment.target.dtype, device=device)


class TransformersScorer:
    """See `harness.protocols.Scorer`."""

    def __init__(
        self, model: ModelFolder, *, dtype: str, device: str = "cpu", chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """Load the model with whatever class transformers has for it.

        Args:
            model: the target's folder.
            dtype: of weights and computation; logits are handed out as float32.
            device: "cpu" or "cuda".
            chunk_bytes: bound on the float32 logits of one chunk; a longer output is scored in
                several passes over one cache.
        """
        import torch  # noqa: PLC0415
        from transformers import AutoModelForCausalLM  # noqa: PLC0415

        with _quiet():
            loaded = AutoModelForCausalLM.from_pretrained(
                model.path, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
            )
        self._model: Any = loaded.eval().to(device)
        # Renamed in transformers 5.24; the old name will go.
        names = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._device = device
        self._dtype = dtype
        self._chunk = max(1, chunk_bytes // (4 * model.vocab_size))
        self._sha256 = model.sha256

    def describe(self) -> dict[str, Any]:
        """Everything that can change a rounding: two equal descriptions give equal logits."""
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        return {
            "implementation": f"transformers.{type(self._model).__name__}",
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),  # a subclass of str that no record can hold
            "dtype": self._dtype,
            "attention": self._model.config._attn_implementation,
            "device": torch.cuda.get_device_name() if self._device == "cuda" else _processor(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "weights_sha256": self._sha256,
        }

    def logits(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], rows: int | None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """See `harness.protocols.Scorer`.

        The first pass holds the prompt and predicts the first token, so with `rows` = n the passes
        after it have exactly n rows (the last one fewer).
        """
        if not token_ids:
            return
        cache = self._new_cache()
        first = min(self._chunk, len(token_ids)) if rows is None else 1
        yield self._forward((*prompt_token_ids, *token_ids[: first - 1]), cache, first)
        width = min(self._chunk, rows if rows is not None else self._chunk)
        for start in range(first - 1, len(token_ids) - 1, width):
            block = token_ids[start : min(start + width, len(token_ids) - 1)]
            yield self._forward(block, cache, len(block))

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """See `harness.protocols.Scorer`."""
        cache = self._new_cache()
        row = self._forward(prompt_token_ids, cache, 1)[0]
        while True:
            token = int(row.argmax())
            yield token, row
            row = self._forward((token,), cache, 1)[0]

    def _forward(self, ids: Sequence[int], cache: Any, keep: int) -> npt.NDArray[np.float32]:
        """One pass of the model; logits of the last `keep` rows."""
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            rows = torch.tensor([ids], dtype=torch.long, device=self._device)
            held = {self._cache_name: cache, "use_cache": True}
            found: torch.Tensor = self._model(input_ids=rows, logits_to_keep=keep, **held).logits
            array: npt.NDArray[np.float32] = found[0].to(torch.float32).cpu().numpy()
        return array

    def _new_cache(self) -> Any:
        from transformers import DynamicCache  # noqa: PLC0415

        return DynamicCache(config=self._model.config)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of transformers while loading; its setting is put back."""
    from transformers.utils import logging  # noqa: PLC0415

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _processor() -> str:
    """Model name of the processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
