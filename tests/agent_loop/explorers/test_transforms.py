"""Source transforms: what is changed, what stays, and that the changed engine runs as a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_loop.controller.policy import check
from agent_loop.explorers.transforms import ENTRY, changed, patch_of, source_of
from agent_loop.explorers.workbench import Workbench
from agent_loop.guest.arms import arm_of
from agent_loop.guest.backend import open_session as open_guest
from agent_loop.protocols import Edit, Space
from agent_loop.records import Candidate, Hypothesis
from agent_loop.sandbox.room import MECHANISMS, why_not
from harness.errors import UsageError
from harness.plan import Param
from harness.protocols import resolve
from harness.records import DecodeRequest, Sampling, StepEvent
from tests.harness.tiny import deployment_of, write_llama

BACKEND = "reference_mechanisms.backend:open_session"
NGRAM = "reference_mechanisms.drafters.ngram"
TEXT = '''"""Words with an ö before it all."""

ROWS: int = 512  # of a forward
A = B = 3


class Kept:
    LEAST = 0.5

    def cut(self, rows, least=2, *, most=9):
        """Keep this text."""
        return min(rows, most) + max(least, 1)
'''


def edit(kind: str, at: str, *values: Param, **more: str) -> Edit:
    return Edit(name=at, module="m", kind=kind, at=at, values=(0, *values), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "value", "before", "after"),
    [
        (edit("constant", "ROWS", 64), 64, "ROWS: int = 512  #", "ROWS: int = 64  #"),
        (edit("constant", "B", 4), 4, "A = B = 3", "A = B = 4"),
        (edit("constant", "Kept.LEAST", 0.25), 0.25, "LEAST = 0.5", "LEAST = 0.25"),
        (edit("default", "Kept.cut.least", 5), 5, "least=2", "least=5"),
        (edit("default", "Kept.cut.most", 7), 7, "most=9", "most=7"),
        (
            edit("schedule", "Kept.cut", 3, old="min(rows,most)", new="rows if rows < {value} else most"),
            3,
            "min(rows, most)",
            "(rows if rows < 3 else most)",
        ),
    ],
    ids=lambda one: one.at if isinstance(one, Edit) else "",
)
def test_one_place_is_changed_and_every_other_byte_stays(
    one: Edit, value: Param, before: str, after: str
) -> None:
    assert changed(TEXT, [(one, value)]) == TEXT.replace(before, after)


def test_several_edits_of_one_module_are_made_together() -> None:
    found = changed(TEXT, [(edit("constant", "ROWS", 7), 7), (edit("default", "Kept.cut.most", 8), 8)])
    assert found == TEXT.replace("512", "7").replace("most=9", "most=8")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (edit("constant", "NONE", 1), "NONE occurs 0 times"),
        (edit("default", "Kept.cut.rows", 1), "rows occurs 0 times"),
        (edit("default", "Kept.gone.rows", 1), "occurs 0 times"),
        (edit("schedule", "Kept.cut", 1, old="most", new="{value}"), "occurs 1 times|occurs 0 times"),
        (edit("schedule", "Kept.cut", 1, old="min(rows, most)", new="{value} +"), "is no expression"),
    ],
    ids=lambda one: one.at if isinstance(one, Edit) else "",
)
def test_a_place_that_is_not_there_once_is_named(one: Edit, said: str) -> None:
    text = TEXT.replace("min(rows, most)", "min(most, most)") if one.old == "most" else TEXT
    with pytest.raises(UsageError, match=said if one.old != "most" else "occurs 2 times"):
        changed(text, [(one, 1)])


def test_what_is_no_literal_is_left_alone() -> None:
    with pytest.raises(UsageError, match="is no literal"):
        changed("A = len('x')\n", [(edit("constant", "A", 1), 1)])


def test_an_edit_says_what_it_changes() -> None:
    with pytest.raises(ValueError, match="and another"):
        Edit(name="x", module="m", kind="constant", at="A", values=(1,))
    with pytest.raises(ValueError, match="schedule"):
        edit("schedule", "f", 1, old="a", new="b")
    with pytest.raises(ValueError, match="is not of the backend's package"):
        Space(mechanism="m", backend="other:open", edits=(edit("constant", "A", 1),))
    with pytest.raises(UsageError, match="there is no module"):
        source_of("reference_mechanisms.nothing")


SPACE = Space(
    mechanism="n-gram drafts, shorter at first",
    backend=BACKEND,
    fixed={"drafter": "ngram", "drafts": 4, "ngram_min": 1},
    edits=(
        Edit(
            name="patience",
            module=NGRAM,
            kind="schedule",
            at="NgramDrafter._one",
            values=(0, 1, 2),
            old="min(self._drafts, limit)",
            new="min({value}, limit)",
        ),
    ),
)


def candidate(worktree: Path, value: int) -> Candidate:
    found = patch_of(SPACE, {"patience": value})
    assert found is not None
    backend, files = found
    worktree.mkdir()
    bench = Workbench(worktree)
    for path, text in files.items():
        bench.edit(path, "", text)
    return Candidate(
        name="edited",
        backend=backend,
        params=SPACE.fixed,
        patch=bench.patch(),
        hypothesis=Hypothesis(mechanism="edited"),
        origin="transform",
        explorer="offline",
    )


def test_an_unchanged_source_is_an_arm_like_any_other() -> None:
    assert patch_of(SPACE, {"patience": 0}) is None


def test_a_patch_holds_the_copy_and_a_door_and_passes_the_policy(tmp_path: Path) -> None:
    one = candidate(tmp_path / "w", 1)
    assert one.backend == f"{ENTRY}:open_session"
    assert one.patch is not None
    assert "+++ b/edited_reference_mechanisms_drafters_ngram.py" in one.patch
    assert check(one, frozenset({BACKEND})) is None
    assert candidate(tmp_path / "v", 1).id == one.id
    assert candidate(tmp_path / "u", 2).id != one.id


@pytest.mark.skipif(
    all(why_not(one) is not None for one in MECHANISMS), reason="no sandbox works on this machine"
)
def test_the_changed_engine_drafts_otherwise_and_emits_the_same(tmp_path: Path) -> None:
    deployment = deployment_of(write_llama(tmp_path / "model"))
    request = DecodeRequest(
        request_id="p", prompt_token_ids=tuple(range(96)), sampling=Sampling(max_tokens=24)
    )
    arm = arm_of(tmp_path / "worktrees")(candidate(tmp_path / "w", 1), "c0")
    guest = open_guest(deployment, [arm])
    mine: list[StepEvent] = list(guest.stream("c0", [request]))
    guest.close()
    plain = arm_of(tmp_path / "worktrees")(
        Candidate(
            name="plain",
            backend=BACKEND,
            params=SPACE.fixed,
            hypothesis=Hypothesis(mechanism="x"),
            origin="search",
            explorer="e",
        ),
        "stock",
    )
    session = resolve(BACKEND, "backend")(deployment, [plain])
    theirs: list[StepEvent] = list(session.stream("stock", [request]))
    session.close()
    assert [t for e in mine for t in e.token_ids] == [t for e in theirs for t in e.token_ids]
    assert max(e.num_draft_tokens for e in mine) == 1
    assert max(e.num_draft_tokens for e in theirs) > 1
