"""Ways to have a server tell log-probabilities of given tokens, and of its own greedy steps.

Each server spells it otherwise: vLLM `prompt_logprobs` or OpenAI's `echo` on the completions API,
SGLang its native `/generate`. A position comes back as {token id: log-probability} of the best
tokens and of the forced one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import InvalidRun, UsageError
from harness.load.wire import Capabilities, neutral_sampling

TIMEOUT_S = 600.0
NEUTRAL = {  # SGLang's own names: no preferred parameter of the server can act
    **{"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
}
Position = dict[int, float]  # token id -> log-probability


class Way(Protocol):
    """One server's way."""

    name: str

    def forced(self, ids: Sequence[int], count: int) -> list[Position]:
        """What is told before each of the last `count` tokens of a sequence, the token itself included.

        Raises:
            InvalidRun: the server refuses, or its answer lacks what was asked for.
        """
        ...

    def steps(self, ids: Sequence[int], count: int) -> tuple[list[Position], bool]:
        """What is told at up to `count` greedy steps after a sequence, and whether the output ended.

        Raises:
            InvalidRun: see `forced`.
        """
        ...


def choose_way(base: str, capabilities: Capabilities, top: int) -> Way:
    """The way a server can be asked, tried once.

    Args:
        base: URL of the server, without /v1.
        capabilities: what it says of itself.
        top: best tokens wanted at each position.

    Raises:
        UsageError: it has no way that names tokens by id, or refuses so many tokens.
    """
    way: Way
    if capabilities.knows("return_tokens_as_token_ids"):
        kind = PromptLogprobs if capabilities.knows("prompt_logprobs") else Echo
        way = kind(base, capabilities, top)
    elif capabilities.native_generate:
        way = Generate(base, top)
    else:
        raise UsageError(
            f"{base} cannot name tokens by id in log-probabilities (no `return_tokens_as_token_ids`, no "
            "native /generate); give the model's folder with --model and --force transformers"
        )
    try:
        told = way.forced((0, 1), 1)
    except InvalidRun as refusal:
        raise UsageError(
            f"{refusal}; it was asked for the {top} best tokens of a position: start the server with "
            f"--max-logprobs {top} or more, ask for a smaller --top-k, or use --force transformers"
        ) from None
    if len(told) != 1 or len(told[0]) < top:
        raise UsageError(
            f"{base} tells fewer than the {top} best tokens of a position; ask for a smaller --top-k, or use "
            "--force transformers"
        )
    return way


class _Completions:
    """What both ways over the completions API share."""

    def __init__(self, base: str, capabilities: Capabilities, top: int) -> None:
        self._url = f"{base}/v1/completions"
        self._top = top
        self._body = {
            "model": capabilities.model,
            "temperature": 0.0,
            "return_tokens_as_token_ids": True,
            **neutral_sampling(capabilities),
        }

    def steps(self, ids: Sequence[int], count: int) -> tuple[list[Position], bool]:
        """See `Way`."""
        choice = self._ask(ids, count, logprobs=self._top)
        try:
            told = [_named(position) for position in choice["logprobs"]["top_logprobs"]]
            return told, choice["finish_reason"] != "length"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _no_completion(self._url, error) from None

    def _ask(self, ids: Sequence[int], max_tokens: int, **more: Any) -> Any:
        """The first choice of one completion, not streamed."""
        answer = post(self._url, {**self._body, "prompt": list(ids), "max_tokens": max_tokens, **more})
        try:
            return answer["choices"][0]
        except (KeyError, IndexError, TypeError) as error:
            raise _no_completion(self._url, error) from None


class PromptLogprobs(_Completions):
    """vLLM's `prompt_logprobs`: [null, {"id": {"logprob": x, ...}}, ...], one entry a prompt token."""

    name = "prompt_logprobs"

    def forced(self, ids: Sequence[int], count: int) -> list[Position]:
        """See `Way`."""
        choice = self._ask(ids, 1, prompt_logprobs=self._top)
        try:
            told = choice["prompt_logprobs"][len(ids) - count : len(ids)]
            return [{int(token): float(one["logprob"]) for token, one in entry.items()} for entry in told]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _no_completion(self._url, error) from None


