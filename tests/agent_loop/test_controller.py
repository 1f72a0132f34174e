from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from agent_loop.campaign import Controls, ExplorerSpec, Rules, Tuning
from agent_loop.controller.controlling import State
from agent_loop.controller.controls import check_controls, control_arms
from agent_loop.controller.database import Database
from agent_loop.controller.policy import check
from agent_loop.controller.purse import Purse
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.protocols import BudgetSpent, Desk, Knob
from agent_loop.records import Budget, Candidate, Effect, Hypothesis, Told, Verdict
from agent_loop.watching import standing
from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE, DataError, InvalidRun, UsageError
from harness.oracle.stored import StoredRun
from harness.plan import ModelSpec, Param
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.forking import in_fork


def width(params: Mapping[str, Param]) -> float:
    """Each token more gains a tenth."""
    return 1.0 + (int(params.get("width", 2)) - 2) / 10.0


def candidate(explorer: str = "offline", **params: Any) -> Candidate:
    return Candidate(
        name="made",
        backend=BACKEND,
        params=params,
        hypothesis=Hypothesis(mechanism="width"),
        origin="search",
        explorer=explorer,
    )


class Scripted:
    """An explorer that does what a test says."""

    name = "offline"

    def __init__(self, work: Callable[[Desk], object]) -> None:
        self.work = work

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        self.work(desk)


def run(root: Path, host: Host, work: Callable[[Desk], object], **hooks: Any) -> Stage:
    stage = Stage(root, host, **hooks)
    stage.controller().run([Scripted(work)])
    return stage


def database(root: Path) -> Database:
    return Database(root / "loop.sqlite", str, must_exist=True)


def final(root: Path) -> dict[str, str]:
    """Newest outcome of every candidate, and the slots."""
    opened = database(root)
    found = {one.id: verdict.outcome for one in opened.candidates() if (verdict := opened.last(one.id))}
    tuning = str([(one.params, verdict.outcome) for one, verdict in opened.tuning()])
    return {**found, "tuning": tuning, "slots": str([(slot.candidate, slot.line) for slot in opened.slots()])}


def tells(found: list[Told], *candidates: Candidate, submit: bool = False) -> Callable[[Desk], None]:
    """Tries the candidates, and submits those that passed."""

    def work(desk: Desk) -> None:
        found.extend(desk.trial(candidates))
        for one, told in zip(candidates, found[-len(candidates) :], strict=True):
            if submit and told.passed:
                desk.submit(one)

    return work


def test_the_best_knob_is_found_measured_and_confirmed_on_rows_nobody_has_seen(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Host(tmp_path, width))
    accepted = stage.controller().run([OfflineExplorer("offline", batch=3)])

    assert len(accepted) in (1, 2)
    best = database(tmp_path).candidate(accepted[0].candidate_id)
    assert best is not None
    assert best.params == {"width": 6}
    assert accepted[0].effect is not None
    assert accepted[0].effect.low > 1.3
    assert next((one.id, v.outcome) for one, v in stage.remembered) == (best.id, "ACCEPT")
    database(tmp_path).check_chain()


def test_each_fault_has_its_own_verdict_and_spoils_nobody_elses(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        width,
        lossy=lambda params: "lossy" in params,
        refuses=lambda params: "odd" in params,
        fails=lambda params: "fails" in params,
    )
    found: list[Told] = []
    candidates = [
        candidate(width=4),
        candidate(width=6, lossy=True),
        candidate(width=6, odd=True),
        candidate(width=6, fails=True),
        candidate(width=1),
        msgspec.structs.replace(candidate(width=5), backend="elsewhere:open_session"),
    ]
    run(tmp_path, host, tells(found, *candidates))
    assert [told.outcome for told in found] == [
        "PASSED",
        "LOSSY",
        "INVALID",  # it does not open: nobody is convicted of anything
        "INCOMPLETE",
        "NO_GAIN",
        "POLICY",
    ]
    assert [told.stage for told in found] == ["screen", "lossless", "build", "lossless", "screen", "policy"]


