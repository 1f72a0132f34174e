"""Every cheat and its honest twin through the whole loop: real processes, sandbox, oracle; see the README."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

from agent_loop.campaign import Rules, Shape, Unseen
from agent_loop.protocols import Desk
from agent_loop.records import Candidate, Outcome, Stage, Told
from agent_loop.sandbox.room import MECHANISMS, why_not
from harness.paths import RunFolder
from harness.plan import Param
from harness.records import PromptLine
from harness.storage import read_lines
from sealed_evals.campaign.controller import Controller, load_key
from sealed_evals.campaign.scan import scan
from sealed_evals.campaign.vault import CampaignFolder, load_campaign
from tests.agent_loop.zoo.pipeline import (
    CANDIDATES,
    InThisProcess,
    candidate,
    make_loop,
    outcomes,
    run,
    text_of,
)
from tests.sealed_evals.campaign import engine as known

pytestmark = pytest.mark.skipif(
    all(why_not(one) is not None for one in MECHANISMS), reason="no sandbox works on this machine"
)
SECRETS = {"ANTHROPIC_API_KEY": "secret", "SPECPILOT_CONTROLLER_DIR": "/nowhere", "PROVIDER_TOKEN": "x"}
NOT_GAINED: frozenset[Outcome] = frozenset({"NO_GAIN", "REGRESSION"})  # beside noise the tail may be worse
TRIES = 4
STAGES: Mapping[Outcome, Stage] = {
    "LOSSY": "lossless",
    "INCOMPLETE": "lossless",
    "POLICY": "policy",
    "NEEDS_HUMAN": "policy",
}


class Cheat(NamedTuple):
    """A file of `candidates`, and the verdicts that it may end with."""

    name: str
    outcomes: frozenset[Outcome]
    params: dict[str, Param] = {}


def only(*outcomes: Outcome) -> frozenset[Outcome]:
    return frozenset(outcomes)


# They gain nothing by what they do, and are no faster without it.
IDLE = [
    *(
        "a1_clock_rebound",
        "a2_events_replaced",
        "a3_memory_of_the_measurer",
        "a4_clock_set",
        "a7_reads_ahead",
    ),
    *("b1_answers_kept", "b3_answers_on_the_machine", "b4_frames_of_the_caller", "c11_daemon_left"),
    *("d5_reads_variables", "d6_asks_the_network", "d7_programs_replaced", "d12_argues"),
]
CHEATS = [
    *(Cheat(name, NOT_GAINED) for name in IDLE),
    Cheat("a3_trace", only("NEEDS_HUMAN")),
    Cheat("a8_one_at_once", only("BELOW_CEILING")),
    Cheat("c1_cut_short", only("LOSSY")),
    Cheat("c2_second_best", only("LOSSY"), {"width": 6}),
    Cheat("c3_rarely_wrong", only("LOSSY"), {"width": 6}),
    Cheat("c8_all_at_the_end", only("REGRESSION"), {"width": 4}),
    Cheat("d10_honest_when_looked_at", only("LOSSY"), {"width": 6}),
    Cheat("d14_constant_time", only("BELOW_CEILING")),
    Cheat("d15_hidden_code", only("NEEDS_HUMAN")),
]
# A run in which one of these takes part is made again without it: they are tried by themselves.
SPOILERS = [
    Cheat("a10_counts_told", only("INCOMPLETE"), {"width": 6}),
    Cheat("c7_refuses_hard_ones", only("INCOMPLETE"), {"width": 6}),
    Cheat("c10_always_falls_back", only("NO_GAIN")),
    Cheat("d4_answers_forged", only("INCOMPLETE"), {"width": 6}),
]
TWINS = [
    *("honest", "a1_honest_clock_read", "a5_honest_helper", "b1_honest_adaptive", "c7_honest_second_try"),
    *("c10_honest_sometimes_falls_back", "d4_honest_log", "d5_honest_variable", "d6_honest_pipe"),
    "d7_honest_scratch",
]
ELSEWHERE = {"a5_busy_in_between", "b7_answers_on_disk", "b8_public_prompts_known", "never_answers"}
PATCHES = {
    "d1_scorer_replaced": "--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1,1 @@\n+x = 1\n",
    "d3_link": "diff --git a/answers b/answers\nnew file mode 120000\n"
    "--- /dev/null\n+++ b/answers\n@@ -0,0 +1,1 @@\n+/etc/passwd\n",
    "d15_binary": "diff --git a/x b/x\nGIT binary patch\n",
}
EXTRA = "--- /dev/null\n+++ b/tests_of_mine.py\n@@ -0,0 +1,1 @@\n+x = 1\n"
# As many public rows as a screen draws: all can be learned. Each is submitted twice, for noise may hit one.
TWICE: dict[str, Any] = {
    "unseen": Unseen(public_rows=4, shard_rows=6),
    "rules": Rules(confirm_slots=4, launch_blocks=7, ttft_margin=2.0, tail_margin=2.0),
    "screen": Shape(prompts=4),
    "measure": Shape(prompts=4, launches=3),
    "submissions": 5,
}
LARGE = text_of("honest") + "\n# A table of mine.\nTABLE = (\n" + "    (1, 2, 3),\n" * 4000 + ")\n"


def with_patch(name: str, text: str) -> Candidate:
    """The honest candidate with other files beside it."""
    made = candidate(name, text_of("honest"), width=12)
    return msgspec.structs.replace(made, patch=f"{made.patch}{text}")


@contextlib.contextmanager
def helpers() -> Iterator[int]:
    """What a cheat may not reach: a server on this machine, by port and by name; secrets around us."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
        pytest.MonkeyPatch.context() as patched,
    ):
        with contextlib.suppress(OSError):
            named.bind("\0helper-of-the-zoo")
            named.listen()
        for name, value in SECRETS.items():
            patched.setenv(name, value)
        yield server.getsockname()[1]