class Echo(_Completions):
    """OpenAI's `echo`: the prompt's own log-probabilities stand before those of the output."""

    name = "echo"

    def forced(self, ids: Sequence[int], count: int) -> list[Position]:
        """See `Way`."""
        choice = self._ask(ids, 1, logprobs=self._top, echo=True)
        try:
            told = choice["logprobs"]
            return [
                _named(told["top_logprobs"][n]) | {ids[n]: float(told["token_logprobs"][n])}
                for n in range(len(ids) - count, len(ids))
            ]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise _no_completion(self._url, error) from None


class Generate:
    """SGLang's native `/generate`.

    `meta_info.input_token_logprobs` holds [log-probability, id, text] of the prompt tokens from
    `logprob_start_len` on, the first of them without a value; `input_top_logprobs` the same of the
    best tokens at each of these places; `output_top_logprobs` that of every step. The forced tokens'
    ids are ours: the server clips the highest id of the vocabulary in what it tells.
    """

    name = "/generate"

    def __init__(self, base: str, top: int) -> None:
        """Take the server's address and the number of best tokens wanted."""
        self._url = f"{base}/generate"
        self._top = top

    def forced(self, ids: Sequence[int], count: int) -> list[Position]:
        """See `Way`."""
        meta = self._ask(ids, 1, len(ids) - count - 1)["meta_info"]
        try:
            own, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
            if not len(own) == len(best) == count:
                raise _no_completion(self._url, f"{len(own)} log-probabilities for {count} tokens")
            return [
                _listed(entry) | {token: float(told[0])}
                for entry, told, token in zip(best, own, ids[len(ids) - count :], strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _no_completion(self._url, error) from None

    def steps(self, ids: Sequence[int], count: int) -> tuple[list[Position], bool]:
        """See `Way`."""
        meta = self._ask(ids, count, len(ids) - 1)["meta_info"]
        try:
            told = [_listed(entry) for entry in meta["output_top_logprobs"]]
            return told, meta["finish_reason"]["type"] != "length"
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _no_completion(self._url, error) from None

    def _ask(self, ids: Sequence[int], max_tokens: int, start: int) -> Any:
        answer = post(
            self._url,
            {
                "input_ids": list(ids),
                "sampling_params": {**NEUTRAL, "temperature": 0.0, "max_new_tokens": max_tokens},
                "stream": False,
                "return_logprob": True,
                "logprob_start_len": max(0, start),
                "top_logprobs_num": self._top,
            },
        )
        if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
            raise _no_completion(self._url, "no `meta_info`")
        return answer


def post(url: str, body: Mapping[str, Any]) -> Any:
    """The JSON that answers one request.

    Raises:
        InvalidRun: the server refuses, does not answer, or sends no JSON.
    """
    data = json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - `ask` has checked the scheme
            return json.load(response)
    except HTTPError as error:
        told = " ".join(error.read(500).decode("utf-8", errors="replace").split())
        raise InvalidRun(f"{url} refuses to force tokens: HTTP {error.code}: {told}") from None
    except (URLError, TimeoutError, OSError) as error:
        raise InvalidRun(f"{url} stopped answering: {error}; start it and run `check`") from None
    except ValueError as error:
        raise _no_completion(url, error) from None


def _named(position: Mapping[str, float]) -> Position:
    """{"token_id:17": x}."""
    return {int(token.removeprefix("token_id:")): float(value) for token, value in position.items()}


def _listed(position: Sequence[Sequence[Any]]) -> Position:
    """[[x, 17, "text"], ...]."""
    return {int(entry[1]): float(entry[0]) for entry in position}


def _no_completion(url: str, why: object) -> InvalidRun:
    return InvalidRun(f"{url} gave no completion with log-probabilities: {why}")