def test_what_is_faster_than_physics_is_quarantined(tmp_path: Path) -> None:
    found: list[Told] = []
    run(
        tmp_path,
        Host(tmp_path, lambda params: 1000.0 if params.get("width") == 9 else 1.0),
        tells(found, candidate(width=9), candidate(width=3)),
        floor=lambda _: 0.1,
    )
    assert found[0].outcome == "BELOW_CEILING"
    assert found[1].outcome != "BELOW_CEILING"


def test_a_confirmation_tells_the_explorer_one_bit(tmp_path: Path) -> None:
    heard: list[Told] = []
    loop = make_loop(rounds=2)

    def work(desk: Desk) -> None:
        if not desk.heard():
            for one in (candidate(width=6), candidate(width=3)):
                desk.submit(one)
        heard[:] = desk.heard()

    host = Host(tmp_path, width)
    controller = Stage(tmp_path, host, loop).controller()
    host.deny = {"width": 3}
    controller.run([Scripted(work)])

    confirmed = [told for told in heard if told.stage == "confirm"]
    assert [told.outcome for told in confirmed] == ["ACCEPT", "REJECTED"]
    assert [told.detail for told in confirmed] == ["accepted", "rejected"]
    assert all(told.effect is None and told.acceptance_length is None for told in confirmed)


def test_confirm_slots_are_the_only_way_to_unseen_rows_and_run_out(tmp_path: Path) -> None:
    loop = make_loop(submissions=4)
    ids = [candidate(width=w) for w in (3, 4, 5, 6)]

    def work(desk: Desk) -> None:
        for one in ids:
            desk.submit(one)

    stage = run(tmp_path, Host(tmp_path, width), work, loop=loop)
    opened = database(tmp_path)
    verdicts = [opened.verdict(one.id, "confirm") for one in ids]
    assert [v.outcome for v in verdicts if v is not None] == ["UNPROVEN", "UNPROVEN", "ACCEPT", "ACCEPT"]
    assert (tmp_path / "shards").read_text().split() == ["confirm-000", "confirm-001"]
    assert all(slot.alpha == stage.loop.plan.rules.level for slot in opened.slots())


def test_stock_that_gains_over_itself_stops_the_campaign(tmp_path: Path) -> None:
    host = Host(tmp_path, lambda params: 1.2)  # a host that always favours the second arm
    with pytest.raises(InvalidRun, match="A/A control: stock gains over itself"):
        run(tmp_path, host, lambda desk: desk.submit(candidate(width=6)))
    assert database(tmp_path).slots() == []
    assert standing(database(tmp_path), None)[0].startswith("stopped: A/A control")


def test_a_handicap_that_is_not_seen_stops_the_campaign(tmp_path: Path) -> None:
    loop = make_loop(controls=Controls(handicap={"width": 1}))
    blind = Host(tmp_path, lambda params: 1.3 if params.get("width") == 6 else 1.0)
    with pytest.raises(InvalidRun, match="surely slower is not seen to be"):
        run(tmp_path, blind, lambda desk: desk.submit(candidate(width=6)), loop=loop)
    seeing = tmp_path / "seeing"
    seeing.mkdir()
    run(seeing, Host(seeing, width), lambda desk: desk.submit(candidate(width=6)), loop=loop)
    assert len(database(seeing).slots()) == 1


@pytest.mark.parametrize(
    ("delays", "said"),
    [
        (0.0, r"an arm of 0.50 times stock's speed reads (1\.0|0\.99)"),
        (0.3, "an arm of 0.50 times stock's speed reads 0.7"),  # slower, and not by as much as it is
        (4.0, "an arm of 0.50 times stock's speed reads 0.2"),
    ],
    ids=["blind", "damped", "exaggerating"],
)
def test_every_campaign_sees_delayed_stock_for_what_it_is_or_stops(
    tmp_path: Path, delays: float, said: str
) -> None:
    with pytest.raises(InvalidRun, match=said):
        run(tmp_path, Host(tmp_path, width, delays=delays), lambda desk: desk.submit(candidate(width=6)))
    assert database(tmp_path).slots() == []
    honest = tmp_path / "honest"
    honest.mkdir()
    run(honest, Host(honest, width), lambda desk: desk.submit(candidate(width=6)))
    opened = database(honest)
    assert len(opened.slots()) == 1
    (read,) = [event.body for event in opened.events() if event.kind == "controls"]
    told = msgspec.json.decode(read)
    assert set(told) == {"same", "delayed"}
    assert told["delayed"].startswith(("0.49", "0.50"))


