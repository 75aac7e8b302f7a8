"""An NVML that answers from a table: enough of the binding's surface for the sampler, and no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeError(Exception):
    """Any NVML error."""


class FakeNvml:
    """Answers like a data-centre GPU in NVML's own units, but for the functions named in `fails`."""

    NVMLError = FakeError
    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0
    NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 (NVML's names)
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def __init__(self, *fails: str) -> None:
        self.fails = set(fails)
        self.xids: list[int] = []
        self.used: list[tuple[int, int, int]] = []
        self._answers: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": lambda kind: {1: 1755, 2: 2619}[kind],
            "nvmlDeviceGetTemperature": lambda sensor: 61 + sensor,
            "nvmlDeviceGetFieldValues": lambda fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal={82: 74}[field]))
                for field in fields
            ],
            "nvmlDeviceGetPowerUsage": lambda: 412_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: 9_876_543_210,
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=87, memory=35),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x4,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda: 0x20,
            "nvmlDeviceGetViolationStatus": lambda policy: SimpleNamespace(
                referenceTime=1_700_000_000_000_000, violationTime=[5_000_000, 7_000_000][policy]
            ),
            "nvmlDeviceGetTotalEccErrors": lambda kind, counter: [11, 2][kind] + counter,
            "nvmlDeviceGetRemappedRows": lambda: (3, 1, 0, 0),
            "nvmlDeviceGetRetiredPages": lambda cause: [[4096, 8192], [4096]][cause],
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda: 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda: 8,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda: 16,
            "nvmlDeviceGetPcieReplayCounter": lambda: 6,
            "nvmlDeviceGetMemoryInfo": lambda version=None: SimpleNamespace(
                used=10 * 1024**3 + (0 if version else 512 * 1024**2)
            ),
            "nvmlDeviceGetPcieThroughput": lambda direction: [1_500, 24_000_000][direction],
            "nvmlDeviceRegisterEvents": None,
            "nvmlDeviceGetProcessUtilization": self._process_utilization,
        }

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's name)
        """Nothing to load."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.00"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if "nvmlDeviceGetHandleByUUID" in self.fails:
            raise FakeError("Not Found")
        return uuid

    def nvmlEventSetCreate(self) -> list[int]:  # noqa: N802
        return self.xids

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: list[int]) -> None:  # noqa: N802
        del handle, events
        if "nvmlDeviceRegisterEvents" in self.fails or kinds != self.nvmlEventTypeXidCriticalError:
            raise FakeError("Not Supported")

    def nvmlEventSetWait_v2(self, events: list[int], milliseconds: int) -> Any:  # noqa: N802
        assert milliseconds == 0
        if not events:
            raise FakeError("Timeout")
        return SimpleNamespace(eventData=events.pop(0))

    def __getattr__(self, name: str) -> Any:
        try:
            answer = self._answers[name]
        except KeyError:
            raise AttributeError(name) from None

        def ask(handle: str, *arguments: Any, **named: Any) -> Any:
            if name in self.fails:
                raise FakeError("Not Supported")
            return answer(*arguments, **named)

        return ask

    def _process_utilization(self, since: int) -> list[Any]:
        """Like the driver: an error where there is nothing new, stale samples mixed in otherwise."""
        fresh = [each for each in self.used if each[0] > since]
        if not fresh:
            raise FakeError("Not Found")
        stale = SimpleNamespace(pid=0, timeStamp=0, smUtil=99)
        return [
            SimpleNamespace(pid=pid, timeStamp=time, smUtil=percent) for time, pid, percent in self.used
        ] + [stale]