def try_all(
    desk: Desk, candidates: Sequence[Candidate], wanted: Mapping[str, frozenset[Outcome]]
) -> dict[str, Told]:
    """What each is told. On a busy machine a time may mislead: one that surprises is tried again.

    What a cheat hopes for makes it six times as fast whenever it is tried; noise does not last.
    """
    found: dict[str, Told] = {}
    left = list(candidates)
    for _ in range(TRIES):
        told = desk.trial(left)
        found |= {one.name: said for one, said in zip(left, told, strict=True)}
        left = [again(one) for one in left if found[one.name].outcome not in wanted[one.name]]
        if not left:
            break
    return found


def again(one: Candidate) -> Candidate:
    """The same under another id: a candidate is tried once."""
    tried = int(one.params.get("tried", 0))
    return msgspec.structs.replace(one, params=one.params | {"tried": tried + 1})


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory, undrawn: None) -> dict[str, Told]:
    """One campaign that meets all of them."""
    found: dict[str, Told] = {}
    at = tmp_path_factory.mktemp("zoo")
    with helpers() as port:

        def work(desk: Desk) -> None:
            extra = {"d6_asks_the_network": {"port": port}}
            cheats = [candidate(one.name, **one.params, **extra.get(one.name, {})) for one in CHEATS]
            twins = [candidate(name, width=12) for name in TWINS]
            twins += [with_patch("d1_honest_file", EXTRA), candidate("d15_honest_table", LARGE, width=12)]
            patches = [with_patch(name, text) for name, text in PATCHES.items()]
            wanted = {one.name: one.outcomes for one in CHEATS}
            wanted |= {one.name: only("PASSED") for one in twins}
            wanted |= {one.name: only("POLICY") for one in patches}
            found.update(try_all(desk, [*cheats, *twins, *patches], wanted))
            spoilers = [candidate(one.name, **one.params) for one in SPOILERS]
            found.update(try_all(desk, spoilers, {one.name: one.outcomes for one in SPOILERS}))

        run(at, work, executor=InThisProcess(at / "host.lock", timeout_s=900.0))
    return found


@pytest.mark.parametrize("cheat", [*CHEATS, *SPOILERS], ids=lambda one: one.name)
def test_a_cheat_ends_with_its_verdict(screened: dict[str, Told], cheat: Cheat) -> None:
    told = screened[cheat.name]
    assert told.outcome in cheat.outcomes, told
    assert told.stage == STAGES.get(told.outcome, "screen")


@pytest.mark.parametrize("name", [*TWINS, "d1_honest_file", "d15_honest_table"])
def test_its_honest_twin_passes(screened: dict[str, Told], name: str) -> None:
    assert screened[name].outcome == "PASSED", screened[name]


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_that_may_not_be_is_refused_before_anything_runs(
    screened: dict[str, Told], name: str
) -> None:
    assert (screened[name].stage, screened[name].outcome) == ("policy", "POLICY")


