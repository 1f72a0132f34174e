"""Trees in steps of fixed shape: events of the dynamic engine, and bits of autoregressive decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.turns import side_by_side
from reference_mechanisms.errors import RequestError
from reference_mechanisms.kernels.step import tree_choice, trees
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from reference_mechanisms.verification.budgeting import Costs
from reference_mechanisms.verification.calibrating import Calibration, Line
from reference_mechanisms.verification.tree import PADDING
from tests.exhaustive import slow_but
from tests.reference_mechanisms.engine.forcing import Grove, GroveDrafter, ids_of
from tests.reference_mechanisms.engine.test_static_steps import (
    CAPACITY,
    DRAFTS,
    HOST,
    PROMPTS,
    decoded,
    text_of,
)
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

NODES, ROWS = 11, 16
FEW = ("dflash", "eagle3")  # one block of positions, and one position after another
Known = dict[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("static") / "target")


@pytest.fixture(scope="module")
def target(folder: Path) -> LlamaTarget:
    """In float64, where a drafter's choices do not hang on how its sums are taken."""
    return load_llama(folder, torch.float64, CPU)


@pytest.fixture(scope="module")
def bitwise(folder: Path) -> LlamaTarget:
    if not prepacks(torch.float32, CPU):
        pytest.skip("no prepacked product here: torch's own rounds by the row count")
    return load_llama(folder, torch.float32, CPU)


@pytest.fixture(scope="module", params=list(NETWORKS))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def static(target: LlamaTarget, eos: tuple[int, ...] = (), ahead: int | None = None) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(target.device), ahead=ahead))
    return Decoder(target, eos, text_of, CAPACITY, lanes=lanes)


def dynamic(target: LlamaTarget, eos: tuple[int, ...] = ()) -> Decoder:
    return Decoder(target, eos, text_of, CAPACITY, spare=NODES)


@pytest.fixture(scope="module")
def known(target: LlamaTarget) -> Known:
    sampling = Sampling(max_tokens=40)
    return {prompt: ids_of(decoded(dynamic(target), NoDrafter(), prompt, sampling)) for prompt in PROMPTS}


def bound_to(name: str, target: LlamaTarget) -> Bound:
    return bind(NETWORKS[name]().to(target.dtype), target, "drafter")


@pytest.mark.parametrize("name", slow_but(FEW, NETWORKS), indirect=True)
def test_its_own_trees_give_the_dynamic_events_at_every_budget(target: LlamaTarget, name: str) -> None:
    """Which nodes there are, and so what is accepted, is what `grow` says on the host."""
    one, other, bound = dynamic(target), static(target), bound_to(name, target)
    accepted = set()
    budgets = (*range(1, DRAFTS + 4), 24) if name == "dflash" else (DRAFTS, 24)  # what is cut is not its
    for nodes in (1, 4, NODES) if name == "dflash" else (4, NODES):
        drafting = Drafting(drafts=DRAFTS, tree=nodes)
        for budget in budgets if nodes == NODES else (24,):
            for prompt in PROMPTS if budget == 24 and nodes == NODES else PROMPTS[:1]:
                sampling = Sampling(max_tokens=budget)
                expected = decoded(one, bound.new_drafter(drafting), prompt, sampling)
                found = decoded(other, bound.new_drafter(drafting), prompt, sampling)
                assert found == expected
                accepted |= {event.accepted for event in found}
    assert len(accepted) > 1


@pytest.mark.parametrize("name", slow_but(FEW, NETWORKS), indirect=True)
def test_logits_are_bitwise_the_autoregressive_ones(bitwise: LlamaTarget, name: str) -> None:
    decoder, sampling, bound = static(bitwise), Sampling(max_tokens=40), bound_to(name, bitwise)
    accepted, drafted = set(), set()
    for prompt in PROMPTS:
        plain = decoded(decoder, NoDrafter(), prompt, sampling, capture=True)
        for seed in range(2):
            grove = Grove(ids_of(plain), VOCAB, seed, CPU)
            drafter = GroveDrafter(bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), grove, prompt)
            events = decoded(decoder, drafter, prompt, sampling, capture=True)
            assert ids_of(events) == ids_of(plain)
            assert events[-1].logits_sha256 == plain[-1].logits_sha256
            accepted |= {event.accepted for event in events}
            drafted |= {event.drafted for event in events}
    assert accepted >= {0, 1, 2, 3}
    assert len(drafted) > 3