def test_noise_does_not_stop_a_campaign_and_a_control_without_a_figure_does() -> None:
    def read(low: float, high: float) -> dict[str, Verdict]:
        effect = Effect(point=(low * high) ** 0.5, low=low, high=high, confidence=0.95, blocks=1)
        told = Verdict(candidate_id="c", stage="measure", outcome="REGRESSION", detail="late", effect=effect)
        return {"delayed": told}

    assert check_controls(read(0.25, 1.2), 1.0) is None  # a busy machine: not seen, and not contradicted
    assert check_controls(read(0.48, 0.52), 1.0) is None
    assert "speed reads 0.8" in str(check_controls(read(0.7, 1.0), 1.0))
    lossy = msgspec.structs.replace(read(0.48, 0.52)["delayed"], outcome="LOSSY")
    assert check_controls({"delayed": lossy}, 1.0) == "positive control: LOSSY: late"
    blank = msgspec.structs.replace(lossy, outcome="INVALID", effect=None)
    assert check_controls({"delayed": blank}, 1.0) == "positive control: INVALID: late"


def test_controls_are_what_the_campaign_says() -> None:
    assert set(control_arms(make_loop())) == {"same", "delayed"}
    assert set(control_arms(make_loop(controls=Controls(handicap={"width": 1})))) == {"same", "handicap"}
    assert not control_arms(make_loop(controls=Controls(same=False, delay=0.0)))
    far = make_loop()
    servers = msgspec.structs.replace(far.job.deployment, device="remote", target=ModelSpec(path="m"))
    far = far._replace(job=msgspec.structs.replace(far.job, deployment=servers))
    assert set(control_arms(far)) == {"same"}
    with pytest.raises(ValueError, match=r"`delay` must be 0, or at least 0\.5"):
        Controls(delay=-1.0)


def test_a_budget_ends_the_search_and_what_was_submitted_stands(tmp_path: Path) -> None:
    loop = make_loop(explorers=(ExplorerSpec(name="offline", kind="offline", budget=Budget(trials=2)),))
    spent: list[str] = []

    def work(desk: Desk) -> None:
        desk.trial([candidate(width=4), candidate(width=6)])
        desk.trial([candidate(width=6)])  # known: it costs nothing
        desk.submit(candidate(width=6))
        try:
            desk.trial([candidate(width=3)])
        except BudgetSpent as error:
            spent.append(error.field)
            raise

    run(tmp_path, Host(tmp_path, width), work, loop=loop)
    assert spent == ["trials"]
    assert len(database(tmp_path).slots()) == 1


def test_budgets_of_a_campaign_hold_over_all_its_rounds(tmp_path: Path) -> None:
    loop = make_loop(budget=Budget(trials=4, submissions=1), rounds=2)
    rounds: list[int] = []
    spent: list[tuple[str, str]] = []

    def work(desk: Desk) -> None:
        rounds.append(len(rounds))
        new = candidate(width=3 + rounds[-1])
        desk.trial([new, candidate(width=6)])  # the second time the latter is known, and free
        desk.submit(candidate(width=6))
        for ask in (lambda: desk.submit(new), lambda: desk.trial([candidate(width=5 + 2 * rounds[-1])])):
            try:
                ask()
            except BudgetSpent as error:
                spent.append((error.field, error.scope))

    run(tmp_path, Host(tmp_path, width), work, loop=loop)
    assert spent == [("submissions", "made"), ("submissions", "made"), ("trials", "made")]
    assert {one.params["width"] for one in database(tmp_path).candidates()} == {3, 4, 5, 6}
    assert [one.params for one, _ in database(tmp_path).submissions()] == [{"width": 6}]


