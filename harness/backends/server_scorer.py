"""Stock behind a server: forces tokens through it, in whichever way it can be asked.

What comes back are log-probabilities of the best tokens and of the forced one. Differences between
them are those of logits, which is all that the rule for greedy output looks at, and all that the
distribution after top-k needs while top-k is within what is told; other tokens are below those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError
from harness.load.capabilities import ask, normalise
from harness.load.forcing import Position, Way, choose_way
from harness.load.wire import Capabilities
from harness.models import ModelFolder, resolve_model
from harness.plan import Deployment
from harness.protocols import UNTOLD

ROWS = 64  # positions of one chunk handed out
STEPS = 64  # tokens of one decode
Array = npt.NDArray[np.float32]


def open_scorer(deployment: Deployment, model: ModelFolder | None = None) -> ServerScorer:
    """Ask the server at `stock_url` what it can, and try it.

    Args:
        deployment: names the server, and how many tokens it is asked to tell.
        model: the target's folder; None finds it.

    Raises:
        UsageError: `stock_url` is missing, nothing answers there, or it cannot force tokens.
        ModelError: the target's configuration cannot be read.
    """
    if deployment.stock_url is None:
        raise UsageError("deployment `stock_url` is missing: the address of the server that forces tokens")
    base = normalise(deployment.stock_url)
    folder = model if model is not None else resolve_model(deployment.target)
    return ServerScorer(base, ask(base), folder.vocab_size, deployment.stock_logprobs)


class ServerScorer:
    """See `harness.protocols.Scorer`."""

    def __init__(self, base: str, capabilities: Capabilities, vocab_size: int, top: int) -> None:
        """Choose the way tokens are forced.

        Raises:
            UsageError: the server has no way that gives token ids, or tells fewer than `top`.
        """
        self._base = base
        self._capabilities = capabilities
        self._vocab_size = vocab_size
        self._top = top
        self._way: Way = choose_way(base, capabilities, top)

    def describe(self) -> dict[str, Any]:
        """Which server, and how it was asked."""
        return {
            "implementation": f"server, by {self._way.name} of the {self._top} best tokens",
            "url": self._base,
            "model": self._capabilities.model,
            "version": self._capabilities.version,
            "shapes": ["one-token steps", "prefills that grow step by step", "one prefill"],
        }

    def logits(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], rows: int | None
    ) -> Iterator[Array]:
        """See `harness.protocols.Scorer`; a server has no verify shape of its own to offer.

        `rows` = n forces the tokens in prefills that each end n tokens later than the one before.
        """
        width = rows if rows is not None else max(1, len(token_ids))
        for start in range(0, len(token_ids), width):
            end = min(start + width, len(token_ids))
            told = self._forced((*prompt_token_ids, *token_ids[:end]), end - start)
            for first in range(0, len(told), ROWS):
                yield self._rows(told[first : first + ROWS])

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """See `harness.protocols.Scorer`; ends where the server ends the output."""
        ids = list(prompt_token_ids)
        while True:
            told, ended = self._way.steps(ids, STEPS)
            for position in told:
                token = min(position, key=lambda one: (-position[one], one))
                ids.append(token)
                yield token, self._rows([position])[0]
            if ended or not told:
                return

    def _forced(self, ids: Sequence[int], count: int) -> list[Position]:
        """What is told at the last `count` positions of a sequence."""
        longest = self._capabilities.max_model_len
        if longest is not None and len(ids) >= longest:  # no room for the token every request must emit
            step, _ = self._way.steps(ids[:-1], 1)
            before = self._forced(ids[:-1], count - 1) if count > 1 else []
            return [*before, *step]
        return self._way.forced(ids, count)

    def _rows(self, told: Sequence[Position]) -> Array:
        rows = np.full((len(told), self._vocab_size), UNTOLD, dtype=np.float32)
        for row, position in zip(rows, told, strict=True):
            row[list(position)] = list(position.values())
        return rows
