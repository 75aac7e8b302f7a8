"""Text that tools of a GPU's vendor print for people: ``nvidia-smi -q`` and ``dcgmi dmon``.

References
----------
NVIDIA, ``nvidia-smi --help`` and "DCGM field identifiers" (short names of the columns).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

Sample = tuple[dict[str, str], float, float]

SMI_QUERY = re.compile(rb"\A\s*=+ ?NVSMI LOG ?=+")
DCGMI_DMON = re.compile(rb"\A\s*# ?Entity[ \t]+[A-Z]{3,8}\b")
_VALUE = re.compile(r"^( *)([A-Za-z][\w ./()-]{0,60}?) *(?:: (.{0,200}))?$")
_GPU = re.compile(r"^GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$")
#: The names of DCGM's exporter for values of ``nvidia-smi -q``, by the last two headings.
_SMI_VALUES: Mapping[tuple[str, str], str] = {
    ("Utilization", "Gpu"): "DCGM_FI_DEV_GPU_UTIL",
    ("Utilization", "GPU"): "DCGM_FI_DEV_GPU_UTIL",
    ("Temperature", "GPU Current Temp"): "DCGM_FI_DEV_GPU_TEMP",
    ("Temperature", "Memory Current Temp"): "DCGM_FI_DEV_MEMORY_TEMP",
    ("Power Readings", "Power Draw"): "DCGM_FI_DEV_POWER_USAGE",
    ("GPU Power Readings", "Power Draw"): "DCGM_FI_DEV_POWER_USAGE",
    ("GPU Power Readings", "Average Power Draw"): "DCGM_FI_DEV_POWER_USAGE",
    ("Clocks", "SM"): "DCGM_FI_DEV_SM_CLOCK",
    ("Clocks", "Memory"): "DCGM_FI_DEV_MEM_CLOCK",
    ("FB Memory Usage", "Used"): "DCGM_FI_DEV_FB_USED",
    ("PCIe Generation", "Current"): "DCGM_FI_DEV_PCIE_LINK_GEN",
    ("PCIe Generation", "Max"): "DCGM_FI_DEV_PCIE_MAX_LINK_GEN",
    ("Link Width", "Current"): "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    ("Link Width", "Max"): "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
    ("Volatile", "DRAM Correctable"): "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    ("Volatile", "DRAM Uncorrectable"): "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
}
#: Bits of NVML's reasons for a clock below the wanted one.
_REASONS: Mapping[str, int] = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
_REASON_HEADINGS = frozenset({"Clocks Throttle Reasons", "Clocks Event Reasons"})
_REASON_METRIC = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
#: The names of DCGM's exporter for columns of ``dcgmi dmon``.
_DMON_COLUMNS: Mapping[str, str] = {
    "GPUTL": "DCGM_FI_DEV_GPU_UTIL",
    "TMPTR": "DCGM_FI_DEV_GPU_TEMP",
    "MMTMP": "DCGM_FI_DEV_MEMORY_TEMP",
    "POWER": "DCGM_FI_DEV_POWER_USAGE",
    "SMCLK": "DCGM_FI_DEV_SM_CLOCK",
    "MMCLK": "DCGM_FI_DEV_MEM_CLOCK",
    "FBUSD": "DCGM_FI_DEV_FB_USED",
    "GRACT": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "SMACT": "DCGM_FI_PROF_SM_ACTIVE",
    "DRAMA": "DCGM_FI_PROF_DRAM_ACTIVE",
    "TENSO": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
}
#: Seconds between two rounds of ``dcgmi dmon`` without an option.
_ROUND = 1.0


def of_smi_query(text: str, written: float) -> Iterator[Sample]:
    """Samples of ``nvidia-smi -q``; GPUs are numbered in their order."""
    at, reasons = written, dict[int, int]()
    for gpu, above, name, value in _smi_values(text):
        metric = _SMI_VALUES.get((above, name))
        if gpu < 0:
            at = _time(value, written) if name == "Timestamp" else at
        elif above in _REASON_HEADINGS:
            bit = _REASONS.get(name, 0) if value.strip() == "Active" else 0
            reasons[gpu] = reasons.get(gpu, 0) | bit
        elif metric is not None and (number := _number(value)) is not None:
            yield _sample(metric, gpu, at, number)
    for gpu, bits in reasons.items():
        yield _sample(_REASON_METRIC, gpu, at, bits)


def _smi_values(text: str) -> Iterator[tuple[int, str, str, str]]:
    """GPU, heading, name and value of each line; the GPU is -1 before the first one."""
    gpu = -1
    headings: list[tuple[int, str]] = []
    for line in text.splitlines():
        if _GPU.match(line) is not None:
            gpu, headings = gpu + 1, []
        elif (found := _VALUE.match(line.rstrip())) is not None:
            headings = [each for each in headings if each[0] < len(found[1])]
            if found[3] is not None:
                yield gpu, headings[-1][1] if headings else "", found[2], found[3]
            if found[3] is None or found[2] not in _REASONS:
                headings.append((len(found[1]), found[2]))


def of_dmon(text: str, written: float) -> Iterator[Sample]:
    """Samples of ``dcgmi dmon``: a row per GPU and round; the file was written with the last round."""
    columns: list[str] = []
    rounds: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        words = line.replace("# Entity", "#Entity").split()
        if words[:1] == ["#Entity"]:
            columns = words[1:]
        elif words[:1] == ["GPU"] and len(words) == len(columns) + 2 and words[1].isdecimal():
            seen = sum(1 for _, gpu, _ in rounds[-4096:] if gpu == words[1])
            rounds.append((seen, words[1], words[2:]))
    last = max((number for number, _, _ in rounds), default=0)
    for number, gpu, values in rounds:
        for column, value in zip(columns, values, strict=False):
            metric, parsed = _DMON_COLUMNS.get(column), _number(value)
            if metric is not None and parsed is not None:
                yield {"__name__": metric, "gpu": gpu}, written - (last - number) * _ROUND, parsed


def _sample(metric: str, gpu: int, at: float, value: float) -> Sample:
    return {"__name__": metric, "gpu": str(gpu)}, at, float(value)


def _number(text: str) -> float | None:
    """The number before a unit; None for ``N/A`` and other words."""
    try:
        return float(text.strip().partition(" ")[0].removesuffix("x"))
    except ValueError:
        return None


def _time(text: str, written: float) -> float:
    try:
        return (
            datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
        )
    except ValueError:
        return written