def test_scopes_nest_and_what_is_refused_counts_nowhere() -> None:
    now = [0.0]
    campaign = Purse("campaign", Budget(trials=2, seconds=10.0), lambda: now[0])
    one, other = (Purse(name, Budget(submissions=1), lambda: now[0], campaign) for name in ("one", "other"))
    one.spend(tried=["a"], submitted=["a"])  # what was not tried before is a trial, too
    with pytest.raises(BudgetSpent, match="one: budget of `submissions`"):
        one.spend(tried=["b"], submitted=["b"])
    other.spend(tried=["a", "b"])
    with pytest.raises(BudgetSpent, match="campaign: budget of `trials`"):
        other.spend(tried=["c"])
    other.spend(tried=["b"], submitted=["b"])
    now[0] = 10.5
    with pytest.raises(BudgetSpent, match="campaign: budget of `seconds`"):
        one.spend(tried=["a"])


def test_a_guardrail_that_breaks_on_unseen_rows_is_a_regression(tmp_path: Path) -> None:
    host = Host(tmp_path, width, late=lambda params, unseen: unseen and params.get("width") == 6)
    run(tmp_path, host, tells([], candidate(width=6), submit=True))
    verdict = database(tmp_path).verdict(candidate(width=6).id, "confirm")
    assert verdict is not None
    assert verdict.outcome == "REGRESSION"
    assert "time to first token" in verdict.detail


def test_a_run_that_was_refused_for_its_tokens_convicts_the_candidate_of_its_own_only(tmp_path: Path) -> None:
    class Elsewhere(Host):
        """Refuses a run though no token of the candidate is wrong."""

        def _decide(self, run: StoredRun) -> str:
            return "reject: violated"

    run(tmp_path, Elsewhere(tmp_path, width), tells([], candidate(width=6), submit=True))
    verdict = database(tmp_path).verdict(candidate(width=6).id, "confirm")
    assert verdict is not None
    assert verdict.outcome == "INVALID"


def test_what_wants_a_person_is_tried_once_one_has_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = msgspec.structs.replace(
        candidate(width=6),
        backend="faster:open_session",
        patch="--- /dev/null\n+++ b/faster.py\n@@ -0,0 +1,1 @@\n+import ctypes\n",
    )
    found: list[Told] = []
    host = Host(tmp_path, width)
    run(tmp_path, host, tells(found, odd, candidate(width=3)))
    assert (found[0].stage, found[0].outcome) == ("policy", "NEEDS_HUMAN")
    words = ["loop", "review", str(tmp_path)]
    assert main([*words, "--release", odd.id]) == EXIT_USAGE
    assert "go together" in capsys.readouterr().err
    assert main([*words, "--release", candidate(width=3).id, "--because", "x"]) == EXIT_USAGE
    assert "does not wait for a person" in capsys.readouterr().err
    assert main([*words, "--release", odd.id, "--because", "it reads a clock of the C library"]) == EXIT_OK
    run(tmp_path, host, lambda desk: None)  # its explorer does not ask again
    opened = database(tmp_path)
    opened.check_chain()
    verdict = opened.verdict(odd.id, "confirm")
    assert verdict is not None
    assert verdict.outcome == "ACCEPT"
    assert opened.verdict(odd.id, "policy") is not None  # that it wanted somebody stays on record
    forbidden = msgspec.structs.replace(odd, patch=f"{odd.patch}{odd.patch}".replace("b/faster", "b/../x", 1))
    refused = check(forbidden, frozenset(), read=True)
    assert refused is not None
    assert refused.outcome == "POLICY"  # a person's word opens one door and no other


def test_an_explorer_that_breaks_ends_alone(tmp_path: Path) -> None:
    def work(desk: Desk) -> None:
        desk.submit(candidate(width=6))
        raise RuntimeError("lost")

    run(tmp_path, Host(tmp_path, width), work)
    assert len(database(tmp_path).slots()) == 1
    assert any(event.kind == "explorer-failed" for event in database(tmp_path).events())


class Noting:
    """Tries, submits and asks in two rounds; what its last life was told lies in a file for each round."""

    name = "offline"

    def __init__(self, root: Path) -> None:
        self.root = root

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        number = seed // 1000
        wide, form = candidate(width=4), candidate(width=2, form="b")
        tried = [[wide, form, candidate(width=1)], [wide, form, candidate(width=3)]][number]
        told = desk.trial(tried)
        for one, said in list(zip(tried, told, strict=True))[:2]:
            if said.outcome == "PASSED":
                told.append(desk.submit(one))
        told += desk.heard()
        (self.root / f"told-{number}.json").write_bytes(msgspec.json.encode(told))


