"""The management library of a scripted driver: what it tells, refuses, or never knew."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.nvml import Nvml, open_nvml


class RefusedError(Exception):
    """What the scripted driver raises."""


class Driver:
    """Two GPUs; number 0 cannot be opened. Functions named in `refused` fail."""

    NVMLError = RefusedError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", 0

    def __init__(self, *refused: str, **answers: Any) -> None:
        self.refused = refused
        self.answers = {
            "nvmlSystemGetDriverVersion": b"580.1",
            "nvmlSystemGetCudaDriverVersion_v2": 12040,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetName": "GPU of the test",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80, free=60),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetPowerManagementLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 650_000,
            "nvmlDeviceGetPowerUsage": 123_400,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
            "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x40,
            "nvmlShutdown": None,
        } | answers
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in (*self.answers, *self._computed()):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            self.asked.append(name)
            if name in self.refused:
                raise RefusedError(name)
            return self._computed()[name](*arguments) if name in self._computed() else self.answers[name]

        return answer

    def _computed(self) -> dict[str, Any]:
        return {
            "nvmlDeviceGetHandleByIndex": self._open,
            "nvmlDeviceGetClockInfo": lambda _, kind: {"sm": 1980, "memory": 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda _, kind: {"sm": 2000, "memory": 3300}[kind],
        }

    def _open(self, index: int) -> str:
        if index == 0:
            raise RefusedError("lost")
        return f"handle {index}"


def test_a_gpu_keeps_its_number_when_another_cannot_be_opened() -> None:
    (reading,) = Nvml(Driver()).readings()
    assert reading.gpu == 1
    assert (reading.sm_mhz, reading.memory_mhz, reading.celsius) == (1980, 3201, 55)
    assert reading.watts == pytest.approx(123.4)
    assert reading.busy == 0.25
    assert reading.pids == (4, 9)


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x1 | 0x2, ()),
        (0x4, ("power cap",)),
        (0x20, ("software thermal limit",)),
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal limit")),
    ],
    ids=["full-speed", "idle-and-chosen-clocks", "power", "software-heat", "hardware-heat"],
)
def test_what_holds_the_clocks_down_is_named(bits: int, reasons: tuple[str, ...]) -> None:
    (reading,) = Nvml(Driver(nvmlDeviceGetCurrentClocksEventReasons=bits)).readings()
    assert reading.slowed_by == reasons


def test_older_drivers_are_asked_by_the_older_name() -> None:
    driver = Driver(nvmlDeviceGetCurrentClocksThrottleReasons=0x80)
    del driver.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    (reading,) = Nvml(driver).readings()
    assert reading.slowed_by == ("power brake",)


def test_facts_are_in_bytes_watts_and_megahertz() -> None:
    (facts,) = Nvml(Driver()).facts()
    assert facts == {
        "name": "GPU of the test",
        "compute_capability": "9.0",
        "memory_bytes": 80,
        "power_limit_w": 700.0,
        "power_default_w": 650.0,
        "sm_mhz": 1980,
        "sm_mhz_max": 2000,
        "memory_mhz": 3201,
        "memory_mhz_max": 3300,
        "persistence": True,
        "ecc": True,
        "mig": False,
        "driver": "580.1",
        "cuda_driver": "12.4",
    }


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "watts"),
        ("nvmlDeviceGetTemperature", "celsius"),
        ("nvmlDeviceGetUtilizationRates", "busy"),
        ("nvmlDeviceGetComputeRunningProcesses", "pids"),
        ("nvmlDeviceGetClockInfo", "sm_mhz"),
    ],
)
def test_a_refused_reading_takes_no_other_with_it(function: str, field: str) -> None:
    (whole,) = Nvml(Driver()).readings()
    (reading,) = Nvml(Driver(function)).readings()
    assert getattr(reading, field) is None
    assert reading.slowed_by == whole.slowed_by
    assert sum(a != b for a, b in zip(reading, whole, strict=True)) <= 2


@pytest.mark.parametrize("refused", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_without_a_gpu_there_is_nothing_to_tell(refused: str) -> None:
    nvml = Nvml(Driver(refused))
    assert nvml.facts() == []
    assert nvml.readings() == ()


def test_closing_ends_the_session() -> None:
    driver = Driver()
    Nvml(driver).close()
    assert driver.asked == ["nvmlShutdown"]


def test_without_the_binding_there_is_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvml() is None


@pytest.mark.parametrize("works", [True, False], ids=["driver", "no-driver"])
def test_a_session_needs_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pynvml.py").write_text(
        f"class NVMLError(Exception): pass\ndef nvmlInit():\n    if not {works}: raise NVMLError\n"
    )
    assert (open_nvml() is not None) == works
    monkeypatch.delitem(sys.modules, "pynvml")


def test_free_memory_is_told_of_every_gpu_that_can_be_opened() -> None:
    assert Nvml(Driver()).free_bytes() == (60,)
    assert Nvml(Driver("nvmlDeviceGetMemoryInfo")).free_bytes() == (None,)
