"""Stock behind a server: forces tokens through it by `prompt_logprobs`, or by `echo`.

What comes back are log-probabilities of the best tokens and of the forced one. Differences between
them are those of logits, which is all that the rule for greedy output looks at; tokens that the
server does not tell are below those it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidRun, UsageError
from harness.load.capabilities import ask, normalise
from harness.load.wire import Capabilities
from harness.models import resolve_model
from harness.plan import Deployment

TOP = 5  # best tokens asked for at each position; vLLM allows 20 unless told otherwise
UNTOLD = float(np.finfo(np.float32).min)  # of a token the server does not tell
ROWS = 64  # positions of one chunk handed out
STEPS = 64  # tokens of one decode
TIMEOUT_S = 600.0
Array = npt.NDArray[np.float32]
Entry = Mapping[int, float]  # token id -> log-probability


def open_scorer(deployment: Deployment) -> ServerScorer:
    """Ask the server at `stock_url` what it can.

    Raises:
        UsageError: `stock_url` is missing, nothing answers there, or it cannot force tokens.
        ModelError: the target's configuration cannot be read.
    """
    if deployment.stock_url is None:
        raise UsageError("deployment `stock_url` is missing: the address of the server that forces tokens")
    base = normalise(deployment.stock_url)
    return ServerScorer(base, ask(base), resolve_model(deployment.target).vocab_size)


class ServerScorer:
    """See `harness.protocols.Scorer`."""

    def __init__(self, base: str, capabilities: Capabilities, vocab_size: int) -> None:
        """Choose the way tokens are forced.

        Raises:
            UsageError: the server's API has no way that gives token ids.
        """
        self._url = f"{base}/v1/completions"
        self._capabilities = capabilities
        self._vocab_size = vocab_size
        if not capabilities.knows("return_tokens_as_token_ids"):
            raise UsageError(
                f"{base} cannot name tokens by id in log-probabilities (no `return_tokens_as_token_ids`); "
                "give the model's folder with --model to force tokens through transformers"
            )
        self._by_prompt_logprobs = capabilities.knows("prompt_logprobs")

    def describe(self) -> dict[str, Any]:
        """Which server, and how it was asked."""
        way = "prompt_logprobs" if self._by_prompt_logprobs else "echo"
        return {
            "implementation": f"server, by {way} of the {TOP} best tokens",
            "url": self._url,
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
            entries = self._forced((*prompt_token_ids, *token_ids[:end]), end - start)
            for first in range(0, len(entries), ROWS):
                yield self._rows(entries[first : first + ROWS])

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """See `harness.protocols.Scorer`; ends where the server ends the output."""
        ids = list(prompt_token_ids)
        while True:
            choice = self._ask(ids, STEPS, logprobs=TOP)
            told = [_entry(position) for position in choice["logprobs"]["top_logprobs"]]
            for entry in told:
                token = min(entry, key=lambda one: (-entry[one], one))
                ids.append(token)
                yield token, self._rows([entry])[0]
            if choice["finish_reason"] != "length" or not told:
                return

    def _forced(self, ids: Sequence[int], count: int) -> list[Entry]:
        """Log-probabilities at the last `count` positions of a sequence."""
        longest = self._capabilities.max_model_len
        if longest is not None and len(ids) >= longest:  # no room for the token every request must emit
            step = self._ask(ids[:-1], 1, logprobs=TOP)["logprobs"]["top_logprobs"][0]
            before = self._forced(ids[:-1], count - 1) if count > 1 else []
            return [*before, _entry(step)]
        if self._by_prompt_logprobs:
            told = self._ask(ids, 1, prompt_logprobs=TOP)["prompt_logprobs"]
            return [_prompt_entry(position) for position in told[len(ids) - count : len(ids)]]
        echoed = self._ask(ids, 1, logprobs=TOP, echo=True)["logprobs"]
        places = range(len(ids) - count, len(ids))
        return [
            _entry(echoed["top_logprobs"][n]) | {ids[n]: float(echoed["token_logprobs"][n])} for n in places
        ]

    def _rows(self, entries: Sequence[Entry]) -> Array:
        rows = np.full((len(entries), self._vocab_size), UNTOLD, dtype=np.float32)
        for row, entry in zip(rows, entries, strict=True):
            row[list(entry)] = list(entry.values())
        return rows

    def _ask(self, ids: Sequence[int], max_tokens: int, **more: Any) -> Any:
        """One completion, not streamed; its first choice.

        Raises:
            InvalidRun: the server refuses, or its answer lacks what was asked for.
        """
        body = {
            "model": self._capabilities.model,
            "prompt": list(ids),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "return_tokens_as_token_ids": True,
            **more,
        }
        data = json.dumps(body).encode()
        request = Request(self._url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - the scheme was checked
                choice = json.loads(response.read())["choices"][0]
                for field in ("prompt_logprobs", "logprobs"):
                    if field in more and choice.get(field) is None:
                        raise InvalidRun(f"{self._url} gives no `{field}`: tokens cannot be forced there")
        except HTTPError as error:
            told = " ".join(error.read().decode("utf-8", errors="replace").split())[:300]
            raise InvalidRun(f"{self._url} refuses to force tokens: HTTP {error.code}: {told}") from None
        except (URLError, TimeoutError, OSError) as error:
            raise InvalidRun(f"{self._url} stopped answering: {error}; start it and run `check`") from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InvalidRun(f"{self._url} gave no completion: {error}") from None
        return choice


def _prompt_entry(position: Mapping[str, Mapping[str, Any]]) -> Entry:
    """As vLLM spells it: {"id": {"logprob": x, ...}}."""
    return {int(token): float(told["logprob"]) for token, told in position.items()}


def _entry(position: Mapping[str, float]) -> dict[int, float]:
    """{"token_id:17": x}."""
    return {int(token.removeprefix("token_id:")): float(value) for token, value in position.items()}