def campaign(root: Path, die: Callable[[State], None] = lambda _: None) -> None:
    """Tunes, finds, confirms, looks again at what it has, stacks and ablates: every state is reached."""
    root.mkdir(exist_ok=True)
    loop = make_loop(
        ablate=make_loop().plan.screen,
        tune=Tuning(trials=2, knobs=(Knob(name="width", values=(1, 2, 3)),), batch=2),
        rules=Rules(confirm_slots=3, launch_blocks=6),
        rounds=2,
    )
    host = Host(root, lambda params: width(params) * (1.2 if params.get("form") == "b" else 1.0), noise=0.002)
    Stage(root, host, loop).controller(die).run([Noting(root)])


def told(root: Path) -> list[str]:
    return [path.read_text() for path in sorted(root.glob("told-*.json"))]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[str], list[State]]:
    """How it ends, what its explorer was told, and the states that it went through."""
    root = tmp_path_factory.mktemp("whole")
    states: list[State] = []
    campaign(root, states.append)
    return final(root), told(root), states


def test_the_campaign_that_is_killed_goes_through_every_state(
    uninterrupted: tuple[dict[str, str], list[str], list[State]],
) -> None:
    end, _, states = uninterrupted
    assert set(states) == set(get_args(State))
    assert states.count("slot-opened") == 3
    assert sorted(end.values()).count("ACCEPT") == 3  # the two and their stack


def killed_and_continued(
    root: Path, moment: int, whole: tuple[dict[str, str], list[str], list[State]]
) -> None:
    """Killed at a moment and started anew, it ends where an uninterrupted one does and tells the same."""
    end, said, states = whole
    left = [moment]

    def die(_: State) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(lambda: campaign(root, die)) == -signal.SIGKILL
    campaign(root)
    again = final(root)
    database(root).check_chain()
    looked = (root / "shards").read_text().split()
    assert len(looked) == len(set(looked))  # no shard was looked at twice
    if states[moment] == "slot-opened":  # the slot is lost before anybody looked: one fewer is left
        assert again["slots"].count("lost") == 1
        assert len(looked) == 2
    else:
        assert again == end
        assert told(root) == said


@pytest.mark.parametrize("state", get_args(State))
def test_a_controller_that_is_killed_anywhere_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, state: State, uninterrupted: tuple[dict[str, str], list[str], list[State]]
) -> None:
    """At the last time that it reaches each state: most of what can be mistaken for undone lies behind it."""
    states = uninterrupted[2]
    moment = len(states) - 1 - states[::-1].index(state)
    killed_and_continued(tmp_path / "campaign", moment, uninterrupted)


@pytest.mark.slow
def test_a_controller_may_be_killed_at_every_moment(
    tmp_path: Path, uninterrupted: tuple[dict[str, str], list[str], list[State]]
) -> None:
    for moment in range(len(uninterrupted[2])):
        killed_and_continued(tmp_path / str(moment), moment, uninterrupted)


def test_a_campaign_is_not_continued_with_other_rules(tmp_path: Path) -> None:
    run(tmp_path, Host(tmp_path, width), lambda desk: None)
    other = make_loop(rules=Rules(alpha=0.4, confirm_slots=2, launch_blocks=6))
    with pytest.raises(UsageError, match="another loop"):
        run(tmp_path, Host(tmp_path, width), lambda desk: None, loop=other)


def test_a_changed_event_breaks_the_chain(tmp_path: Path) -> None:
    run(tmp_path, Host(tmp_path, width), lambda desk: desk.submit(candidate(width=6)))
    raw = sqlite3.connect(tmp_path / "loop.sqlite")
    raw.execute("UPDATE event SET body = replace(body, 'NO_GAIN', 'ACCEPT'), kind = 'x' WHERE seq = 2")
    raw.commit()
    raw.close()
    with pytest.raises(DataError, match="event 2 does not follow"):
        database(tmp_path).check_chain()
