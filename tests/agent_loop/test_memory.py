from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_loop.cost_model.ceiling import ceiling
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.memory.records import (
    Evidence,
    Mechanism,
    Predicate,
    Trait,
    closed_share,
    preconditions_for,
    traits_of,
)
from agent_loop.memory.remembering import gap_shares, recaller, rememberer
from agent_loop.memory.retrieval import WHOLE, Known, freshness, retrieve, transfer
from agent_loop.memory.store import Memory, state_of
from agent_loop.records import Candidate, Effect, Hypothesis, Outcome, Verdict
from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE, UsageError
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.agent_loop.test_cost_model import FREE, MACHINE, MODEL, STOCK, run_of

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
HERE: dict[str, Trait] = {"backend": BACKEND, "target": "t", "device": "cpu", "batch": 1, "greedy": True}
EFFECT = Effect(point=1.5, low=1.4, high=1.6, confidence=0.95, blocks=6, p_value=0.01)


def mechanism(width: int, gap: str = "", **fields: Any) -> Mechanism:
    return Mechanism(
        schema="mechanism/1",
        name=f"width {width}",
        gap=gap,
        explanation="",
        backend=BACKEND,
        params={"width": width},
        **fields,
    )


def evidence(of: Mechanism, outcome: Outcome = "ACCEPT", **fields: Any) -> Evidence:
    usual: dict[str, Any] = {
        "mechanism": of.id,
        "campaign": "one",
        "deployment": "d",
        "traits": HERE,
        "date": NOW.isoformat(),
        "outcome": outcome,
        "detail": "told",
        "effect": EFFECT if outcome == "ACCEPT" else None,
        "closed": 0.5 if outcome == "ACCEPT" else None,
        "closed_low": None,
        "closed_high": None,
        "gap_share": 0.6,
        "harness": "0" * 64,
    }
    return Evidence(**(usual | fields))


def known(width: int, *outcomes: Outcome, gap: str = "", **fields: Any) -> Known:
    one = mechanism(width, gap, **fields)
    return Known(one, tuple(evidence(one, outcome) for outcome in outcomes))


