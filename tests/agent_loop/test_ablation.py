"""What carries a gain: an accepted candidate is measured without each of its knobs and changed places."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from agent_loop.controller.ablation import MOST, ablated, places_of, sources_of, variants
from agent_loop.controller.database import Database
from agent_loop.controller.policy import check, patch_files, patch_of_files
from agent_loop.explorers.transforms import changed, source_of
from agent_loop.protocols import Desk, Edit
from agent_loop.records import Candidate, Effect, Hypothesis, Outcome, Verdict
from harness.plan import ArmSpec, Param
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.agent_loop.test_controller import Scripted

STOCK = ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"width": 2, "form": "a"})
LINES = [f"value_{n} = {n}" for n in range(60)]
MODULE = "\n".join(LINES) + "\n"
OTHER = "\n".join(f"other_{n} = {n}" for n in range(40)) + "\n"
SOURCES = {"engine.values": MODULE, "engine.others": OTHER}
DOOR = "from values import value_1\nopen_session = value_1\n"


def made(patch: str | None = None, **params: Param) -> Candidate:
    return Candidate(
        name="made",
        backend=BACKEND if patch is None else "door:open_session",
        params=STOCK.params | params,
        patch=patch,
        hypothesis=Hypothesis(mechanism="m"),
        origin="model",
        explorer="e",
    )


def copy(*places: int) -> str:
    """The module with other values in these lines."""
    return "\n".join(f"{line}00" if n in places else line for n, line in enumerate(LINES)) + "\n"


def patched(*places: int, **params: Param) -> Candidate:
    return made(patch_of_files({"door.py": DOOR, "values.py": copy(*places)}), **params)


def test_one_knob_is_given_back_at_a_time() -> None:
    found = variants(made(width=4, form="b", extra=1), STOCK)
    assert {name: one.params for name, one in found.items()} == {
        "width": {"width": 2, "form": "b", "extra": 1},
        "form": {"width": 4, "form": "a", "extra": 1},
        "extra": {"width": 4, "form": "b"},
    }
    assert not variants(made(width=4), STOCK)
    assert not variants(msgspec.structs.replace(made(width=4, form="b"), backend="another:open"), STOCK)


def test_one_place_of_a_copy_is_given_back_at_a_time_and_all_else_stays() -> None:
    whole = patched(3, 20, 21, width=4)
    found = variants(whole, STOCK, SOURCES)
    assert list(found) == ["width", "values.py line 4", "values.py lines 21 to 22"]
    texts = {name: patch_files(one.patch or "") for name, one in found.items()}
    assert texts["width"] == patch_files(whole.patch or "")
    assert texts["values.py line 4"] == {"door.py": DOOR, "values.py": copy(20, 21)}
    assert texts["values.py lines 21 to 22"] == {"door.py": DOOR, "values.py": copy(3)}
    assert found["width"].params["width"] == 2
    assert found["values.py line 4"].params["width"] == 4
    for one in found.values():
        assert (one.origin, one.parents, one.backend) == ("ablation", (whole.id,), whole.backend)
        assert check(one, frozenset()) is None
    assert len({one.id for one in (whole, *found.values())}) == 4


def test_a_single_place_and_a_file_of_ones_own_have_no_parts() -> None:
    assert not variants(patched(3), STOCK, SOURCES)
    own = patch_of_files({"door.py": DOOR, "values.py": "\n".join(f"x{n} = 1" for n in range(40)) + "\n"})
    assert not variants(made(own, width=4, form="b"), STOCK, SOURCES)
    assert not variants(patched(3, 20), STOCK)  # nobody knows the engine's sources


def test_lines_that_were_added_or_cut_are_places_too() -> None:
    old, new = LINES, [*LINES[:5], "more = 1", *LINES[5:30], *LINES[33:]]
    added, cut = places_of(old, new)
    assert (new[added.first : added.last], old[added.old_first : added.old_last]) == (["more = 1"], [])
    assert (new[cut.first : cut.last], old[cut.old_first : cut.old_last]) == ([], LINES[30:33])
    patch = patch_of_files({"door.py": DOOR, "values.py": "\n".join(new) + "\n"})
    found = variants(made(patch), STOCK, SOURCES)
    assert list(found) == ["values.py line 6", "values.py, what was cut behind line 31"]
    back = patch_files(found["values.py, what was cut behind line 31"].patch or "")["values.py"]
    assert back.splitlines() == [*LINES[:5], "more = 1", *LINES[5:]]


def test_places_that_stand_together_are_one_and_never_too_many() -> None:
    near = places_of(LINES, copy(3, 5, 12).splitlines())
    assert [(one.first, one.last) for one in near] == [(3, 6), (12, 13)]
    many = list(variants(patched(*range(0, 50, 5)), STOCK, SOURCES))
    assert len(many) == MOST  # the nearest are one, until there are no more
    assert (many[0], many[-1]) == ("values.py lines 1 to 11", "values.py line 46")
    files = {f"part_{n}.py": copy(n, n + 20) for n in range(MOST + 2)}
    assert len(variants(made(patch_of_files({"door.py": DOOR, **files})), STOCK, SOURCES)) == MOST


def test_copies_of_the_reference_engine_are_known_as_such() -> None:
    module = "reference_mechanisms.drafters.ngram"
    sources = sources_of({"reference_mechanisms"})
    assert sources[module] == source_of(module)
    edit = Edit(
        name="patience",
        module=module,
        kind="schedule",
        at="NgramDrafter._one",
        values=(0, 1),
        old="min(self._drafts, limit)",
        new="min({value}, limit)",
    )
    text = changed(sources[module], [(edit, 1)])
    whole = made(patch_of_files({"door.py": DOOR, "copy.py": text}), width=4)
    found = variants(whole, STOCK, sources)
    place = next(name for name in found if name.startswith("copy.py line"))
    assert patch_files(found[place].patch or "")["copy.py"] == sources[module]
    assert list(found) == ["width", place]


def verdict(point: float | None, outcome: Outcome = "PASSED") -> Verdict:
    effect = None if point is None else Effect(point=point, low=1.0, high=2.0, confidence=0.95, blocks=1)
    return Verdict(candidate_id="c", stage="screen", outcome=outcome, detail="", effect=effect)


@pytest.mark.parametrize(
    ("whole", "part", "said"),
    [
        (verdict(1.21), verdict(1.1), "public rows, all: 1.210x; a given back: 1.100x (50% of the gain)"),
        (verdict(1.21), verdict(0.9, "NO_GAIN"), "all: 1.210x; a given back: 0.900x (155% of the gain)"),
        (verdict(1.21), verdict(1.3, "LOSSY"), "all: 1.210x; a given back: LOSSY"),
        (verdict(1.21), verdict(None, "INVALID"), "all: 1.210x; a given back: INVALID"),
        (verdict(0.99), verdict(1.1), "all: 0.990x; a given back: 1.100x"),
        (verdict(None), verdict(1.1), "public rows, a given back: 1.100x"),
    ],
    ids=["half", "needed", "lossy", "no figure", "no gain", "no whole"],
)
def test_what_a_part_carries_is_told(whole: Verdict, part: Verdict, said: str) -> None:
    assert ablated(whole, {"a": part}).endswith(said)


def test_a_campaign_tells_which_place_of_an_accepted_patch_carries_its_gain(tmp_path: Path) -> None:
    whole = patched(3, 12, 20, 30)

    def speed(params: Mapping[str, Param]) -> float:
        """Of four places one gains."""
        text = str(params.get("text", ""))
        return 1.3 if "value_20 = 2000" in text else 1.0

    def arm(one: Candidate, name: str) -> ArmSpec:
        params = one.params | ({} if one.patch is None else {"text": one.patch})
        return ArmSpec(name=name, kind="candidate", backend=one.backend, params=params)

    loop = make_loop(ablate=make_loop().plan.screen)
    stage = Stage(tmp_path, Host(tmp_path, speed, noise=0.002), loop)

    def work(desk: Desk) -> None:
        desk.submit(whole)

    plain = stage.controller()
    controller = dataclasses.replace(plain, bench=plain.bench._replace(arm=arm), sources=lambda: SOURCES)
    accepted = controller.run([Scripted(work)])
    assert [one.candidate_id for one in accepted] == [whole.id]
    told = Database(tmp_path / "loop.sqlite", str, must_exist=True).verdict(whole.id, "ablate")
    assert told is not None
    shares = dict(re.findall(r"line (\d+) given back: [\d.]+x \((-?\d+)% of the gain\)", told.detail))
    assert {line: abs(int(share) - 100 * (line == "21")) <= 5 for line, share in shares.items()} == {
        "4": True,
        "13": True,
        "21": True,
        "31": True,
    }
    runs = [arms for name, arms in stage.host.runs if name.startswith("screen")]
    assert runs[-2:] == [5, 3]  # stock beside four arms at most; `form` is a part, too
