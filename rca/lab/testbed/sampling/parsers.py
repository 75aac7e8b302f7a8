"""Files of /proc and of control groups that psutil does not read. Pure functions, one per file format."""

from __future__ import annotations

_MICROSECOND, _NANOSECOND = 1e-6, 1e-9


def keyed(text: str, separator: str | None = None) -> dict[str, str]:
    """Lines of ``name value``; what follows the first word of the value is dropped."""
    pairs = (line.split(separator, 1) for line in text.splitlines())
    return {pair[0].strip(): pair[1].split()[0] for pair in pairs if len(pair) == 2 and pair[1].split()}


def page_faults(text: str) -> tuple[int, int]:
    """Minor and major faults from ``/proc/PID/stat``; the command's name may hold spaces and parentheses."""
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[7]), int(fields[9])


def schedstat(text: str) -> tuple[float, float, int]:
    """Seconds on a CPU, seconds runnable but waiting for one, and time slices of one thread."""
    running, waiting, slices = text.split()
    return int(running) * _NANOSECOND, int(waiting) * _NANOSECOND, int(slices)


def context_switches(text: str) -> tuple[int, int]:
    """Voluntary and forced switches of one thread, from its ``status``."""
    values = keyed(text, ":")
    return int(values["voluntary_ctxt_switches"]), int(values["nonvoluntary_ctxt_switches"])


def pressure(text: str) -> dict[str, float]:
    """Seconds stalled, ``some`` and ``full``, from a pressure file."""
    lines = (line.split() for line in text.splitlines())
    return {kind: int(total.removeprefix("total=")) * _MICROSECOND for kind, *_, total in lines}


def paired_counters(text: str) -> dict[str, int]:
    """``Tcp_RetransSegs`` and the like, from the two-line tables of ``/proc/net/snmp`` and ``netstat``."""
    counters: dict[str, int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        prefix, *keys = names.split()
        held = values.split()[1:]
        counters |= {prefix.removesuffix(":") + "_" + k: int(v) for k, v in zip(keys, held, strict=True)}
    return counters


def group_cpu(text: str) -> dict[str, float]:
    """Seconds used (``usage``, ``user``, ``system``) from a version 2 group's ``cpu.stat``."""
    values = keyed(text)
    used = {name: values.get(f"{name}_usec") for name in ("usage", "user", "system")}
    return {name: int(count) * _MICROSECOND for name, count in used.items() if count is not None}


def group_throttling(text: str) -> tuple[int, float] | None:
    """Throttled periods and seconds from ``cpu.stat`` of either version; None where it does not say."""
    values = keyed(text)
    if "nr_throttled" not in values:
        return None
    if "throttled_time" in values:
        return int(values["nr_throttled"]), int(values["throttled_time"]) * _NANOSECOND
    return int(values["nr_throttled"]), int(values["throttled_usec"]) * _MICROSECOND


def group_reads(text: str) -> dict[str, int]:
    """Bytes read per disk (``major:minor``) from ``io.stat`` or ``blkio.throttle.io_service_bytes``."""
    reads = {}
    for line in text.splitlines():
        device, *fields = line.split()
        if len(fields) == 2 and fields[0] == "Read":
            reads[device] = int(fields[1])
        for field in fields:
            if field.startswith("rbytes="):
                reads[device] = int(field.removeprefix("rbytes="))
    return reads
