"""Every mechanism of batching behind `serve`: requests that decode together get the bits of each alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli_serving import open_wanted
from harness.errors import UsageError
from harness.plan import ArmSpec, Deployment
from reference_mechanisms.backend import ReferenceSession, open_session
from reference_mechanisms.batching.batcher import Batcher
from reference_mechanisms.batching.driven import DrivenBatcher
from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.batching.settings import FIELDS
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.serving.commands import Wanted, mechanism
from tests.reference_mechanisms.batching.tables import staircase, write_costs
from tests.reference_mechanisms.serving.running import Client, serving
from tests.reference_mechanisms.test_trained_arms import folder_of

SLOTS, TOKENS = 3, 16
PROMPTS = ((256, 97, 98), (256, 1), (9, 9, 9, 9, 9, 9), tuple(range(40)), (256, 7, 7))
Params = dict[str, str | int | float | bool]


class Case(NamedTuple):
    """A mechanism: words of `--mechanism` behind the drafter, and what must run it."""

    drafter: str
    words: str
    engine: type[BatchEngine]
    costs: bool = False


# DRAFTER stands for the folder of a small one, COSTS for a table of this deployment.
CASES = {
    "one for all": Case("ngram", "k=4 batch_ragged=false", Batcher),
    "prompts in pieces": Case("ngram", "k=4 batch_prefill_rows=3", Batcher),
    "whole prompts": Case("ngram", "k=4 batch_prefill_rows=0", Batcher),
    "cohorts": Case("ngram", "k=4 batch_cohorts=true", Batcher),
    "budget of habits": Case("ngram", "k=4 batch_budget=true batch_adaptive=true", Batcher, costs=True),
    "budget of confidences": Case("dspark", "batch_budget=true batch_cohorts=true", Batcher, costs=True),
    "trees": Case("dspark", "tree=8 batch_tree_budget=true", Batcher, costs=True),
    "trees, buckets": Case("dspark", "tree=8 batch_tree_budget=true batch_buckets=true", Batcher, costs=True),
    "buckets, host": Case("ngram", "k=4 batch_buckets=true batch_prefill_rows=5", Batcher),
    "buckets, device": Case("dflash", "batch_buckets=true", DrivenBatcher),
    "buckets, device, budget": Case(
        "dflash", "batch_buckets=true batch_budget=true batch_adaptive=true", DrivenBatcher, costs=True
    ),
}


@pytest.fixture(scope="module")
def session(deployment: Deployment) -> Iterator[ReferenceSession]:
    arm = ArmSpec(name="ar", kind="ar", backend="", params={"drafter": "none"})
    found = open_session(deployment, [arm])
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(session: ReferenceSession) -> dict[tuple[int, ...], tuple[list[int], str | None]]:
    """Ids of each request alone, without drafts, and what its logits hash to."""
    found = {}
    for prompt in PROMPTS:
        sampling = Sampling(max_tokens=TOKENS, ignore_eos=True)
        request = Request(name="r", prompt=prompt, sampling=sampling, capture_logits=True)
        events = list(session.events("ar", [request]))
        found[prompt] = [token for event in events for token in event.token_ids], events[-1].logits_sha256
    return found


def params_of(case: Case, deployment: Deployment, folder: Path) -> Params:
    words = [case.drafter, f"batch_slots={SLOTS}", *case.words.split()]
    if case.drafter != "ngram":
        words.append(f"checkpoint={folder_of(case.drafter, folder)}")
    if case.costs:
        table = write_costs(folder / "costs.json", deployment, staircase(SLOTS + 1, 8, row=0.05))
        words.append(f"step_costs={table}")
    return mechanism(words)


def ask_all(client: Client, *, hashing: bool) -> list[tuple[list[int], str | None]]:
    """Ids of all requests at once, and the hashes of their logits where they are taken."""
    client.gate.hashing = hashing

    def ask(prompt: tuple[int, ...]) -> tuple[list[int], str | None]:
        body: dict[str, Any] = {"prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0}
        answer = client.post("/v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
        assert answer.status == 200, answer
        return answer.body["choices"][0]["token_ids"], client.gate.hashes[answer.body["id"]]

    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        return list(threads.map(ask, PROMPTS))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ids_and_logits_are_those_of_each_request_alone(
    case: Case,
    deployment: Deployment,
    tmp_path: Path,
    expected: dict[tuple[int, ...], tuple[list[int], str | None]],
) -> None:
    with serving(deployment, params_of(case, deployment, tmp_path)) as client:
        assert type(client.gate.engine) is case.engine
        plain = ask_all(client, hashing=False)
        hashed = ask_all(client, hashing=True)
    assert plain == [(expected[prompt][0], None) for prompt in PROMPTS]
    assert hashed == [expected[prompt] for prompt in PROMPTS]


def test_every_parameter_of_batching_is_served_in_some_case() -> None:
    given = {word.partition("=")[0] for case in CASES.values() for word in case.words.split()}
    assert {*given, "batch_slots", "step_costs"} >= set(FIELDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ngram batch_slot=4", "`batch_slot` is unknown; drafter 'ngram' takes .*`batch_slots`"),
        ("ngram batch_slots=0", "`batch_slots` must be an integer in 1..512, got 0"),
        ("ngram batch_slots=many", "`batch_slots` must be an integer in 1..512, got 'many'"),
        ("ngram batch_buckets=1", "`batch_buckets` must be true or false, got 1"),
        ("ngram batch_prefill_rows=-1", "`batch_prefill_rows` must be an integer in 0.."),
        ("ngram batch_adaptive=true", "`batch_adaptive` needs measured costs.*Give `step_costs`"),
        ("ngram step_costs=nowhere.json", "`step_costs` must be the file of a measured table"),
        ("ngram batch_tree_budget=true step_costs=COSTS", "give its number of nodes"),
        ("ngram batch_cohorts=true batch_slots=1", "`batch_cohorts` needs at least 2 `batch_slots`"),
        ("ngram batch_cohorts=true batch_ragged=false", "cohorts are not in step"),
        ("ngram two_level=stage stage_first=2 batch_slots=2", "`two_level` does not go with"),
    ],
)
def test_a_wrong_parameter_is_one_sentence_before_anything_is_loaded(
    deployment_file: Path, tmp_path: Path, words: str, said: str
) -> None:
    table = tmp_path / "costs.json"
    table.write_text("{}")
    params = mechanism(words.replace("COSTS", str(table)).split())
    with pytest.raises(UsageError, match=f"^--mechanism: .*{said}") as refused:
        open_wanted(Wanted(str(deployment_file), None, "reproduce-cpu", params, None))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "`step_costs`: .*`schema` is None"),
        ("nonsense", "`step_costs`: .*holds no figures of step costs"),
    ],
)
def test_a_table_that_is_none_is_told_before_the_server_is_ready(
    deployment: Deployment, tmp_path: Path, text: str, said: str
) -> None:
    table = tmp_path / "costs.json"
    table.write_text(text)
    params = mechanism(["ngram", "batch_budget=true", f"step_costs={table}"])
    with pytest.raises(UsageError, match=said), serving(deployment, params):
        pass
