"""Claude through the `anthropic` SDK: a stateless loop of our own over the Messages API, by the gateway.

One policy of trying again lies in the gateway; here only a turn whose stream broke is asked once more from
the last whole message. A refusal is an ordinary end. The worktree is emptied at the start, so that a
restarted explorer, answered from the gateway's transcripts, comes back to where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent_loop.explorers.guide import GUIDE, opening
from agent_loop.explorers.tools import TOOLS, Answer, Call, Toolbox
from agent_loop.explorers.workbench import Workbench
from agent_loop.gateway.starting import Door
from agent_loop.protocols import BudgetSpent, Desk
from agent_loop.records import Budget
from harness.errors import InvalidRun, ModelError

if TYPE_CHECKING:
    import anthropic

MODEL = "claude-opus-5-5"
MAX_TOKENS = 16_000  # of a turn
CONTEXT_TOKENS = 150_000  # of a prompt; beyond it old answers of tools are dropped
KEPT_MESSAGES = 8  # whose answers stay whole
BROKEN = 3  # streams in a row that may break
LONGER = 3  # turns in a row that may end at `MAX_TOKENS`
DROPPED = "(dropped to save room; ask again if it is needed)"
CACHED = {"type": "ephemeral"}


class ClaudeExplorer:
    """See `agent_loop.protocols.Explorer`."""

    def __init__(
        self,
        name: str,
        door: Door,
        *,
        model: str | None = None,
        context_tokens: int = CONTEXT_TOKENS,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keep the settings.

        Args:
            name: of the explorer.
            door: to the gateway.
            model: id; None takes the default. One without a price is refused by the gateway.
            context_tokens: prompt length beyond which old answers of tools are dropped.
            tell: hears why a search ended.
        """
        self._name = name
        self._door = door
        self._model = model or MODEL
        self._context = context_tokens
        self._tell = tell

    @property
    def name(self) -> str:
        """See `Explorer`."""
        return self._name

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """See `Explorer`.

        Raises:
            InvalidRun: the gateway is gone or the API fails for good.
            ModelError: the SDK is not installed.
        """
        sdk = _sdk()
        bench = Workbench(desk.worktree)
        bench.clear()
        box = Toolbox(desk, bench, self._name)
        door = self._door.attempt(f"seed-{seed}", budget)
        client = sdk.Anthropic(api_key=door.token, base_url=door.url, max_retries=0)
        first = opening(desk.brief, desk.recall(), desk.heard())
        messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": first}]}]
        with client:
            self._tell(self._converse(sdk, client, messages, box))

    def _converse(
        self, sdk: Any, client: anthropic.Anthropic, messages: list[dict[str, Any]], box: Toolbox
    ) -> str:
        """Turns until the model has ended; why it has."""
        longer = 0
        while True:
            message = self._turn(sdk, client, messages)
            content = message.to_dict()["content"]
            if message.stop_reason == "refusal":
                return "refusal"
            if not content:
                return f"an empty turn ({message.stop_reason})"
            messages.append({"role": "assistant", "content": content})
            calls = [Call(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"]
            reason = message.stop_reason
            longer = longer + 1 if reason == "max_tokens" else 0
            if longer > LONGER:
                return "max_tokens, again and again"
            if reason == "model_context_window_exceeded" and not _shorten(messages, 2):
                return str(reason)
            if reason == "pause_turn":
                continue
            if not calls and reason not in ("max_tokens", "model_context_window_exceeded"):
                return str(reason)
            messages.append({"role": "user", "content": _results(calls, box, cut=reason == "max_tokens")})
            if {"trials", "submissions"} <= box.spent or "seconds" in box.spent:
                return f"budget of {', '.join(sorted(box.spent))}"
            usage = message.usage
            read = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
            if usage.input_tokens + read > self._context:
                _shorten(messages, KEPT_MESSAGES)

    def _turn(self, sdk: Any, client: anthropic.Anthropic, messages: list[dict[str, Any]]) -> Any:
        """One answer of the model.

        Raises:
            BudgetSpent: told by the gateway.
            InvalidRun: it fails for good.
        """
        why = ""
        for _ in range(BROKEN):
            try:
                with client.messages.stream(**self._request(messages)) as stream:
                    for _ in stream:
                        pass
                    message = stream.get_final_message()
                if message.stop_reason is not None:
                    return message
                why = "the answer ended without a stop reason"
            except sdk.APIStatusError as error:
                _raise_budget(error)
                if error.status_code != 200:  # an error within a stream comes with 200
                    raise InvalidRun(f"explorer {self._name}: {error.message}") from None
                why = str(error.message)
            except sdk.APIConnectionError as error:
                raise InvalidRun(f"explorer {self._name}: the gateway is gone: {error}") from None
            except _broken() as error:
                why = f"{type(error).__name__}: {error}"
        raise InvalidRun(f"explorer {self._name}: {BROKEN} answers in a row broke off: {why[:200]}")

    def _request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields of a turn, the parts that stay marked for the cache."""
        *before, last = messages
        *blocks, end = last["content"]
        marked = (
            {**last, "content": [*blocks, {**end, "cache_control": CACHED}]}
            if last["role"] == "user"
            else last
        )
        return {
            "model": self._model,
            "max_tokens": MAX_TOKENS,
            "system": [{"type": "text", "text": GUIDE, "cache_control": CACHED}],
            "tools": list(TOOLS),
            "messages": [*before, marked],
        }


def _results(calls: list[Call], box: Toolbox, *, cut: bool) -> list[dict[str, Any]]:
    """The next user message: an answer to every call, or a word to go on."""
    whole = calls[:-1] if cut else calls
    answers = box.answer(whole)
    if cut and calls:
        answers.append(
            Answer(calls[-1].id, "this call was cut off at max_tokens; make it shorter", is_error=True)
        )
    if not answers:
        return [{"type": "text", "text": "go on; use a tool, or stop"}]
    return [
        {
            "type": "tool_result",
            "tool_use_id": one.id,
            "content": one.text or "(nothing)",
            "is_error": one.is_error,
        }
        for one in answers
    ]


def _shorten(messages: list[dict[str, Any]], kept: int) -> bool:
    """Drop what tools answered long ago, in place; whether anything was dropped."""
    dropped = False
    for message in messages[1:-kept]:
        for block in message["content"]:
            if block["type"] == "tool_result" and block["content"] != DROPPED:
                block["content"] = DROPPED
                dropped = True
    return dropped


def _raise_budget(error: Any) -> None:
    body = error.body if isinstance(error.body, dict) else {}
    details = (body.get("error") or {}).get("details") or {}
    if details.get("error_code") == "budget_spent":
        raise BudgetSpent(str(details.get("field")), str(details.get("scope"))) from None


def _sdk() -> Any:
    try:
        import anthropic  # noqa: PLC0415 - an extra
    except ImportError:
        raise ModelError("the explorer `claude` needs the SDK; install specpilot-harness[agents]") from None
    return anthropic


def _broken() -> tuple[type[Exception], ...]:
    """What the SDK lets through when a stream breaks: of its HTTP library, and of its own reading."""
    import httpx2  # noqa: PLC0415 - comes with the SDK

    return (httpx2.HTTPError, ValueError, RuntimeError, AssertionError)