def test_a_drafter_that_lived_through_rejections_plants_as_a_new_one(target: LlamaTarget, name: str) -> None:
    """Behind every accepted path the program's own tree is that of a drafter that reads plain taps."""
    prompt, sampling, bound = PROMPTS[0], Sampling(max_tokens=24), bound_to(name, target)
    plain = ids_of(decoded(dynamic(target), NoDrafter(), prompt, Sampling(max_tokens=40)))
    drafting = Drafting(drafts=DRAFTS, tree=NODES)
    scripted = GroveDrafter(bound.new_drafter(drafting), Grove(plain, VOCAB, 3, CPU), prompt)
    events = decoded(static(target), scripted, prompt, sampling)
    assert len({event.accepted for event in events}) > 2
    made = scripted.program_made
    assert made is not None
    for start, tokens, parents in made.planted[:-1]:
        fresh, emitted = bound.new_drafter(drafting), start - len(prompt) + 1
        fresh.begin(0, Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=40)))
        fresh.extend(0, taps_of(target, fresh.taps, (*prompt, *plain[: emitted - 1])))
        wanted = [Wanted(0, plain[:emitted], sampling.max_tokens - emitted - 1)]
        proposal = fresh.propose(wanted)[0]
        count = len(proposal.token_ids)
        assert tuple(tokens[1 : 1 + count].tolist()) == proposal.token_ids
        assert [parent - 1 for parent in parents[1 : 1 + count].tolist()] == list(proposal.parents or ())
        assert set(parents[1 + count :].tolist()) <= {PADDING}


def taps_of(target: LlamaTarget, taps: Sequence[int], ids: Sequence[int]) -> Tensor:
    cache = target.new_cache(1, len(ids))
    rows = Rows(ids, range(len(ids)), (Segment(0, 0, len(ids)),))
    return side_by_side(target.forward(rows, cache, taps))


def test_steps_started_ahead_give_the_same_events(target: LlamaTarget, known: Known, name: str) -> None:
    """Request after request, each ended by a token that a step behind it has already been started from."""
    bound, ahead = bound_to(name, target), static(target, ahead=1)
    for prompt in PROMPTS:
        sampling = Sampling(max_tokens=24, stop_token_ids=(known[prompt][17],))
        drafting = Drafting(drafts=DRAFTS, tree=NODES)
        expected = decoded(static(target), bound.new_drafter(drafting), prompt, sampling)
        assert decoded(ahead, bound.new_drafter(drafting), prompt, sampling) == expected


def test_a_stop_ends_the_output_at_every_place_of_a_path(target: LlamaTarget, known: Known) -> None:
    prompt, places, bound = PROMPTS[0], set(), bound_to("dflash", target)
    for eos in list(dict.fromkeys(known[prompt][:20]))[::2]:
        plain = decoded(dynamic(target, (eos,)), NoDrafter(), prompt, Sampling(max_tokens=20))
        for seed in range(4):
            grove = Grove(known[prompt], VOCAB, seed, CPU)
            drafter = GroveDrafter(bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), grove, prompt)
            events = decoded(static(target, (eos,)), drafter, prompt, Sampling(max_tokens=20))
            assert ids_of(events) == ids_of(plain)
            assert events[-1][5:8] == plain[-1][5:8]  # finish reason, stop reason, text
            if events[-1].kind == "step":
                places.add(len(events[-1].token_ids) - 1)
    assert places >= {0, 1, 2, 3}


@pytest.mark.parametrize("sampling", HOST.values(), ids=HOST)
def test_trees_of_the_host_give_the_dynamic_events(
    target: LlamaTarget, known: Known, sampling: Sampling
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        one, other = (RandomTrees(known, VOCAB, seed, NODES) for _ in range(2))
        expected = decoded(dynamic(target), one, prompt, sampling)
        assert decoded(static(target), other, prompt, sampling) == expected


@pytest.mark.parametrize("name", slow_but(FEW, NETWORKS), indirect=True)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_tree_that_the_host_cuts_is_verified_too(
    target: LlamaTarget, name: str, temperature: float
) -> None:
    bound, sampling = bound_to(name, target), Sampling(max_tokens=24, temperature=temperature, seed=4)
    drafting = Drafting(drafts=DRAFTS, tree=NODES, costs=Costs(0.1, {1: 1.0, 4: 1.1, 12: 1.6}))
    expected = decoded(dynamic(target), bound.new_drafter(drafting), PROMPTS[0], sampling)
    assert decoded(static(target), bound.new_drafter(drafting), PROMPTS[0], sampling) == expected


@pytest.mark.parametrize("name", slow_but(["dflash"], NETWORKS), indirect=True)
def test_calibrated_worth_plants_other_trees_and_the_dynamic_ones(target: LlamaTarget, name: str) -> None:
    bound, sampling = bound_to(name, target), Sampling(max_tokens=24)
    calibration = Calibration((Line(0.4, -0.5), Line(0.6, -0.2)), 0.5)
    raw = Drafting(drafts=DRAFTS, tree=6)
    drafting = dataclasses.replace(raw, calibration=calibration)
    for prompt in PROMPTS:
        expected = decoded(dynamic(target), bound.new_drafter(drafting), prompt, sampling)
        assert decoded(static(target), bound.new_drafter(drafting), prompt, sampling) == expected
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU)))
    one, other = (lanes.planting((), bound.new_drafter(each)) for each in (raw, drafting))
    assert one is not other