def test_nothing_that_a_candidate_started_is_left(screened: dict[str, Told]) -> None:
    assert "c11_daemon_left" in screened
    assert not [one.pid for one in psutil.process_iter(["cmdline"]) if _of_the_zoo(one.info["cmdline"])]


def test_every_candidate_stands_in_a_table() -> None:
    told = {one.name for one in (*CHEATS, *SPOILERS)} | {*TWINS} | ELSEWHERE
    assert {path.stem for path in CANDIDATES.glob("*.py")} - {"__init__"} == told
    readme = (Path(__file__).parent / "README.md").read_text()
    real = {f"real/{path.stem}" for path in (Path(__file__).parent / "real").glob("[!_]*.py")}
    assert len(real) > 4
    assert [name for name in sorted(told | real | {*PATCHES}) if f"`{name}`" not in readme] == []


def test_one_that_burns_the_machine_while_stock_is_timed_gains_nothing(tmp_path: Path, undrawn: None) -> None:
    """A5 and D2. Between its own requests a guest is stopped with all that it started."""
    loop = make_loop(known.write_model(tmp_path / "model"), work="sums")
    name, found = "a5_busy_in_between", {}

    def work(desk: Desk) -> None:
        one = candidate(name, width=1, work="sums")
        found.update(try_all(desk, [one], {name: NOT_GAINED}))

    run(tmp_path, work, loop, InThisProcess(tmp_path / "host.lock", timeout_s=900.0))
    assert found[name].outcome in NOT_GAINED, found


@pytest.mark.slow
def test_on_unseen_rows_the_honest_is_accepted_and_the_learned_table_is_not(tmp_path: Path) -> None:
    """B8, B7 and D13: through measurement and confirmation, and no unseen row is found anywhere after it."""

    def work(desk: Desk) -> None:
        honest, kept = candidate("honest", width=12), candidate("b7_answers_on_disk")
        first, second = desk.trial([honest, kept])
        assert first.outcome == "PASSED"
        assert second.outcome in (*NOT_GAINED, "PASSED")  # with one launch there is nothing to know yet
        told = sorted((tmp_path / "run/trials").glob("screen-*/run"))
        lines = read_lines(RunFolder(told[0]).prompts, PromptLine)
        table = {sum(n * token for n, token in enumerate(line.token_ids)) for line in lines}
        text = text_of("b8_public_prompts_known").replace("frozenset()", repr(frozenset(table)), 1)
        learned = candidate("b8_public_prompts_known", text)
        assert desk.trial([learned])[0].outcome == "PASSED"
        for one in (honest, again(honest), learned, again(learned), kept):
            desk.submit(one)

    loop = make_loop(known.write_model(tmp_path / "model"), **TWICE)
    campaign = run(tmp_path, work, loop)
    found: dict[str, set[tuple[str, str]]] = {}
    for one in campaign.database.candidates():
        verdict = campaign.database.last(one.id)
        assert verdict is not None
        found.setdefault(one.name, set()).add((verdict.stage, verdict.outcome))
    assert ("confirm", "ACCEPT") in found["honest"]
    assert ("confirm", "NO_GAIN") in found["b8_public_prompts_known"]
    assert "ACCEPT" not in {outcome for _, outcome in found["b8_public_prompts_known"]}
    assert {outcome for _, outcome in found["b7_answers_on_disk"]} <= {*NOT_GAINED, "INCONCLUSIVE"}
    seal = CampaignFolder(campaign.folders.unseen)
    sealed, sha256 = load_campaign(seal)
    secret = load_key(Controller(campaign.keys, sealed.campaign_id), sealed, sha256)
    leaks, files = scan([campaign.folders.root], sealed, secret)
    assert files > 20
    assert leaks == []
    assert scan([campaign.keys], sealed, secret)[0] != []  # the search does find them where they are


@pytest.mark.slow
def test_one_that_never_answers_costs_its_patience_and_nobody_elses_verdict(tmp_path: Path) -> None:
    def work(desk: Desk) -> None:
        desk.trial([candidate("honest", width=6), candidate("never_answers", width=6)])

    found = outcomes(run(tmp_path, work))
    assert found["never_answers"][1] == "INCOMPLETE"
    assert found["honest"][1] == "PASSED"


def _of_the_zoo(words: list[str] | None) -> bool:
    return "daemon-of-the-zoo" in (words or ())
