"""NVML's values of a GPU, with DCGM's names and units.

DCGM reads most of its ``DCGM_FI_DEV_*`` fields from NVML, so the values are the same. Queries convert units
where they differ. Each GPU and driver answers some queries only; the probe tries them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

_WATTS_PER_MILLIWATT = 1e-3
_MIB_PER_BYTE = 1 / 1024**2
# NVML counts "KB" without saying whether these are 1000 or 1024 bytes; the difference is 2.4 %.
_BYTES_PER_KB = 1000.0
_MEMORY_TEMPERATURE_FIELD = 82

#: Clock event reasons by bit, as NVML defines them.
CLOCK_EVENT_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}

Read = Callable[[Any, Any], tuple[float, ...]]


class NvmlQuery(NamedTuple):
    """One query: from ``(nvml, handle)`` to a value for each of `names`."""

    names: tuple[str, ...]
    read: Read


def _value(name: str, read: Callable[[Any, Any], float], factor: float = 1.0) -> NvmlQuery:
    return NvmlQuery((name,), lambda nvml, handle: (float(read(nvml, handle)) * factor,))


def _utilization(nvml: Any, handle: Any) -> tuple[float, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return float(rates.gpu), float(rates.memory)


def _event_reasons(nvml: Any, handle: Any) -> float:
    # Renamed with driver 535; older bindings and drivers know the old name only.
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _memory_temperature(nvml: Any, handle: Any) -> float:
    field = nvml.nvmlDeviceGetFieldValues(handle, [_MEMORY_TEMPERATURE_FIELD])[0]
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    return float(field.value.uiVal)


def _used_bytes(nvml: Any, handle: Any) -> float:
    # Version 2 excludes the driver's own memory, as DCGM does.
    try:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _remapped_rows(nvml: Any, handle: Any) -> tuple[float, float]:
    corrected, uncorrected, _pending, _failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return float(corrected), float(uncorrected)


def _violation(policy: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: float(
        nvml.nvmlDeviceGetViolationStatus(handle, getattr(nvml, policy)).violationTime
    )


def _errors(kind: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: float(
        nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC)
    )


def _throughput(direction: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: float(nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, direction)))


def _retired(cause: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: float(len(nvml.nvmlDeviceGetRetiredPages(handle, getattr(nvml, cause))))


QUERIES: tuple[NvmlQuery, ...] = (
    _value("DCGM_FI_DEV_SM_CLOCK", lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
    _value("DCGM_FI_DEV_MEM_CLOCK", lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
    _value(
        "DCGM_FI_DEV_GPU_TEMP", lambda nvml, h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)
    ),
    _value("DCGM_FI_DEV_MEMORY_TEMP", _memory_temperature),
    _value("DCGM_FI_DEV_POWER_USAGE", lambda nvml, h: nvml.nvmlDeviceGetPowerUsage(h), _WATTS_PER_MILLIWATT),
    _value(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h)
    ),
    NvmlQuery(("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"), _utilization),
    _value("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", _event_reasons),
    _value("DCGM_FI_DEV_POWER_VIOLATION", _violation("NVML_PERF_POLICY_POWER")),
    _value("DCGM_FI_DEV_THERMAL_VIOLATION", _violation("NVML_PERF_POLICY_THERMAL")),
    _value("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _errors("NVML_MEMORY_ERROR_TYPE_CORRECTED")),
    _value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _errors("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")),
    NvmlQuery(
        ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), _remapped_rows
    ),
    _value("DCGM_FI_DEV_RETIRED_SBE", _retired("NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS")),
    _value("DCGM_FI_DEV_RETIRED_DBE", _retired("NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR")),
    _value("DCGM_FI_DEV_PCIE_LINK_GEN", lambda nvml, h: nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    _value("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    _value("DCGM_FI_DEV_PCIE_LINK_WIDTH", lambda nvml, h: nvml.nvmlDeviceGetCurrPcieLinkWidth(h)),
    _value("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkWidth(h)),
    _value("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", lambda nvml, h: nvml.nvmlDeviceGetPcieReplayCounter(h)),
    _value("DCGM_FI_DEV_FB_USED", _used_bytes, _MIB_PER_BYTE),
    # Each measures the link for 20 ms, so they come last: the other values are then nearly simultaneous.
    _value("DCGM_FI_PROF_PCIE_TX_BYTES", _throughput("NVML_PCIE_UTIL_TX_BYTES"), _BYTES_PER_KB),
    _value("DCGM_FI_PROF_PCIE_RX_BYTES", _throughput("NVML_PCIE_UTIL_RX_BYTES"), _BYTES_PER_KB),
)
XID_NAME = "DCGM_FI_DEV_XID_ERRORS"
NAMES: tuple[str, ...] = (*(name for query in QUERIES for name in query.names), XID_NAME)


class GpuProbe:
    """Queries one GPU.

    Parameters
    ----------
    nvml : module
        ``pynvml``, initialized.

    Attributes
    ----------
    answered : tuple of str
        Names for which this GPU and driver have values.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._queries = [query for query in QUERIES if self._answer_of(query)]
        self._events = self._watch_xids()
        self._xid = 0.0
        self._seen = 0
        self.answered: tuple[str, ...] = tuple(name for query in self._queries for name in query.names)
        if self._events is not None:
            self.answered += (XID_NAME,)

    def read(self) -> dict[str, float]:
        """One value per name; a failed query is left out and repeated the next time."""
        values: dict[str, float] = {}
        if self._events is not None:
            self._take_xids()
            values[XID_NAME] = self._xid
        for query in self._queries:
            values |= self._answer_of(query)
        return values

    def processes(self) -> dict[int, float]:
        """Percent of the SM time that each process used since the last call, by its id."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen)
        except self._nvml.NVMLError:
            return {}  # NVML also fails if no process did anything
        # NVML pads its answer with old samples.
        fresh = [sample for sample in samples if sample.timeStamp > self._seen]
        self._seen = max((int(sample.timeStamp) for sample in fresh), default=self._seen)
        return {int(sample.pid): float(sample.smUtil) for sample in fresh}

    def _answer_of(self, query: NvmlQuery) -> dict[str, float]:
        """Values of a query; empty if it fails or if the binding, the driver or the GPU lacks it."""
        try:
            return dict(zip(query.names, query.read(self._nvml, self._handle), strict=True))
        except (AttributeError, self._nvml.NVMLError):
            return {}

    def _watch_xids(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
        except (AttributeError, nvml.NVMLError):
            return None
        return events

    def _take_xids(self) -> None:
        """Take what has happened off the queue; no event is an error called timeout."""
        while True:
            try:
                self._xid = float(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
            except self._nvml.NVMLError:
                return


def reasons_in_words(seen: int) -> str:
    """The clock event reasons of a bitmask."""
    return ", ".join(words for bit, words in CLOCK_EVENT_REASONS.items() if seen & bit) or "none"
