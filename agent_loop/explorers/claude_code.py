"""Claude Code through `claude-agent-sdk`: its own loop and file tools, in a room with one way out.

The desk's actions are an MCP server in this process. Turns, money and transcripts are the gateway's;
what the SDK reports of them is not used. The worktree is emptied at the start.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_loop.explorers.claude import MODEL
from agent_loop.explorers.claude_code_room import check_room, launcher
from agent_loop.explorers.guide import GUIDE, opening
from agent_loop.explorers.tools import TOOLS, Call, Toolbox
from agent_loop.explorers.workbench import Workbench
from agent_loop.gateway.starting import Door
from agent_loop.protocols import BudgetSpent, Desk
from agent_loop.records import Budget
from harness.errors import InvalidRun, ModelError

FILES = ("Read", "Edit", "Write", "Glob", "Grep")  # its own tools; no shell, no web, no agents
SERVER = "desk"
ACTIONS = ("run_public_trial", "query_memory", "submit")
ALLOWED = (*FILES, *(f"mcp__{SERVER}__{name}" for name in ACTIONS))
_SPENT = re.compile(r"(?P<scope>\S+): budget of `(?P<field>\w+)` is spent")


class ClaudeCodeExplorer:
    """See `agent_loop.protocols.Explorer`."""

    def __init__(
        self,
        name: str,
        door: Door,
        *,
        model: str | None = None,
        program: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keep the settings.

        Args:
            name: of the explorer.
            door: to the gateway, with a socket.
            model: id; None takes the default. One without a price is refused by the gateway.
            program: executable of Claude Code; None takes the one that comes with the SDK.
            tell: hears why a search ended.
        """
        self._name = name
        self._door = door
        self._model = model or MODEL
        self._program = program
        self._tell = tell

    @property
    def name(self) -> str:
        """See `Explorer`."""
        return self._name

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """See `Explorer`.

        Raises:
            BudgetSpent: told by the gateway.
            InvalidRun: Claude Code cannot be started, or fails for good.
            ModelError: the SDK is not installed.
            UsageError: no bubblewrap here.
        """
        sdk = _sdk()
        import anyio  # noqa: PLC0415 - comes with the SDK

        bench = Workbench(desk.worktree)
        bench.clear()
        box = Toolbox(desk, bench, self._name)
        first = opening(desk.brief, desk.recall(), desk.heard())
        door = self._door.attempt(f"seed-{seed}", budget)
        program = self._program or bundled(sdk)
        worktree = desk.worktree.resolve()
        with launcher(program, worktree, door, self._model) as script:
            options = self._options(sdk, script, worktree, box)
            self._tell(anyio.run(functools.partial(self._converse, sdk, first, options, box)))

    async def _converse(self, sdk: Any, first: str, options: Any, box: Toolbox) -> str:
        """Follow the session to its end; why it has ended.

        Raises:
            BudgetSpent: the gateway said so.
            InvalidRun: it failed.
        """
        last: Any = None
        said = ""
        try:
            async with contextlib.aclosing(sdk.query(prompt=first, options=options)) as messages:
                async for message in messages:
                    last = message if isinstance(message, sdk.ResultMessage) else last
                    if {"trials", "submissions"} <= box.spent or "seconds" in box.spent:
                        return f"budget of {', '.join(sorted(box.spent))}"
        except sdk.ClaudeSDKError as error:  # it comes after the message that says why
            said = str(error)
        if last is not None and not last.is_error and not said:
            return str(last.stop_reason or last.subtype)
        if last is not None:
            said = str(last.result or "; ".join(last.errors or ()) or said or last.subtype)
        _raise_budget(said)
        raise InvalidRun(f"explorer {self._name}: Claude Code: {said[:500] or 'ended without a word'}")

    def _options(self, sdk: Any, script: Path, worktree: Path, box: Toolbox) -> Any:
        return sdk.ClaudeAgentOptions(
            cli_path=script,
            cwd=worktree,
            model=self._model,
            system_prompt=GUIDE,
            tools=list(FILES),
            allowed_tools=list(ALLOWED),
            permission_mode="dontAsk",
            setting_sources=[],
            skills=[],
            strict_mcp_config=True,
            mcp_servers={SERVER: actions(sdk, box)},
            hooks={"PreToolUse": [sdk.HookMatcher(hooks=[_guard])]},
            verbatim_prompts=True,
        )


def actions(sdk: Any, box: Toolbox) -> Any:
    """The desk's actions as an MCP server in this process; one at a time, for they are measured."""
    import anyio  # noqa: PLC0415

    turn = anyio.Lock()

    def made(tool: dict[str, Any]) -> Any:
        async def act(given: dict[str, Any]) -> dict[str, Any]:
            async with turn:
                call = Call(tool["name"], tool["name"], given)
                (answer,) = await anyio.to_thread.run_sync(box.answer, [call])
            return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.is_error}

        return sdk.tool(tool["name"], tool["description"], tool["input_schema"])(act)

    return sdk.create_sdk_mcp_server(SERVER, tools=[made(one) for one in TOOLS if one["name"] in ACTIONS])


def bundled(sdk: Any) -> Path:
    """The executable that comes with the SDK, else one that is installed.

    Raises:
        ModelError: there is none.
    """
    beside = Path(sdk.__file__).parent / "_bundled" / "claude"
    if beside.is_file():
        return beside
    found = shutil.which("claude")
    if found is None:
        raise ModelError(
            "the explorer `claude-code` finds no Claude Code; install specpilot-harness[claude-code]"
        )
    return Path(found).resolve()


def check_installed() -> None:
    """Refuse before anything starts.

    Raises:
        ModelError: the SDK or Claude Code is not installed.
        UsageError: no bubblewrap here.
    """
    bundled(_sdk())
    check_room()


async def _guard(given: Any, _: str | None, __: Any) -> dict[str, Any]:
    """Refuse a tool that is not on the list, whatever the program's own rules say."""
    name = str(given.get("tool_name"))
    if name in ALLOWED:
        return {}
    reason = f"{name} is not to be used here; there are {', '.join(ALLOWED)}"
    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def _raise_budget(said: str) -> None:
    found = _SPENT.search(said)
    if found is not None:
        raise BudgetSpent(found["field"], found["scope"]) from None


def _sdk() -> Any:
    try:
        import claude_agent_sdk  # noqa: PLC0415 - an extra
    except ImportError:
        raise ModelError(
            "the explorer `claude-code` needs its SDK; install specpilot-harness[claude-code]"
        ) from None
    return claude_agent_sdk
