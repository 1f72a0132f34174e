"""The ratios of an arm to the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from harness.errors import UsageError
from harness.plan import StatsSpec
from harness.records import Response
from harness.stats.speedup import Speedup, compare_arms, prompt_ratios
from tests.harness.stats.build import World, arm_responses, failed, response

SPEC = StatsSpec(resamples=1000)


def _compare(baseline: Sequence[Response], arm: Sequence[Response], *, batched: bool = False) -> Speedup:
    categories = {r.prompt_id: "all" for r in (*baseline, *arm)}
    return compare_arms(baseline, arm, categories, SPEC, batched=batched)


def test_total_time_says_slower_where_mean_and_geometric_mean_of_ratios_say_faster() -> None:
    """Three prompts of 2000, 50 and 50 tokens: the estimators most tools print are wrong in sign."""
    tokens = (2000, 50, 50)
    baseline = arm_responses("ar", np.array([[20.0, 0.5, 0.5]]), tokens=tokens)
    spec = arm_responses("s", np.array([[25.0, 0.2, 0.2]]), tokens=tokens)
    found = _compare(baseline, spec)
    assert found.headline is not None
    assert found.geometric_mean is not None
    assert found.grid is not None
    assert round(found.headline.point, 2) == 0.83
    assert round(found.geometric_mean.point, 2) == 1.71
    assert round(float(np.mean(prompt_ratios(found.grid))), 2) == 1.93
    assert found.slower_share == pytest.approx(1 / 3)
    # three prompts, one with 95 % of the time: nothing is proven either way
    assert found.headline.low < found.headline.point < 1.0 < found.headline.high


def test_headline_is_the_ratio_of_summed_times_over_all_launches_and_blocks() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.uniform(1.0, 3.0, (2, 4, 5))
    found = _compare(arm_responses("ar", one, blocks=2), arm_responses("s", other, blocks=2))
    assert found.headline is not None
    assert found.headline.point == pytest.approx(one.sum() / other.sum())
    assert (found.headline.launches, found.headline.blocks, found.headline.prompts) == (2, 2, 5)
    assert found.headline.resamples == SPEC.resamples
    assert found.geometric_mean is not None
    expected = np.exp(np.mean(np.log(one.sum(axis=0) / other.sum(axis=0))))
    assert found.geometric_mean.point == pytest.approx(expected)
    assert (found.pairs, found.lost) == (20, 0)


def test_decode_only_leaves_out_the_time_to_the_first_token() -> None:
    baseline = arm_responses("ar", np.array([[3.0, 5.0]]), first=1.0)
    arm = arm_responses("s", np.array([[2.0, 3.0]]), first=1.0)
    found = _compare(baseline, arm)
    assert found.decode is not None
    assert found.headline is not None
    assert found.decode.point == pytest.approx((2.0 + 4.0) / (1.0 + 2.0))
    assert found.headline.point == pytest.approx(8.0 / 5.0)


def test_a_run_of_single_tokens_has_no_decode_only_ratio() -> None:
    baseline = [response("a", seconds=1.0, first=1.0, tokens=1)]
    arm = [response("a", "s", seconds=0.5, first=0.5, tokens=1)]
    found = _compare(baseline, arm)
    assert found.decode is None
    assert found.headline is not None
    assert found.headline.point == pytest.approx(2.0)


def test_unequal_token_counts_compare_time_per_token_and_say_so() -> None:
    baseline = arm_responses("ar", np.array([[10.0, 10.0]]), tokens=(100, 100))
    arm = arm_responses("s", np.array([[5.0, 2.0]]), tokens=(100, 40))  # 20 tokens a second in both
    found = _compare(baseline, arm)
    assert found.headline is not None
    assert found.geometric_mean is not None
    assert found.headline.point == pytest.approx(20 / 10)
    assert found.geometric_mean.point == pytest.approx(2.0)
    assert "time per token" in found.headline.method
    assert found.slower_share == 0.0
    shorter = _compare(
        arm_responses("ar", np.array([[10.0]]), tokens=(100,)),
        arm_responses("s", np.array([[9.0]]), tokens=(80,)),
    )
    assert shorter.slower_share == 1.0  # it took less time only by saying less


def test_equal_token_counts_do_not_mention_time_per_token() -> None:
    found = _compare(arm_responses("ar", np.array([[2.0, 1.0]])), arm_responses("s", np.array([[1.0, 1.0]])))
    assert found.headline is not None
    assert "token," not in found.headline.method


def test_a_lost_pair_changes_neither_side_alone() -> None:
    times = np.array([[1.0, 100.0, 2.0]])
    baseline, arm = arm_responses("ar", times), arm_responses("s", times / 2.0)
    arm[1] = failed("p1", "s", order=1)
    found = _compare(baseline, arm)
    assert found.headline is not None
    assert found.headline.point == pytest.approx(2.0)
    assert (found.pairs, found.lost) == (2, 1)


def test_no_common_work_gives_no_number() -> None:
    found = _compare([failed("a")], [response("a", "s")])
    assert found.headline is None
    assert found.geometric_mean is None
    assert found.decode is None
    assert found.slower_share is None
    assert (found.by_category, found.pairs, found.lost) == ((), 0, 1)


def _by_category(
    grid_seed: int = 0, *, gain: float = 0.1
) -> tuple[list[Response], list[Response], dict[str, str]]:
    grid = World(prompts=30, gain=gain).draw(np.random.default_rng(grid_seed))
    categories = {f"p{n}": ("code", "chat", "math")[n % 3] for n in range(30)}
    return (
        arm_responses("ar", grid.baseline_ns, blocks=2),
        arm_responses("s", grid.arm_ns, blocks=2),
        categories,
    )


def test_categories_come_sorted_with_their_prompts_and_their_own_total_time_ratio() -> None:
    baseline, arm, categories = _by_category()
    found = compare_arms(baseline, arm, categories, SPEC)
    assert [(c.category, c.prompts) for c in found.by_category] == [("chat", 10), ("code", 10), ("math", 10)]
    for entry in found.by_category:
        ours = [
            sum(r.end_ns or 0 for r in side if categories[r.prompt_id] == entry.category)
            for side in (baseline, arm)
        ]
        assert entry.speedup.point == pytest.approx(ours[0] / ours[1])
        assert entry.speedup.confidence == 0.95
        assert "simultaneous over 3 categories (max-T)" in entry.speedup.method


def test_category_intervals_are_wider_than_each_one_alone() -> None:
    baseline, arm, categories = _by_category()
    joint = compare_arms(baseline, arm, categories, SPEC).by_category[0].speedup
    only = [[r for r in side if categories[r.prompt_id] == "chat"] for side in (baseline, arm)]
    alone = compare_arms(only[0], only[1], categories, SPEC)
    assert alone.headline is not None
    assert joint.point == pytest.approx(alone.headline.point)
    width, alone_width = np.log(joint.high / joint.low), np.log(alone.headline.high / alone.headline.low)
    assert 1.1 < width / alone_width < 1.6  # one of three: about 2.8 for 2.3 standard errors


def test_a_category_of_one_prompt_says_that_it_lacks_the_spread_of_prompts() -> None:
    baseline, arm, categories = _by_category()
    found = compare_arms(baseline, arm, categories | {"p0": "lone"}, SPEC)
    lone = next(c for c in found.by_category if c.category == "lone")
    assert lone.prompts == 1
    assert "one prompt: the spread between prompts is not in it" in lone.speedup.method


def test_a_batched_headline_counts_the_wall_time_of_each_batch_once() -> None:
    baseline = [response("a", seconds=4.0), response("b", seconds=1.0)]  # one batch: 4 s
    arm = [response("a", "s", seconds=1.0), response("b", "s", seconds=2.0)]  # one batch: 2 s
    found = _compare(baseline, arm, batched=True)
    assert found.headline is not None
    assert found.headline.point == pytest.approx(2.0)
    assert "wall time of each batch once" in found.headline.method
    assert found.geometric_mean is not None  # requests' own latencies: 4 and 1/2
    assert found.geometric_mean.point == pytest.approx(np.sqrt(4.0 * 0.5))
    assert "latency of each request" in found.geometric_mean.method
    assert found.slower_share == 0.5


def test_one_at_a_time_the_same_responses_are_summed() -> None:
    baseline = [response("a", seconds=4.0), response("b", seconds=1.0)]
    arm = [response("a", "s", seconds=1.0), response("b", "s", seconds=2.0)]
    found = _compare(baseline, arm)
    assert found.headline is not None
    assert found.headline.point == pytest.approx(5.0 / 3.0)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (StatsSpec(confidence=1.0), "stats.confidence"),
        (StatsSpec(confidence=0.3), "stats.confidence"),
        (StatsSpec(resamples=10), "stats.resamples"),
        (StatsSpec(equivalence_margin=-0.01), "stats.equivalence_margin"),
        (StatsSpec(equivalence_margin=1.0), "stats.equivalence_margin"),
        (StatsSpec(seed=-1), "stats.seed"),
    ],
)
def test_settings_no_interval_can_have_are_refused_by_field(spec: StatsSpec, field: str) -> None:
    with pytest.raises(UsageError, match=field):
        compare_arms([], [], {}, spec)
