"""The tools of a language model: six, each answered as text. Nothing here knows which model asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from agent_loop.explorers.workbench import Workbench
from agent_loop.protocols import BudgetSpent, Desk
from agent_loop.records import Candidate, Hypothesis, Told
from harness.codec import canonical_json
from harness.errors import HarnessError

MOST_CHARACTERS = 20_000  # of an answer
_TEXT = {"type": "string"}


class Call(NamedTuple):
    """One use of a tool."""

    id: str
    name: str
    input: Any


class Answer(NamedTuple):
    """What the model is told."""

    id: str
    text: str
    is_error: bool = False


def _tool(name: str, description: str, required: Sequence[str], /, **properties: object) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "name": name,
        "description": description,
        "input_schema": {**schema, "additionalProperties": False},
    }


_CANDIDATE: dict[str, object] = {
    "name": {**_TEXT, "description": "short name of this candidate"},
    "backend": {**_TEXT, "description": "'module:function'; of a worktree file, or one the brief names"},
    "params": {"type": "object", "description": "parameters of the arm; strings, numbers, booleans"},
    "mechanism": {**_TEXT, "description": "name of the idea"},
    "explanation": {**_TEXT, "description": "why it should be faster and stay lossless"},
    "gap": {**_TEXT, "description": "component of the brief's gaps that it closes"},
    "falsifier": {**_TEXT, "description": "what would show it wrong"},
}
_NEEDED = ("name", "backend", "params", "mechanism")
TOOLS: tuple[dict[str, Any], ...] = (
    _tool("read", "Read a file of the worktree.", ("path",), path=_TEXT),
    _tool("search", "Find a text in the files of the worktree; '' lists nothing.", ("text",), text=_TEXT),
    _tool(
        "edit",
        "Replace the only occurrence of `old` by `new`; an empty `old` makes a new file.",
        ("path", "old", "new"),
        path=_TEXT,
        old=_TEXT,
        new=_TEXT,
    ),
    _tool(
        "run_public_trial",
        "Measure a candidate on public prompts: policy, build, losslessness, speed. Several in one turn "
        "share their launches. Where the backend is a module of the worktree, its files are the patch.",
        _NEEDED,
        **_CANDIDATE,
    ),
    _tool("query_memory", "Mechanisms that helped elsewhere and fit here.", ("words",), words=_TEXT),
    _tool(
        "submit",
        "Ask for confirmation on unseen prompts. Limited; the verdict is one bit and comes later.",
        _NEEDED,
        **_CANDIDATE,
    ),
)


class Toolbox:
    """Answers the calls of one explorer."""

    def __init__(self, desk: Desk, bench: Workbench, explorer: str) -> None:
        """Use a desk and a worktree."""
        self._desk = desk
        self._bench = bench
        self._explorer = explorer
        self.spent: set[str] = set()  # budgets of the desk that are at their end

    def answer(self, calls: Sequence[Call]) -> list[Answer]:
        """Every call in order; trials of one turn are measured together."""
        candidates: dict[str, Candidate] = {}
        answers: dict[str, Answer] = {}
        for call in calls:
            try:
                if call.name in ("run_public_trial", "submit"):
                    candidates[call.id] = self._candidate(call.input)
                else:
                    answers[call.id] = Answer(call.id, self._plain(call)[:MOST_CHARACTERS])
            except (HarnessError, KeyError, TypeError, ValueError) as error:
                answers[call.id] = Answer(call.id, _said(error), is_error=True)
        trials = [call for call in calls if call.name == "run_public_trial" and call.id in candidates]
        answers |= self._tried([call.id for call in trials], candidates)
        for call in calls:
            if call.name == "submit" and call.id in candidates:
                answers[call.id] = self._submitted(call.id, candidates[call.id])
        return [answers[call.id] for call in calls]

    def _plain(self, call: Call) -> str:
        given = _fields(call.input)
        if call.name == "read":
            return self._bench.read(given["path"])
        if call.name == "search":
            return "\n".join(self._bench.search(given["text"])) or "nothing found"
        if call.name == "edit":
            self._bench.edit(given["path"], given["old"], given["new"])
            return f"{given['path']}: written"
        if call.name == "query_memory":
            return canonical_json(self._desk.recall(given["words"])).decode()
        raise ValueError(f"there is no tool {call.name!r}; there are {', '.join(t['name'] for t in TOOLS)}")

    def _candidate(self, given: Any) -> Candidate:
        fields = dict(given)
        backend = str(fields["backend"])
        module = backend.partition(":")[0].replace(".", "/")
        ours = {f"{module}.py", f"{module}/__init__.py"} & set(self._bench.files())
        hypothesis = {
            name: fields[name] for name in ("mechanism", "gap", "explanation", "falsifier") if name in fields
        }
        return msgspec.convert(
            {
                "name": str(fields["name"])[:80],
                "backend": backend,
                "params": fields["params"],
                "hypothesis": msgspec.convert(hypothesis, Hypothesis),
                "origin": "model",
                "explorer": self._explorer,
                "patch": self._bench.patch() if ours else None,
            },
            Candidate,
        )

    def _tried(self, ids: Sequence[str], candidates: Mapping[str, Candidate]) -> dict[str, Answer]:
        if not ids:
            return {}
        try:
            told = self._desk.trial([candidates[one] for one in ids])
        except BudgetSpent as error:
            self.spent.add(error.field)
            return {one: Answer(one, str(error), is_error=True) for one in ids}
        return {one: Answer(one, _told(said)) for one, said in zip(ids, told, strict=True)}

    def _submitted(self, one: str, candidate: Candidate) -> Answer:
        try:
            told = self._desk.submit(candidate)
        except BudgetSpent as error:
            self.spent.add(error.field)
            return Answer(one, str(error), is_error=True)
        heard = [json.loads(_told(verdict)) for verdict in self._desk.heard()]
        return Answer(
            one, json.dumps({"now": json.loads(_told(told)), "verdicts_so_far": heard}, sort_keys=True)
        )


def _fields(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise TypeError("the input must be an object of strings")
    return given


def _told(told: Told) -> str:
    return canonical_json(told).decode()


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the input lacks {error}"
    return f"{error}"
