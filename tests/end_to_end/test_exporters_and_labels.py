"""GPU exporters of several makers, with the labels that sites give them: the GPU at fault is named.

A job has two nodes with four GPUs. After half of the time GPU 2 of node 1 has a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import rca
from tests.telemetry.prometheus_servers import END, MISSING, prometheus

pytestmark = [
    pytest.mark.system,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}"),
]

TIMES = [END - 900 + 15 * number for number in range(60)]
ONSET = END - 450
AT_FAULT = (1, 2)
#: Metrics of each exporter: clock, use, power, temperature, fatal errors, errors of the link.
METRICS = {
    "dcgm": (
        *("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"),
        *("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    ),
    "amd": (
        *("gpu_clock", "gpu_gfx_activity", "gpu_package_power", "gpu_junction_temperature"),
        *("gpu_ecc_uncorrect_total", "pcie_replay_count"),
    ),
    "smi": (
        *("nvidia_smi_clocks_current_sm_clock_hz", "nvidia_smi_utilization_gpu_ratio"),
        *("nvidia_smi_power_draw_watts", "nvidia_smi_temperature_gpu"),
        *("nvidia_smi_ecc_errors_uncorrected_volatile_total", "nvidia_smi_pcie_link_gen_current"),
    ),
}
CAUSES = ("gpu_throttling", "gpu_memory_errors", "pcie_degradation")
SETS = ("exported pod", "pod", "host and port", "address", "slurm", "upper case", "host alone")
HOST_LABEL = {"dcgm": "Hostname", "amd": "hostname", "smi": "host"}


def device_labels(exporter: str, job: str, node: int, gpu: int) -> dict[str, str]:
    if exporter == "dcgm":
        return {"gpu": str(gpu), "UUID": f"GPU-{job}-{node}-{gpu}", "modelName": "NVIDIA H100"}
    return (
        {"gpu_id": str(gpu), "clock_type": "GPU_CLOCK_TYPE_SYSTEM"}
        if exporter == "amd"
        else {"uuid": f"u{node}{gpu}"}
    )


def place_labels(labels: str, exporter: str, job: str, node: int) -> dict[str, str]:
    host, name = f"{job}-n{node}", HOST_LABEL[exporter]
    own = {"pod": "gpu-exporter-a1b2c", "namespace": "monitoring", name: "gpu-exporter-a1b2c"}
    return {
        "exported pod": {
            **own,
            "instance": f"10.1.{node}.7:9400",
            "exported_pod": f"{job}-worker-{node}",
            "exported_namespace": "ml",
        },
        "pod": {
            "pod": f"{job}-worker-{node}",
            "namespace": "ml",
            "node": host,
            "instance": f"10.1.{node}.8:9400",
        },
        "host and port": {name: f"{host}:9400", "instance": f"{host}:9400", "hpc_job": job},
        "address": {"instance": f"10.9.{node}.5:9400", "job": job},
        "slurm": {name: host, "instance": f"{host}:9400", "job": "gpu", "hpc_job": job},
        "upper case": {"hostname": f"{host.upper()}.EXAMPLE", "instance": f"{host}:9400", "hpc_job": job},
        "host alone": {name: host, "instance": f"{host}:9400", "job": job},
    }[labels]


def value(exporter: str, kind: int, cause: str, *, gpu: int, at: float, faulty: bool) -> float:
    """A sample of metric number `kind`."""
    number, faulty = int(at - TIMES[0]) // 15, faulty and at >= ONSET
    slow = faulty and cause == "gpu_throttling"
    if kind == 0:
        clock = 1980 - (gpu * 7 + number) % 3 * 5.0
        return clock * (0.55 if slow else 1.0) * (1e6 if exporter == "smi" else 1.0)
    if kind == 1:
        return (97 - (gpu + number) % 3) / (100.0 if exporter == "smi" else 1.0)
    if kind == 2:
        return (640 + (gpu * 3 + number) % 7) * (0.6 if slow else 1.0)
    if kind == 3:
        return 62.0 + (gpu + number) % 4
    if kind == 4:
        fatal = faulty and cause == "gpu_memory_errors"
        return (94.0 if exporter == "dcgm" else 3.0) if fatal else 0.0
    bad = faulty and cause == "pcie_degradation"
    if exporter == "smi":
        return 1.0 if bad else 5.0
    return (at - ONSET) * 3.0 if bad else 0.0


def jobs() -> dict[str, tuple[str, str, str]]:
    """Exporter, labels and cause of each job; every pair of these occurs."""
    return {
        f"{exporter}{number}": (exporter, labels, CAUSES[(number + place) % len(CAUSES)])
        for place, exporter in enumerate(METRICS)
        for number, labels in enumerate(SETS)
    }


def lines() -> Iterator[str]:
    for exporter, names in METRICS.items():
        for kind, name in enumerate(names):
            yield f"# TYPE {name} unknown"
            for job, (of, labels, cause) in jobs().items():
                for node, gpu in product(range(2), range(4)) if of == exporter else ():
                    held = device_labels(exporter, job, node, gpu) | place_labels(labels, exporter, job, node)
                    text = ",".join(f'{label}="{each}"' for label, each in held.items())
                    for at in TIMES:
                        faulty = (node, gpu) == AT_FAULT
                        held_value = value(exporter, kind, cause, gpu=gpu, at=at, faulty=faulty)
                        yield f"{name}{{{text}}} {held_value} {at:.3f}"


def test_the_gpu_at_fault_is_named_whatever_exporter_and_labels_show_it(tmp_path: Path) -> None:
    wrong = {}
    with prometheus(tmp_path / "prometheus", lines()) as url:
        for job, (exporter, labels, cause) in jobs().items():
            diagnosis = rca.diagnose(rca.read_prometheus(url, job, since=900, end=END))
            reason = diagnosis.abstention_reason
            found = [(each.cause, each.ranks) for each in diagnosis.causes[:1]]
            since = None if diagnosis.since is None else abs(diagnosis.since.timestamp() - ONSET)
            suspected = reason is not None and reason.code == "machine_stands_out"
            if not suspected or found != [(cause, [6])] or since is None or since > 20:
                wrong[exporter, labels, cause] = (found, since)
    assert wrong == {}
