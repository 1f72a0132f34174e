"""Plans and deployments: what is refused, and how the message helps."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from harness.codec import Record, canonical_json, digest, from_json, json_schema
from harness.completeness import REQUESTS, too_few
from harness.errors import DataError, UsageError
from harness.plan import ArmSpec, Deployment, Job, Plan, SetSpec, built_in, load_job
from harness.records import Response, Sampling
from harness.results import Report


class Early(Record, frozen=True):
    name: str
    count: int = 1


class Later(Record, frozen=True):
    name: str
    count: int = 1
    speed: float | None = None
    inner: Early = Early(name="x")


GOOD = """
schema = "plan/1"
name = "mine"
deployment = "smollm2-135m-cpu"
label = "smoke"
sets = [{ name = "embedded", count = 3 }]
sampling = { max_tokens = 8 }
[[arms]]
name = "ar"
kind = "ar"
backend = "reference_mechanisms.backend:open_session"
"""


def load(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return load_job(str(path))


def test_a_good_plan_loads_with_its_deployment(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD)
    assert job.plan.arm("ar").kind == "ar"
    assert job.deployment.name == "smollm2-135m-cpu"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("max_tokens", "max_tokns", "did you mean `max_tokens`"),
        ("count = 3", "count = 0", "`count` must be at least 1"),
        ("count = 3", 'count = "3"', r"\$.sets\[0\].count"),
        ('kind = "ar"', 'kind = "candidate"', "exactly one arm of kind 'ar'"),
        ('kind = "ar"', 'kind = "fast"', r"\$.arms\[0\].kind"),
        ("max_tokens = 8", "max_tokens = 8, temperature = -1.0", "`temperature` must be 0 or more"),
        ("max_tokens = 8", "max_tokens = 0", "`max_tokens` must be at least 1"),
        ('schema = "plan/1"', 'schema = "plan/9"', r"\$.schema"),
        ('deployment = "smollm2-135m-cpu"', 'deployment = "smollm2"', "built in: .*smollm2-135m-cpu"),
        ("sets = [{", "sets = [[{", "not valid TOML"),
        ('name = "mine"\n', "", "missing required field `name`"),
        ("count = 3 }]", 'count = 3 }, { name = "embedded", count = 1 }]', "names a set twice"),
    ],
)
def test_a_wrong_plan_is_a_usage_error_naming_the_field(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=told):
        load(tmp_path, GOOD.replace(old, new, 1))


def test_an_unknown_plan_lists_the_built_in_ones() -> None:
    with pytest.raises(UsageError, match="reproduce-cpu"):
        load_job("reproduce-gpu")


def test_a_deployment_beside_the_plan_wins_over_a_built_in_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'schema = "deployment/1"\nname = "mine"\ndevice = "cpu"\ncontext_length = 99\n[target]\npath = "x"\n'
    )
    job = load(tmp_path, GOOD.replace("smollm2-135m-cpu", "mine.toml"))
    assert job.deployment.context_length == 99


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ('path = "a"\npackage = "b"', "exactly one of"),
        ('hub = "a/b"', "pinned `revision`"),
        ('path = "a"\ndtype = "int8"', "dtype"),
    ],
)
def test_a_target_has_one_complete_source(tmp_path: Path, target: str, told: str) -> None:
    (tmp_path / "d.toml").write_text(
        f'schema = "deployment/1"\nname = "d"\ndevice = "cpu"\ncontext_length = 9\n[target]\n{target}\n'
    )
    with pytest.raises(UsageError, match=told):
        load(tmp_path, GOOD.replace("smollm2-135m-cpu", "d.toml"))


def test_the_hash_changes_with_every_field_and_with_nothing_else(tmp_path: Path) -> None:
    base = load(tmp_path, GOOD)
    assert load(tmp_path, "# a comment\n" + GOOD).hash == base.hash
    assert load(tmp_path, GOOD.replace("count = 3", "count = 4")).hash != base.hash
    assert load(tmp_path, GOOD + "params = { drafts = 3 }\n").hash != base.hash


@pytest.mark.parametrize("name", built_in("plans"))
def test_built_in_plans_load_and_survive_a_round_trip(name: str) -> None:
    job = load_job(name)
    assert from_json(canonical_json(job), Job, name) == job
    assert from_json(canonical_json(job), Job, name).hash == job.hash


@pytest.mark.parametrize("name", built_in("plans"))
def test_built_in_plans_that_stand_behind_a_claim_are_large_enough_for_one(name: str) -> None:
    plan = load_job(name).plan
    assert list(too_few(plan)) == []
    measure, prompts = plan.measure, sum(one.count for one in plan.sets)
    assert plan.label != "full" or measure.launches * measure.blocks * prompts >= REQUESTS


@pytest.mark.parametrize("kind", [Plan, Deployment, Report, Response], ids=lambda kind: str(kind.__name__))
def test_published_schemas_are_valid_json_schema(kind: type) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(kind))


def test_the_published_plan_schema_accepts_the_built_in_plan_and_refuses_a_typo() -> None:
    plan = json.loads(canonical_json(load_job("reproduce-cpu").plan))
    validator = jsonschema.Draft202012Validator(json_schema(Plan))
    validator.validate(plan)
    assert list(validator.iter_errors(plan | {"arm": []}))


def test_canonical_json_refuses_numbers_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"\$\.a\[1\]"):
        canonical_json({"a": [1.0, float("nan")]})


def test_canonical_json_does_not_depend_on_key_order() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


def test_a_broken_record_names_file_and_field() -> None:
    with pytest.raises(DataError, match=r"here\.json: .*missing required field"):
        from_json(b"{}", Plan, "here.json")


def test_a_plan_without_an_autoregressive_arm_is_measured_against_stock() -> None:
    arms = (
        ArmSpec(name="new", kind="candidate", backend="m:f"),
        ArmSpec(name="old", kind="stock", backend="m:f"),
    )
    plan = Plan(
        schema="plan/1",
        name="two",
        deployment="d",
        label="smoke",
        sets=(SetSpec(name="own", count=1),),
        arms=arms,
        sampling=Sampling(max_tokens=4),
    )
    assert plan.baseline.name == "old"


def test_the_hash_sees_what_was_said_and_not_the_defaults_of_later_versions() -> None:
    assert digest(Early(name="a")) == digest(Later(name="a"))
    assert digest(Early(name="a", count=2)) == digest(Later(name="a", count=2))
    told = {digest(Later(name="a")), digest(Later(name="a", speed=0.0)), digest(Later(name="a", count=2))}
    assert len(told | {digest(Later(name="a", inner=Early(name="y")))}) == 4
