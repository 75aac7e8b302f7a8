"""What the exporters of a job do not report: notes for people, and no evidence about the job."""

from __future__ import annotations

from collections.abc import Sequence

from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_devices import JobDevices
from rca.sources.prometheus.metric_table import PlacedMatrix
from rca.sources.prometheus.node_exporters import NodeExporters
from rca.sources.prometheus.promql import chunks, matcher, selector
from rca.window.catalogue import resolve

#: Counters that DCGM's exporter leaves out unless its counters file names them.
OFF_BY_DEFAULT = (
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_PCIE_LINK_GEN",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_PROF_SM_ACTIVE",
)


def gaps(
    server: Prometheus,
    found: JobDevices,
    exporters: NodeExporters,
    placed: Sequence[PlacedMatrix],
    matchers: Sequence[str],
    end: float,
) -> list[str]:
    """The notes on a window: warnings of the server, silent nodes, targets that are down, absent counters.

    Parameters
    ----------
    placed : sequence of PlacedMatrix
        Series that were read.
    end : float, Unix seconds
        End of the window.
    """
    notes = list(server.warnings)
    silent = exporters.silent(_reporting(found, placed))
    if silent:
        more = ", ..." if len(silent) > 3 else ""
        notes.append(
            f"no node exporter reports on {len(silent)} of {len(exporters.nodes)} nodes "
            f"({', '.join(silent[:3])}{more}): "
            "its instance, or nodename in node_uname_info, has to be the name of the machine"
        )
    notes += _down(server, found, matchers, end)
    held = {resolve(name) for name in found.names}
    off = [name for name in OFF_BY_DEFAULT if resolve(name) not in held]
    if off and any(name.lower().startswith("dcgm_") for name in found.names):
        notes.append(
            f"DCGM's exporter leaves out {', '.join(off)} by default: "
            "api/deploy/prometheus/dcgm-counters.csv turns them on"
        )
    return notes


def _reporting(found: JobDevices, placed: Sequence[PlacedMatrix]) -> set[str]:
    """Machines of which a metric other than those of devices was read."""
    return {
        place.node
        for part in placed
        for labels, place in zip(part.matrix.labels, part.places, strict=True)
        if place is not None and place.node is not None and labels.get("__name__", "") not in found.names
    }


def _down(server: Prometheus, found: JobDevices, matchers: Sequence[str], end: float) -> list[str]:
    """The note on targets of the job's devices that Prometheus cannot scrape now."""
    targets = sorted({labels["instance"] for labels in found.series if labels.get("instance")})
    down = sorted(
        each["metric"].get("instance", "")
        for names in chunks(targets)
        for each in server.query(
            f"{selector(matcher('__name__', ['up']), *matchers, matcher('instance', names))} == 0", end
        )
    )
    if not down:
        return []
    shown = ", ".join(down[:3]) + (", ..." if len(down) > 3 else "")
    return [
        f"{len(down)} of {len(targets)} exporters of the job are down (up is 0): {shown}. That says "
        "nothing about the job"
    ]
