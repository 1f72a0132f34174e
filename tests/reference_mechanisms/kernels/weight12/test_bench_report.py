from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from reference_mechanisms.kernels.weight12.bench_report import REPORT, SUMMARY, markdown, summarised, write
from reference_mechanisms.kernels.weight12.models import MODELS

NAMES = ("cublas", "twin", "weight12")


def row(shape: tuple[int, int], tokens: int, times: tuple[float, float, float]) -> dict[str, Any]:
    us = dict(zip(NAMES, times, strict=True))
    return {
        "shape": list(shape),
        "tokens": tokens,
        "us": us,
        "tb_s": dict.fromkeys(NAMES, 3.0),
        "over_cublas": times[0] / times[2],
        "over_twin": times[1] / times[2],
    }


FOUND = {
    "step_linears_ms": {name: {"1": 4.0 - i, "8": 8.0} for i, name in enumerate(NAMES)},
    "step_bytes": dict.fromkeys(NAMES, 7),
    "shapes": [
        row((64, 32), 1, (9.0, 8.0, 6.0)),
        row((96, 32), 1, (9.0, 8.0, 4.0)),
        row((64, 32), 8, (9.0, 8.0, 10.0)),
        row((96, 32), 8, (9.0, 8.0, 9.0)),
    ],
}


def summary() -> dict[str, Any]:
    found = summarised(FOUND, 4.0)
    return {
        "machine": "a machine",
        "date": "2026-01-02",
        "command": "a command",
        "model": "M",
        "step_linears_ms": found["step_linears_ms"],
        "worst_shape_speedup": found["worst_shape_speedup"],
        "read_bandwidth_tb_s": 4.0,
        "models": {"M": found},
    }


def test_the_worst_shape_is_told_for_each_count_of_tokens() -> None:
    assert summarised(FOUND, 4.0)["worst_shape_speedup"] == {"1": 1.5, "8": 0.9}


def test_each_shape_has_its_three_numbers() -> None:
    first = summarised(FOUND, 4.0)["shapes"][0]
    assert (first["over_cublas"], first["over_twin"]) == pytest.approx((1.5, 4 / 3))
    assert first["percent_of_read_bandwidth"] == 75


def test_the_folder_holds_a_summary_for_scripts_and_a_report(tmp_path: Path) -> None:
    write(tmp_path / "report", summary())
    read = json.loads((tmp_path / "report" / SUMMARY).read_text())
    assert set(read["step_linears_ms"]) == set(NAMES)
    assert read["step_linears_ms"]["weight12"] == {"1": 2.0, "8": 8.0}
    assert read["worst_shape_speedup"] == {"1": 1.5, "8": 0.9}
    assert read["read_bandwidth_tb_s"] == 4.0
    assert "vllm_step_ms" not in read
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted((SUMMARY, REPORT))


def test_the_report_names_machine_date_and_command() -> None:
    text = markdown(summary())
    assert "a machine; 2026-01-02; `a command`" in text
    assert "|        1 |       4.000 |     3.000 |         2.000 |          2.00 |          1.50 |" in text
    assert "64x32" in text


def test_other_ways_stand_beside_it_and_other_bits_are_told() -> None:
    found = summary()
    assert "several ways" not in markdown(found)
    model = found["models"]["M"]
    model["step_linears_ms"] |= {"weight12 bulk": {"1": 1.5, "8": 7.0}}
    model["other_bits"] = ["weight12 bulk, 64x32, 8 tokens"]
    text = markdown(found)
    assert "|        1 |      2.000 |           1.500 |" in text
    assert "**Not the bits of the twin**: weight12 bulk, 64x32, 8 tokens." in text


@pytest.mark.parametrize("name", MODELS)
def test_every_product_of_a_step_can_read_what_the_one_before_wrote(name: str) -> None:
    step = MODELS[name].step
    for (rows, _), (_, columns) in itertools.pairwise(step):
        assert columns <= rows
    assert all(one != two for one, two in itertools.pairwise(step))


def test_the_step_of_qwen3_8b_has_its_weights() -> None:
    step = MODELS["Qwen3-8B"].step
    assert len(step) == 4 * 36 + 1
    assert sum(rows * columns for rows, columns in step) == 7_568_097_280
