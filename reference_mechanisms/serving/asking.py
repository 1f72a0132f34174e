"""From a checked body to a request of the engine. Pure, but for the seed of a request that names none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.serving.errors import Refusal, UnknownModel
from reference_mechanisms.serving.fields import (
    MIN_TEMPERATURE,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    TokenizeRequest,
)
from reference_mechanisms.serving.text import Text

DEFAULT_TOKENS = 16  # of a completion that does not say, as OpenAI has it
DEFAULT_TEMPERATURE = 1.0  # as OpenAI has it


class Served(NamedTuple):
    """What the server serves, as far as it bounds a request."""

    name: str  # what a client calls the model
    vocab_size: int
    context_length: int  # tokens: prompt plus output
    eos_token_ids: tuple[int, ...]


class Asked(NamedTuple):
    """A request as the engine takes it, and how it is to be answered."""

    request: Request
    chat: bool
    stream: bool
    include_usage: bool
    token_ids: bool  # tell ids beside text


def of_completion(
    body: CompletionRequest, served: Served, text: Text, name: str, new_seed: Callable[[], int]
) -> Asked:
    """What a completion asks for.

    Args:
        body: checked.
        served: the model.
        text: its tokenizer.
        name: of the request.
        new_seed: gives the seed of a request that names none.

    Raises:
        Refusal: naming the field that does not fit the model or another field.
    """
    hold_model(body.model, served)
    special = body.add_special_tokens is not False
    prompt = _prompt(body.prompt, text, special=special)
    most = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    return _asked(body, prompt, most, served, name, new_seed)


def of_chat(
    body: ChatCompletionRequest, served: Served, text: Text, name: str, new_seed: Callable[[], int]
) -> Asked:
    """What a chat asks for; without a length it may use the context to its end. See `of_completion`."""
    hold_model(body.model, served)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise Refusal("`max_completion_tokens` differs from `max_tokens`; give one", "max_completion_tokens")
    prompt = text.encode_chat(_turns(body.messages))
    given = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    most = max(1, served.context_length - len(prompt)) if given is None else given
    return _asked(body, prompt, most, served, name, new_seed)


def of_tokenize(body: TokenizeRequest, served: Served, text: Text) -> tuple[int, ...]:
    """Token ids of a text or of a chat.

    Raises:
        Refusal: naming the field.
    """
    hold_model(body.model, served)
    if (body.prompt is None) == (body.messages is None):
        raise Refusal("give exactly one of `prompt` and `messages`", "prompt")
    if body.messages is not None:
        return text.encode_chat(_turns(body.messages))
    return text.encode(body.prompt or "", special=body.add_special_tokens is not False)


def of_detokenize(body: DetokenizeRequest, served: Served, text: Text) -> str:
    """Visible text of token ids.

    Raises:
        Refusal: naming the field.
    """
    hold_model(body.model, served)
    _hold_ids(body.tokens, served, "tokens")
    return text.decode(body.tokens)


def hold_model(model: str | None, served: Served) -> None:
    """Refuse another model than the one that is served.

    Raises:
        UnknownModel: it is another.
    """
    if model is not None and model != served.name:
        raise UnknownModel(f"`model` {model[:200]!r} is not served here; ask for {served.name!r}", "model")


def _asked(
    body: CompletionRequest | ChatCompletionRequest,
    prompt: tuple[int, ...],
    most: int,
    served: Served,
    name: str,
    new_seed: Callable[[], int],
) -> Asked:
    field = "messages" if isinstance(body, ChatCompletionRequest) else "prompt"
    _hold_prompt(prompt, most, served, field)
    if body.stream_options is not None and not body.stream:
        raise Refusal("`stream_options` needs `stream` = true", "stream_options")
    return Asked(
        Request(name=name, prompt=prompt, sampling=_sampling(body, most, served, new_seed)),
        chat=isinstance(body, ChatCompletionRequest),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        token_ids=bool(body.return_token_ids),
    )


def _sampling(
    body: CompletionRequest | ChatCompletionRequest, most: int, served: Served, new_seed: Callable[[], int]
) -> Sampling:
    temperature = DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise Refusal(
            f"`temperature` must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, got {temperature:g}",
            "temperature",
        )
    least = body.min_tokens or 0
    if least > most:
        raise Refusal(f"`min_tokens` = {least} is above `max_tokens` = {most}", "min_tokens")
    stop_ids = tuple(body.stop_token_ids or ())
    _hold_ids(stop_ids, served, "stop_token_ids")
    if len({*stop_ids, *served.eos_token_ids}) >= served.vocab_size:
        raise Refusal("`stop_token_ids` hold the whole vocabulary; leave some out", "stop_token_ids")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(
        max_tokens=most,
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=new_seed() if body.seed is None else body.seed,
        min_tokens=least,
        stop=stop,
        stop_token_ids=stop_ids,
        ignore_eos=bool(body.ignore_eos),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
    )


def _prompt(given: str | list[str | int | list[int]], text: Text, *, special: bool) -> tuple[int, ...]:
    """Token ids of one prompt, in any of the spellings that OpenAI has for it."""
    if isinstance(given, str):
        return text.encode(given, special=special)
    ids = [one for one in given if isinstance(one, int)]
    if len(ids) == len(given):
        return tuple(ids)
    if len(given) > 1:
        raise Refusal("`prompt` holds several prompts; send one a request", "prompt")
    (only,) = given
    return text.encode(only, special=special) if isinstance(only, str) else tuple(_list(only))


def _list(given: int | list[int]) -> list[int]:
    return [given] if isinstance(given, int) else given


def _hold_prompt(prompt: Sequence[int], most: int, served: Served, field: str) -> None:
    if not prompt:
        raise Refusal(f"`{field}` is empty; give at least one token", field)
    _hold_ids(prompt, served, field)
    if len(prompt) + most > served.context_length:
        asked = f"`{field}` of {len(prompt)} tokens and `max_tokens` = {most}"
        long = len(prompt) >= served.context_length
        raise Refusal(
            f"{asked} do not fit the context of {served.context_length}; shorten one of them",
            field if long else "max_tokens",
        )


def _hold_ids(ids: Sequence[int], served: Served, field: str) -> None:
    outside = next((token for token in ids if not 0 <= token < served.vocab_size), None)
    if outside is not None:
        raise Refusal(
            f"`{field}`: token {outside} is not in the vocabulary of {served.vocab_size}",
            field,
        )


def _turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [
        {
            "role": one.role,
            "content": one.content
            if isinstance(one.content, str)
            else "".join(part.text for part in one.content),
        }
        for one in messages
    ]
