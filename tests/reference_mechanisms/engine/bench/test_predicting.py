"""Steps predicted for another GPU: the measured one gives back what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from reference_mechanisms.engine.bench import engines, predicting
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.targets.shapes import shape_config

SUMMARY = Path(__file__).parents[4] / "reports" / "h200-engine" / "summary.json"
SHAPE = "Qwen3-8B"


def summary() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SUMMARY.read_text())
    return found


def predicted(gpu: predicting.Gpu) -> dict[tuple[str, str], float]:
    targets = {SHAPE: shape_config(SHAPE)}
    rows = predicting.predicted(summary(), targets, engines.drafter_config(SHAPE), gpu)
    assert all(row["predicted"] is True for row in rows)
    return {(row["weights"], row["mode"]): row["step_ms"] for row in rows}


def test_the_measured_gpu_gives_back_its_own_steps() -> None:
    found = predicted(predicting.MEASURED)
    for engine, key in (("ar weight12", ("weight12", "ar")), ("k15 weight12", ("weight12", "k15"))):
        stages = summary()["engines"][engine]["waterfall"]["stages"]
        assert found[key] == pytest.approx(sum(stages.values()) / 1e3, abs=0.01)
    assert found["weight12", "k15, fp8 drafter"] < found["weight12", "k15"]


def test_a_slower_memory_takes_longer_by_its_bytes() -> None:
    fast, slow = predicted(predicting.MEASURED), predicted(predicting.PREDICTED)
    stages = summary()["engines"]["ar weight12"]["waterfall"]["stages"]
    more = stages["verify weights"] * (4.8 / 1.79 - 1) / 1e3  # one row is read once on both
    assert slow["weight12", "ar"] - fast["weight12", "ar"] == pytest.approx(more, abs=0.02)


def test_less_shared_memory_reads_weights_in_turns() -> None:
    matrices = predicting.target_matrices(shape_config(SHAPE))
    once = predicting.read_bytes(matrices, 12.125, 1, predicting.PREDICTED)
    assert once == pytest.approx(12.125 / 8 * 7_568_097_280)
    assert predicting.read_bytes(matrices, 12.125, 16, predicting.MEASURED) == pytest.approx(once)
    assert predicting.read_bytes(matrices, 12.125, 32, predicting.PREDICTED) > 1.9 * once


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["engine", "predict", str(path)]) != 0
    assert "is no summary of engine bench" in capsys.readouterr().err
    config, drafter = shape_config(SHAPE), engines.drafter_config(SHAPE)
    with pytest.raises(MechanismError, match="no waterfalls"):
        predicting.predicted({"target": SHAPE}, {SHAPE: config}, drafter)


def test_the_command_prints_a_table_that_says_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predicted.json"
    assert main(["engine", "predict", str(SUMMARY), "--out", str(out)]) == 0
    assert "ms a step, predicted" in capsys.readouterr().out
    assert all(row["predicted"] for row in json.loads(out.read_text()))
