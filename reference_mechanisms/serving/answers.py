"""Bodies of answers: whole ones and the chunks of a stream, as OpenAI spells them. Pure.

With `return_token_ids`, ids stand where vLLM puts them: `token_ids` in every choice, the prompt's in
`prompt_token_ids` of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from reference_mechanisms.request import Event
from reference_mechanisms.serving.asking import Asked, Served
from reference_mechanisms.serving.errors import Refusal

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Answering(NamedTuple):
    """What every body of one answer repeats."""

    asked: Asked
    model: str
    created: int  # seconds since the epoch

    @property
    def kind(self) -> str:
        """The name of the object that is answered."""
        return "chat.completion" if self.asked.chat else "text_completion"

    def chunk(self, event: Event, text: str, *, first: bool) -> Json:
        """One event of a stream."""
        choice: Json = {"index": 0}
        if self.asked.chat:
            role = {"role": "assistant"} if first else {}
            choice["delta"] = {**role, "content": text}
        else:
            choice["text"] = text
        choice |= _ending(event)
        if self.asked.token_ids:
            choice["token_ids"] = list(event.token_ids)
        body = self._body([choice], chunk=True)
        if first and self.asked.token_ids:
            where = body if self.asked.chat else choice
            where["prompt_token_ids"] = list(self.asked.request.prompt)
        return body

    def usage_chunk(self, emitted: int) -> Json:
        """The event that carries usage: no choices."""
        return {**self._body([], chunk=True), "usage": self._usage(emitted)}

    def whole(self, ids: Sequence[int], last: Event) -> Json:
        """The answer to a request that does not stream."""
        text, choice = last.text or "", Json(index=0)
        if self.asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice |= _ending(last)
        body = self._body([choice], chunk=False)
        if self.asked.token_ids:
            choice["token_ids"] = list(ids)
            where = body if self.asked.chat else choice
            where["prompt_token_ids"] = list(self.asked.request.prompt)
        return {**body, "usage": self._usage(len(ids))}

    def _body(self, choices: list[Json], *, chunk: bool) -> Json:
        kind = f"{self.kind}.chunk" if chunk and self.asked.chat else self.kind
        return {
            "id": self.asked.request.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _usage(self, emitted: int) -> Json:
        prompt = len(self.asked.request.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": emitted, "total_tokens": prompt + emitted}


def sse(body: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def refusal(error: Refusal) -> Json:
    """The body of an error, as OpenAI spells it; `param` is the field."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.field,
            "code": error.status,
        }
    }


def models(served: Served, root: str, created: int) -> Json:
    """The answer of `/v1/models`."""
    entry = {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "specpilot-harness",
        "root": root,
        "max_model_len": served.context_length,
    }
    return {"object": "list", "data": [entry]}


def _ending(event: Event) -> Json:
    return {"logprobs": None, "finish_reason": event.finish_reason, "stop_reason": event.stop_reason}
