"""The door to NVIDIA's management library: what GPUs are and how they do, or nothing without it.

A reading that a driver refuses is None; no other reading is lost with it.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

# What holds clocks down, by bit of nvmlClocksEventReasons; idleness and chosen clocks are no event.
SLOWED_BY = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal limit",
    0x040: "hardware thermal limit",
    0x080: "power brake",
    0x100: "display clocks",
}


class GpuReading(NamedTuple):
    """One GPU at one moment."""

    gpu: int  # number by which the driver knows it
    sm_mhz: int | None
    memory_mhz: int | None
    celsius: int | None
    watts: float | None
    busy: float | None  # share of the last sampling period in which a kernel ran
    slowed_by: tuple[str, ...]  # values of SLOWED_BY
    pids: tuple[int, ...] | None  # of compute processes, in the driver's process namespace


class Nvml:
    """An open session with the library."""

    def __init__(self, library: Any) -> None:
        """Take the initialised `pynvml` module, or what behaves like it."""
        self._nvml = library

    def facts(self) -> list[dict[str, Any]]:
        """Name, driver, memory, limits and clocks of every GPU."""
        shared = {
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
            "cuda_driver": _cuda_version(self._ask("nvmlSystemGetCudaDriverVersion_v2")),
        }
        return [self._facts(handle) | shared for _, handle in self._handles()]

    def free_bytes(self) -> tuple[int | None, ...]:
        """Memory of every GPU that nobody uses now."""
        told = (self._ask("nvmlDeviceGetMemoryInfo", handle) for _, handle in self._handles())
        return tuple(None if memory is None else int(memory.free) for memory in told)

    def readings(self) -> tuple[GpuReading, ...]:
        """Clocks, temperature, power and processes of every GPU now."""
        return tuple(self._reading(gpu, handle) for gpu, handle in self._handles())

    def close(self) -> None:
        """End the session."""
        self._ask("nvmlShutdown")

    def _facts(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        return {
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "compute_capability": None if capability is None else ".".join(map(str, capability)),
            "memory_bytes": None if memory is None else int(memory.total),
            "power_limit_w": _thousandth(self._ask("nvmlDeviceGetPowerManagementLimit", handle)),
            "power_default_w": _thousandth(self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "sm_mhz_max": self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "memory_mhz_max": self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "persistence": _switch(self._ask("nvmlDeviceGetPersistenceMode", handle)),
            "ecc": None if ecc is None else _switch(ecc[0]),
            "mig": None if mig is None else _switch(mig[0]),
        }

    def _reading(self, gpu: int, handle: Any) -> GpuReading:
        nvml = self._nvml
        busy = self._ask("nvmlDeviceGetUtilizationRates", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        events = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if events is None:  # what older bindings and drivers call it
            events = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return GpuReading(
            gpu=gpu,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            celsius=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            watts=_thousandth(self._ask("nvmlDeviceGetPowerUsage", handle)),
            busy=None if busy is None else busy.gpu / 100.0,
            slowed_by=tuple(name for bit, name in SLOWED_BY.items() if events is not None and events & bit),
            pids=None if processes is None else tuple(sorted(process.pid for process in processes)),
        )

    def _handles(self) -> list[tuple[int, Any]]:
        """Every GPU that can be opened, with its number."""
        count = self._ask("nvmlDeviceGetCount") or 0
        handles = ((gpu, self._ask("nvmlDeviceGetHandleByIndex", gpu)) for gpu in range(count))
        return [(gpu, handle) for gpu, handle in handles if handle is not None]

    def _ask(self, function: str, *arguments: Any) -> Any:
        """One answer of the library; None where it, or this version of it, has none."""
        asked = getattr(self._nvml, function, None)
        if asked is None:
            return None
        try:
            return asked(*arguments)
        except self._nvml.NVMLError:
            return None


def open_nvml() -> Nvml | None:
    """A session, if the Python binding (extra `gpu`) and a driver are there."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return Nvml(library)


def _text(value: Any) -> str | None:
    """Older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(value: int | None) -> str | None:
    """13000 is 13.0."""
    return None if value is None else f"{value // 1000}.{value % 1000 // 10}"


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000.0


def _switch(value: int | None) -> bool | None:
    return None if value is None else bool(value)