def test_what_is_stored_comes_back_and_a_row_twice_is_one(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.sqlite")
    one = mechanism(4)
    memory.add(one, evidence(one))
    memory.add(one, evidence(one))
    memory.close()
    again = Memory(tmp_path / "memory.sqlite")
    assert again.known() == [Known(one, (evidence(one),))]
    again.retire(one.id, "stock has it")
    assert again.known() == []
    (left,) = again.known(retired=True)
    assert state_of(left) == "retired"
    with pytest.raises(UsageError, match="holds no record nothing"):
        again.retire("nothing", "of that name")
    again.close()


def test_a_person_retires_a_record_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory, path = mechanism(4), tmp_path / "memory.sqlite"
    opened = Memory(path)
    opened.add(memory, evidence(memory))
    opened.close()
    words = ["loop", "memory", "--memory", str(path)]
    assert main([*words, "--retire", memory.id]) == EXIT_USAGE
    assert "go together" in capsys.readouterr().err
    assert main([*words, "--retire", memory.id, "--because", "stock has it"]) == EXIT_OK
    assert "retired" in capsys.readouterr().out
    opened = Memory(path)
    assert opened.known() == []
    opened.close()


def test_what_stock_does_already_is_not_recalled(tmp_path: Path) -> None:
    memory, job = Memory(tmp_path / "m.sqlite"), make_loop().job
    for width in (2, 6):  # 2 is stock's
        one = mechanism(width)
        memory.add(one, evidence(one, traits=traits_of(job)))
    assert [one.params for one in recaller(memory, job, None, lambda: NOW)("", 8)] == [{"width": 6}]
    memory.close()


def test_a_patch_is_recalled_on_the_engine_that_it_was_found_on(tmp_path: Path) -> None:
    memory, job = Memory(tmp_path / "m.sqlite"), make_loop().job
    patched = msgspec.structs.replace(candidate(), backend="edited:open_session", patch="text")
    told = Verdict(candidate_id=patched.id, stage="confirm", outcome="ACCEPT", detail="", effect=EFFECT)
    rememberer(memory, job, None, "campaign", lambda: NOW)(patched, told)
    (found,) = recaller(memory, job, None, lambda: NOW)("", 8)
    assert (found.backend, found.patch) == ("edited:open_session", "text")
    memory.close()


def test_a_failed_precondition_hides_a_record_and_an_unknown_one_marks_it() -> None:
    large = Predicate(trait="batch", op="ge", values=(8,), reason="only then")
    gpu = Predicate(trait="gpu", op="in", values=("H200",), reason="its kernels")
    assert large.holds(HERE) is False
    assert gpu.holds(HERE) is None
    assert retrieve([known(4, "ACCEPT", preconditions=(large,))], HERE, {}, {}) == []
    (match,) = retrieve([known(4, "ACCEPT", preconditions=(gpu,))], HERE, {}, {})
    assert match.unknown == ("gpu",)


def test_records_are_ordered_by_what_they_closed_and_negatives_warn() -> None:
    good, mixed, bad = (
        known(6, "ACCEPT", "ACCEPT"),
        known(4, "ACCEPT", "NO_GAIN", gap="b"),
        known(3, "LOSSY", gap="c"),
    )
    found = retrieve([bad, mixed, good], HERE, {}, {})
    assert [one.mechanism.name for one in found] == ["width 6", "width 4", "width 3"]
    assert found[0].expected_speedup is not None
    assert 1.0 < found[0].expected_speedup < EFFECT.point  # shrunken: one confirmation is not the truth
    assert found[2].expected_speedup is None
    assert found[1].warnings == ("NO_GAIN on d: told",)


def test_an_answer_is_diverse_and_tells_conflicts() -> None:
    many = [known(n, "ACCEPT", gap="a") for n in (3, 4, 5)]
    assert len(retrieve(many, HERE, {}, {})) == 2
    assert len(retrieve([known(n, "ACCEPT") for n in (3, 4, 5)], HERE, {}, {})) == 3  # each a mechanism
    pair = [many[0].mechanism.id, known(9, "ACCEPT", gap="b").mechanism.id]
    found = retrieve([many[0], known(9, "ACCEPT", gap="b")], HERE, {}, {}, [(pair[0], pair[1])])
    assert any("conflicts with" in text for one in found for text in one.warnings)


def test_evidence_fades_and_says_less_of_other_deployments() -> None:
    assert freshness(0.0, "cpu") == 1.0
    assert freshness(365.0, "cpu") == pytest.approx(0.3679, abs=1e-3)
    assert transfer(HERE, HERE) == 1.0
    assert transfer(HERE, HERE | {"device": "cuda"}) < 0.5
    one = known(4, "ACCEPT")
    fresh, old = (
        retrieve([one], HERE, {}, {f"one/{one.mechanism.id}/{NOW.isoformat()}": age})[0]
        for age in (0.0, 900.0)
    )
    assert old.score < fresh.score


def test_an_effect_is_a_share_of_the_gap_with_its_interval() -> None:
    share = closed_share(EFFECT, 0.5)
    assert share is not None
    assert share[0] == pytest.approx((1 - 1 / 1.5) / 0.5)
    assert share[1] < share[0] < share[2]
    assert closed_share(EFFECT, None) is None


def test_a_share_is_of_the_gap_that_the_record_names_and_is_used_so(tmp_path: Path) -> None:
    """On the same deployment the same effect is expected again, but for the shrinkage."""
    job, model = make_loop().job, ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL)
    shares = gap_shares(model)
    assert shares["weights"] < shares[WHOLE]
    saved = shares["weights"] / 2.0
    half = Effect(point=1.0 / (1.0 - saved), low=1.01, high=1.2, confidence=0.95, blocks=6)
    named = msgspec.structs.replace(candidate(), hypothesis=Hypothesis(mechanism="m", gap="weights"))
    verdict = Verdict(candidate_id=named.id, stage="confirm", outcome="ACCEPT", detail="", effect=half)
    memory = Memory(tmp_path / "m.sqlite")
    rememberer(memory, job, model, "campaign", lambda: NOW)(named, verdict)
    (row,) = memory.known()[0].evidence
    assert row.closed == pytest.approx(0.5)
    assert row.gap_share == pytest.approx(shares["weights"])
    (found,) = recaller(memory, job, model, lambda: NOW)("", 8)
    assert found.expected_speedup == pytest.approx(1.0 / (1.0 - saved / 2.0))  # one row against the prior
    memory.close()


