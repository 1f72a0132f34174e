"""In what the arms of a run differ: fair only where it is the mechanism alone."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.plan import ArmKind, ArmSpec
from harness.report.differences import alike, differences, summary
from harness.results import Report
from tests.harness.report import build, pieces

SERVERS = "harness.backends.vllm_managed:open_session"


def servers(stock: dict[str, Any], arguments: str) -> Report:
    """Two servers, `ar` with the usual settings, `stock` with those given."""
    plain = {"engine": "vllm", "settings": {"dtype": "bfloat16", "max_num_seqs": 8}}
    settings: dict[ArmKind, str] = {"ar": "--max-num-seqs 8", "stock": arguments}
    job = pieces.job(arms=("ar", "stock"))
    specs = tuple(
        ArmSpec(name=kind, kind=kind, backend=SERVERS, params={"concurrency": 1, "arguments": words})
        for kind, words in settings.items()
    )
    told = {
        "ar": {"told": plain, "counters": {"a": 1}, "url": "http://127.0.0.1:1"},
        "stock": {"told": stock, "counters": {"a": 2}, "url": "http://127.0.0.1:2"},
    }
    plan = msgspec.structs.replace(job.plan, arms=specs)
    return build.report(
        job=msgspec.structs.replace(job, plan=plan),
        arms=(pieces.arm("ar"), pieces.arm("stock")),
        backends={SERVERS: {"arms": told, "engine": "vLLM servers"}},
    )


def test_a_setting_outside_of_the_mechanism_leads_and_is_counted() -> None:
    report = servers(
        {
            "engine": "vllm",
            "settings": {"dtype": "float8", "max_num_seqs": 8, "speculative_config.method": "x"},
        },
        '--max-num-seqs 8 --speculative-config \'{"method": "x"}\'',
    )
    rows = differences(report)
    assert rows[0] == {
        "what": "told settings dtype",
        "of the mechanism": "no",
        "ar": "bfloat16",
        "stock": "float8",
    }
    assert {row["what"] for row in rows[1:]} == {
        "mechanism",
        "argument --speculative-config",
        "told settings speculative_config.method",
    }
    assert all(row["of the mechanism"] == "yes" for row in rows[1:])
    assert summary(report).startswith("4 facts differ between the arms, 1 of them outside of the mechanism;")


def test_counters_and_addresses_are_no_settings_and_equal_facts_are_only_counted() -> None:
    same = servers(
        {"engine": "vllm", "settings": {"dtype": "bfloat16", "max_num_seqs": 8}}, "--max-num-seqs 8"
    )
    assert differences(same) == []
    assert alike(same) == 8


def test_what_one_backend_tells_of_each_arm_is_laid_beside_each_other() -> None:
    told = {"engine": "reference", "device": "cpu", "steps": {"ar": "one row", "stock": "as needed"}}
    report = build.report(backends={pieces.BACKEND: told}, job=pieces.job(arms=("ar", "stock")))
    rows = {row["what"]: (row["ar"], row["stock"]) for row in differences(report)}
    assert rows["steps"] == ("one row", "as needed")
    assert rows["parameter drafter"] == ("ar", "stock")
    assert "engine" not in rows
