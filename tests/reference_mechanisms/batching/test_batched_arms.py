"""Batching as parameters of an arm, through the backend."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, Sampling
from reference_mechanisms.backend import ReferenceSession, open_session
from reference_mechanisms.batching.batcher import Batcher
from reference_mechanisms.batching.driven import DrivenBatcher
from tests.harness.tiny import deployment_of, write_llama
from tests.reference_mechanisms.batching.tables import staircase, write_costs
from tests.reference_mechanisms.test_trained_arms import BACKEND, folder_of


def arm(name: str, **params: str | float | bool) -> ArmSpec:
    return ArmSpec(name=name, kind="candidate", backend=BACKEND, params=params)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_llama(tmp_path_factory.mktemp("batched") / "target"), context_length=96)


@pytest.fixture(scope="module")
def session(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> ReferenceSession:
    folder = tmp_path_factory.mktemp("drafters")
    table = write_costs(folder / "costs.json", deployment, staircase(2, 8, row=0.01))
    costs: dict[str, str | float | bool] = {"step_costs": table, "batch_slots": 2}
    dspark: dict[str, str | float | bool] = {"drafter": "dspark", "checkpoint": folder_of("dspark", folder)}
    return open_session(
        deployment,
        [
            arm("plain", drafter="none"),
            arm("slots", drafter="ngram", drafts=4, ngram_min=1, batch_slots=2, batch_prefill_rows=3),
            arm("shared", **dspark, **costs, batch_budget=True, batch_adaptive=True),
            arm("buckets", **dspark, **costs, batch_budget=True, batch_adaptive=True, batch_buckets=True),
            arm("driven", drafter="dflash", checkpoint=folder_of("dflash", folder), batch_buckets=True),
            arm("trees", **dspark, **costs, tree=8, batch_tree_budget=True),
            arm("recorded trees", **dspark, **costs, tree=8, batch_tree_budget=True, batch_buckets=True),
        ],
    )


@pytest.mark.parametrize("name", ["slots", "shared", "buckets", "driven", "trees", "recorded trees"])
def test_an_arm_that_batches_emits_the_same_ids_from_the_same_logits(
    session: ReferenceSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    kind = DrivenBatcher if name == "driven" else Batcher
    inner = kind.step

    def counted(self: Batcher | DrivenBatcher) -> object:
        nonlocal steps
        steps += 1
        return inner(self)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "step", counted)
    requests = [
        DecodeRequest(
            request_id=f"r{n}",
            prompt_token_ids=(256, *range(40, 44 + n)),
            sampling=Sampling(max_tokens=10, ignore_eos=True),
            capture_logits=True,
        )
        for n in range(4)
    ]
    found = {}
    for which in ("plain", name):
        events = list(session.stream(which, requests))
        ids = [tuple(t for e in events if e.index == place for t in e.token_ids) for place in range(4)]
        found[which] = ids, {e.index: e.logits_sha256 for e in events if e.finish_reason}
    assert found[name] == found["plain"]
    assert steps > 0


def test_arms_on_a_hybrid_target_do_too(hybrid_folder: Path) -> None:
    both: dict[str, str | float | bool] = {"batch_buckets": True, "batch_slots": 2}
    session = open_session(
        deployment_of(hybrid_folder, context_length=64),
        [
            arm("plain", drafter="none"),
            arm("own", drafter="none", **both),
            arm("drafts", drafter="ngram", drafts=3, ngram_min=1, **both),
        ],
    )
    requests = [
        DecodeRequest(
            request_id=f"r{n}",
            prompt_token_ids=(20, *range(40, 44 + n)),
            sampling=Sampling(max_tokens=9, ignore_eos=True),
            capture_logits=True,
        )
        for n in range(3)
    ]
    found = [list(session.stream(name, requests)) for name in ("plain", "own", "drafts")]
    hashes = [{e.index: e.logits_sha256 for e in events if e.finish_reason} for events in found]
    assert hashes[1] == hashes[2] == hashes[0]
    assert None not in hashes[0].values()
    assert len(session.runners) == 2


def test_two_level_arms_do_not_batch(deployment: Deployment) -> None:
    both = arm("both", drafter="ngram", two_level="hold", early_exit=1, batch_slots=2)
    with pytest.raises(UsageError, match=r"arms\[both\].params: .*two_level"):
        open_session(deployment, [both])


def test_recorded_steps_are_taken_up_again(session: ReferenceSession) -> None:
    one = DecodeRequest(request_id="r", prompt_token_ids=(256, 40), sampling=Sampling(max_tokens=9))
    for name in ("buckets", "driven"):
        found = []
        for _ in range(2):
            found.append(list(session.stream(name, [one])))
            made = len(session.runners)
        assert found[0] == found[1]
        assert len(session.runners) == made


def test_what_cannot_be_done_is_refused_by_name(
    deployment: Deployment, hybrid_folder: Path, tmp_path: Path
) -> None:
    wy = arm("wy", drafter="none", batch_buckets=True, delta_form="wy")
    with pytest.raises(UsageError, match=r"arms\[wy\].*`batch_buckets` runs recurrent layers row after row"):
        open_session(deployment_of(hybrid_folder), [wy])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "other", "threads": 7}, "`device` 'cpu, 7 threads'"),
        ({"weights_format": "weight12"}, "`weights_format`"),
    ],
)
def test_costs_of_another_machine_are_refused(
    deployment: Deployment, tmp_path: Path, changed: dict[str, object], field: str
) -> None:
    elsewhere = msgspec.structs.replace(deployment, **changed)
    table = write_costs(tmp_path / "costs.json", elsewhere, staircase(2, 4))
    with pytest.raises(UsageError, match=rf"arms\[far\].params: `step_costs`: .*measured with {field}"):
        open_session(deployment, [arm("far", drafter="ngram", step_costs=table, batch_budget=True)])


def test_costs_of_another_target_are_refused(deployment: Deployment, tmp_path: Path) -> None:
    other = deployment_of(write_llama(tmp_path / "other", seed=9))
    table = write_costs(tmp_path / "costs.json", other, staircase(2, 4))
    with pytest.raises(UsageError, match=r"`step_costs`: .*measured with `target_sha256`"):
        open_session(deployment, [arm("far", drafter="ngram", step_costs=table, batch_budget=True)])