def test_a_campaign_is_not_told_what_it_has_put_there_itself(tmp_path: Path) -> None:
    memory, job = Memory(tmp_path / "m.sqlite"), make_loop().job
    for width, campaigns in ((4, ("mine",)), (6, ("mine", "another"))):
        one = mechanism(width)
        for name in campaigns:
            memory.add(one, evidence(one, "ACCEPT" if name == "mine" else "NO_GAIN", campaign=name))
    (found,) = recaller(memory, job, None, lambda: NOW, "mine")("", 8)
    assert found.params == {"width": 6}
    assert found.expected_speedup is None  # what it has confirmed itself is left out, too
    assert len(recaller(memory, job, None, lambda: NOW, "third")("", 8)) == 2
    memory.close()


def test_the_state_of_a_record_follows_from_its_evidence() -> None:
    assert state_of(known(4)) == "candidate"
    assert state_of(known(4, "ACCEPT")) == "confirmed"
    assert state_of(known(4, "ACCEPT", "LOSSY")) == "contested"


def candidate() -> Candidate:
    return Candidate(
        name="x",
        backend=BACKEND,
        params={"width": 6, "drafter": "d"},
        hypothesis=Hypothesis(mechanism="wide"),
        origin="search",
        explorer="e",
    )


def test_a_verdict_becomes_a_record_once_and_public_figures_do_not(tmp_path: Path) -> None:
    memory, job = Memory(tmp_path / "m.sqlite"), make_loop().job
    remember = rememberer(memory, job, None, "campaign", lambda: NOW)
    told = Verdict(candidate_id=candidate().id, stage="confirm", outcome="ACCEPT", detail="", effect=EFFECT)
    remember(candidate(), told)
    remember(candidate(), told)
    (one,) = memory.known()
    assert len(one.evidence) == 1
    assert one.evidence[0].effect == EFFECT
    assert {p.trait for p in one.mechanism.preconditions} == {"backend", "target", "batch"}
    later = rememberer(memory, job, None, "another", lambda: NOW)
    later(candidate(), msgspec.structs.replace(told, stage="measure", outcome="NO_GAIN"))
    assert memory.known()[0].evidence[1].effect is None
    assert [one.mechanism for one in recaller(memory, job, None, lambda: NOW)("", 8)] == ["wide"]
    assert recaller(memory, job, None, lambda: NOW)("other words", 8) == []
    memory.close()


def test_another_target_excludes_a_drafter() -> None:
    needed = preconditions_for(BACKEND, {"drafter": "d"}, traits_of(make_loop().job))
    assert any(p.holds({"target": "another", "backend": BACKEND}) is False for p in needed)


def test_a_poisoned_record_orders_the_search_and_passes_no_gate(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.sqlite")
    poison = mechanism(9)
    memory.add(poison, evidence(poison, closed=1000.0, traits=traits_of(make_loop().job)))
    stage = Stage(
        tmp_path,
        Host(
            tmp_path,
            lambda params: 0.8 if params.get("width") == 9 else 1.2 if params.get("width") == 6 else 1.0,
        ),
    )
    stage.recalled = recaller(memory, stage.loop.job, None, lambda: NOW)("", 8)
    assert [one.params for one in stage.recalled] == [{"width": 9}]
    controller = stage.controller()
    accepted = controller.run([OfflineExplorer("offline", batch=3)])
    assert [controller.database.candidate(v.candidate_id).params for v in accepted] == [{"width": 6}]  # type: ignore[union-attr]
    assert next(one for one in controller.database.candidates() if one.origin == "memory").params == {
        "width": 9
    }
    memory.close()
