"""What sampling parameters do to raw logits, written once more, apart from every engine.

Engines count penalties per step instead of per token, or let EOS through before `min_tokens`; an
oracle that borrowed the engine's code would agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.records import Sampling

FORBIDDEN = np.finfo(np.float32).min  # finite, so that a gap to it can be written down


class Adjuster:
    """Turns raw logits of consecutive positions into those a token is chosen from.

    Order and definitions are those of OpenAI-compatible servers: the repetition penalty looks at
    prompt and output, divides positive logits and multiplies negative ones; frequency and presence
    penalties look at the output only and subtract; stop tokens are forbidden before `min_tokens`.
    """

    def __init__(self, sampling: Sampling, prompt_token_ids: Sequence[int], stop_ids: Sequence[int]) -> None:
        """Start before the first emitted token.

        Args:
            sampling: the request's parameters.
            prompt_token_ids: for the repetition penalty.
            stop_ids: ids that end the output (EOS among them unless ignored).
        """
        self._sampling = sampling
        self._prompt = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._stop_ids = np.asarray(sorted(set(stop_ids)), dtype=np.int64)
        self._counts: dict[int, int] = {}
        self._position = 0

    def adjusted(self, row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits [vocabulary] at the current position; the given row is left as it is."""
        sampling = self._sampling
        result = row.copy()
        emitted = np.fromiter(self._counts, dtype=np.int64, count=len(self._counts))
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(self._counts))
        if sampling.repetition_penalty != 1.0:
            seen = np.union1d(self._prompt, emitted)
            penalty = np.float32(sampling.repetition_penalty)
            result[seen] = np.where(result[seen] > 0, result[seen] / penalty, result[seen] * penalty)
        result[emitted] -= np.float32(sampling.frequency_penalty) * counts
        result[emitted] -= np.float32(sampling.presence_penalty)
        if self._position < sampling.min_tokens:
            result[self._stop_ids] = FORBIDDEN
        return result

    def emit(self, token_id: int) -> None:
        """Go on to the next position, after this token."""
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._position += 1