@pytest.mark.parametrize("name", slow_but(["dflash"], NETWORKS), indirect=True)
def test_a_request_is_served_up_to_the_last_position(target: LlamaTarget, name: str) -> None:
    prompt = PROMPTS[2]
    sampling = Sampling(max_tokens=CAPACITY - len(prompt))
    expected = decoded(dynamic(target), NoDrafter(), prompt, sampling)
    drafter = bound_to(name, target).new_drafter(Drafting(drafts=DRAFTS, tree=NODES))
    found = decoded(static(target), drafter, prompt, sampling)
    assert ids_of(found) == ids_of(expected)
    assert len(ids_of(found)) == sampling.max_tokens


def test_steps_of_fewer_rows_beside_it_have_the_same_bits(bitwise: LlamaTarget) -> None:
    """Where rows round alike an arm needs no more rows than its own drafts."""
    lanes, sampling, prompt = (
        Lanes(bitwise, CAPACITY, Static(24, Graphs(CPU))),
        Sampling(max_tokens=40),
        PROMPTS[2],
    )
    bound, few = bound_to("dflash", bitwise), lanes.narrowed(5)
    assert (few.rows, lanes.rows) == (8, 24)
    plain, wide = (Decoder(bitwise, (), text_of, CAPACITY, lanes=one) for one in (few, lanes))
    events = decoded(plain, NoDrafter(), prompt, sampling, capture=True)
    grove = GroveDrafter(
        bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), Grove(ids_of(events), VOCAB, 1, CPU), prompt
    )
    drafted = decoded(wide, grove, prompt, sampling, capture=True)
    chain = decoded(plain, bound.new_drafter(Drafting(drafts=DRAFTS)), prompt, sampling, capture=True)
    assert {one[-1].logits_sha256 for one in (events, drafted, chain)} == {events[-1].logits_sha256}


def test_steps_stay_as_wide_where_rows_may_round_otherwise(target: LlamaTarget) -> None:
    lanes = Lanes(target, CAPACITY, Static(24, Graphs(CPU)))
    assert lanes.narrowed(5).rows == 24


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "path not brought together": lambda patch: patch.setattr(
        trees, "TORCH_TREES", trees.TORCH_TREES._replace(move=lambda places, turn: None)
    ),
    "positions in the order of rows": lambda patch: patch.setattr(
        trees, "TORCH_TREES", trees.TORCH_TREES._replace(lay=in_order)
    ),
}


def in_order(turn: trees.TreeTurn) -> None:
    trees.lay(turn)
    turn.depths.copy_(torch.arange(turn.rows).clamp_max(DRAFTS))


@pytest.mark.parametrize("how", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_seen(
    bitwise: LlamaTarget, how: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests."""
    sampling, prompt = Sampling(max_tokens=40), PROMPTS[0]
    plain = decoded(static(bitwise), NoDrafter(), prompt, sampling, capture=True)
    how(monkeypatch)
    monkeypatch.setattr(tree_choice, "TORCH_TREES", trees.TORCH_TREES)
    bound = bound_to("dflash", bitwise)
    drafter = GroveDrafter(
        bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), Grove(ids_of(plain), VOCAB, 1, CPU), prompt
    )
    events = decoded(static(bitwise), drafter, prompt, sampling, capture=True)
    assert events[-1].logits_sha256 != plain[-1].logits_sha256


def test_a_tree_of_more_rows_than_the_step_is_refused(target: LlamaTarget, known: Known) -> None:
    lane = Lanes(target, CAPACITY, Static(8, Graphs(CPU))).checking_trees(())
    with pytest.raises(ValueError, match="a tree of 8 nodes in a step of 8 rows"):
        lane.verify([0] * 9, range(-1, 8), 0)


def test_logits_that_are_no_numbers_are_refused(folder: Path) -> None:
    broken = load_llama(folder, torch.float32, CPU)
    broken._head = lambda rows: torch.full((len(rows), VOCAB), torch.nan)
    with pytest.raises(RequestError, match="no numbers"):
        Lanes(broken, CAPACITY, Static(8, Graphs(CPU))).checking_trees(()).verify([0, 1], [-1, 0], 0)
