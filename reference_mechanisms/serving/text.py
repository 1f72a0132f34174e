"""Text of a prompt to token ids, and token ids to text as they come.

A stream tells text that later tokens cannot change: not half a character, and nothing that may turn
out to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from reference_mechanisms.serving.errors import Refusal

UNFINISHED = "\ufffd"  # what a decoder gives for bytes that are no character yet
Decode = Callable[[Sequence[int]], str]  # visible text of token ids, special tokens left out


class Text(Protocol):
    """The target's tokenizer, as far as a server needs it; the event loop alone calls it."""

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of text, with the special tokens that the tokenizer puts around it, or without."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a chat and of the head of the answer, by the target's template.

        Raises:
            Refusal: there is no template, or it refuses the messages.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Visible text: special tokens left out, white space as it is."""
        ...


class HuggingFaceText:
    """A tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a tokenizer that is loaded."""
        self._tokenizer = tokenizer

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """See `Text`."""
        return tuple(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """See `Text`; the template writes every special token itself."""
        from jinja2 import TemplateError  # noqa: PLC0415 - only a chat needs it

        template = self._tokenizer.chat_template
        if template is None:
            raise Refusal(
                "`messages`: the target has no chat template; send `prompt` to /v1/completions", "messages"
            )
        known = template if isinstance(template, str) else template.get("default", "")
        options = {"enable_thinking": False} if "enable_thinking" in known else {}
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(map(dict, messages)), add_generation_prompt=True, tokenize=False, **options
            )
        except TemplateError as error:
            raise Refusal(
                f"`messages`: the target's chat template refuses them: {error}", "messages"
            ) from None
        return self.encode(rendered, special=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Text`."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class TextStream:
    """The text of one output, piece by piece; pieces together are the text of the whole.

    Only ids since the last whole character are decoded, with those of the piece before them, so that a
    decoder that looks at the neighbour to the left gives what it gives for the whole.
    """

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        """Begin; `stops` are the strings that end the output."""
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._before, self._settled = 0, 0  # where the piece before begins, and where it ends
        self._held = ""  # settled text that may be the beginning of a stop string
        self._told = 0  # characters handed out

    def push(self, token_ids: Sequence[int]) -> str:
        """Take tokens in; the text that is certain by now and was not told yet."""
        self._ids += token_ids
        known = self._decode(self._ids[self._before : self._settled])
        now = self._decode(self._ids[self._before :])
        if len(now) <= len(known) or now.endswith(UNFINISHED):
            return ""
        self._before, self._settled = self._settled, len(self._ids)
        text = self._held + now[len(known) :]
        kept = _may_begin(text, self._stops)
        told, self._held = text[: len(text) - kept], text[len(text) - kept :]
        self._told += len(told)
        return told

    def finish(self, text: str) -> str:
        """The rest, given the text of the whole output, cut at its stop."""
        return text[self._told :]


def _may_begin(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of a text that a stop string begins with, whole stops left out."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    return next(
        (
            length
            for length in range(min(longest, len(text)), 0, -1)
            if any(stop.startswith(text[-length:]) for stop in stops)
        ),
        0,
    )
