"""Metrics of exporters in files, alone and beside steps."""

from __future__ import annotations

import json
import os
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput
from tests.for_each import for_each

BEGIN = 1_740_830_400.0  # 2025-03-01 12:00:00 UTC
SMI = """timestamp, index, clocks.current.sm [MHz], power.draw [W], clocks_event_reasons.active
2025/03/01 12:00:00.000, 0, 1410 MHz, 402.11 W, 0x0000000000000000
2025/03/01 12:00:00.004, 1, 345 MHz, [N/A], 0x0000000000000040
"""
TEXT = """# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",Hostname="node-a"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b",Hostname="node-a"} 88 1740830460000
# TYPE go_goroutines gauge
go_goroutines 12
"""
ANSWER = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "DCGM_FI_DEV_SM_CLOCK", "gpu": str(gpu), "Hostname": "node-a"},
                "values": [[BEGIN + 30.0 * at, "345" if gpu else "1410"] for at in range(20)],
            }
            for gpu in range(2)
        ],
    },
}


def test_csv_of_nvidia_smi_has_a_rank_for_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "node-a.csv").write_text(SMI)
    window = rca.read_window(tmp_path)
    rows = {(row["rank"], row["name"]): row["value"] for row in window.metrics.to_pylist()}
    assert window.job.world_size == 2
    assert rows[1, "DCGM_FI_DEV_SM_CLOCK"] == 345.0
    assert rows[1, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] == 0x40
    assert (1, "DCGM_FI_DEV_POWER_USAGE") not in rows
    assert set(window.metrics.column("node").to_pylist()) == {"node-a"}
    assert window.job.start == BEGIN


QUERY = """
==============NVSMI LOG==============

Timestamp                                 : Sat Mar  1 12:00:00 2025
Attached GPUs                             : 2
GPU 00000000:07:00.0
    PCI
        GPU Link Info
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    Temperature
        GPU Current Temp                  : 91 C
    Power Readings
        Power Draw                        : N/A
GPU 00000000:0A:00.0
    Clocks
        SM                                : 1980 MHz
"""


def test_the_text_of_nvidia_smi_q_is_read(tmp_path: Path) -> None:
    (tmp_path / "node-a.txt").write_text(QUERY)
    rows = {
        (row["rank"], row["name"]): (row["time"], row["value"])
        for row in rca.read_window(tmp_path).metrics.to_pylist()
    }
    assert rows == {
        (0, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"): (BEGIN, 16.0),
        (0, "DCGM_FI_DEV_PCIE_LINK_WIDTH"): (BEGIN, 8.0),
        (0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"): (BEGIN, float(0x4 | 0x8 | 0x40)),
        (0, "DCGM_FI_DEV_GPU_TEMP"): (BEGIN, 91.0),
        (1, "DCGM_FI_DEV_SM_CLOCK"): (BEGIN, 1980.0),
    }


def test_dumps_of_dcgmi_dmon_have_a_round_each_second(tmp_path: Path) -> None:
    path = tmp_path / "node-a.txt"
    header = "#Entity   GPUTL   TMPTR   SMCLK\nID        %       C       MHz\n"
    path.write_text(header + 2 * "GPU 0     98      60      1980\nGPU 1     97      N/A     345\n")
    os.utime(path, (BEGIN, BEGIN))
    found = rca.read_window(tmp_path).metrics.to_pylist()
    rows = {(row["rank"], row["name"], row["time"] - BEGIN): row["value"] for row in found}
    assert rows[1, "DCGM_FI_DEV_SM_CLOCK", -1.0] == rows[1, "DCGM_FI_DEV_SM_CLOCK", 0.0] == 345.0
    assert (1, "DCGM_FI_DEV_GPU_TEMP", 0.0) not in rows


def test_prometheus_text_has_the_time_of_its_file_where_samples_have_none(tmp_path: Path) -> None:
    path = tmp_path / "scrape.prom"
    path.write_text(TEXT)
    os.utime(path, (BEGIN, BEGIN))
    rows = {row["rank"]: (row["time"], row["value"]) for row in rca.read_window(path).metrics.to_pylist()}
    assert rows == {0: (BEGIN, 61.0), 1: (BEGIN + 60.0, 88.0)}


def test_an_answer_of_a_range_query_is_read_and_joins_the_steps_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text(json.dumps(ANSWER))
    assert rca.read_window(tmp_path).metrics.num_rows == 40
    steps = [f"{rank},{step},{BEGIN + 10 * step},9.0" for rank in range(2) for step in range(60)]
    (tmp_path / "steps.csv").write_text("\n".join(["rank,step,start_time,step_seconds", *steps]))
    both = rca.read_window(tmp_path)
    assert (both.steps.num_rows, both.metrics.num_rows) == (120, 40)
    assert set(both.metrics.column("rank").to_pylist()) == {0, 1}


def otlp_request() -> Any:
    """What a collector sends that scrapes DCGM's exporter on a node: clocks of two GPUs, and a delta sum."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    for key, text in (("service.name", "dcgm"), ("host.name", "node-a")):
        resource.resource.attributes.add(key=key).value.string_value = text
    scope = resource.scope_metrics.add()
    scope.scope.name = "prometheusreceiver"
    clock, replay = scope.metrics.add(name="DCGM_FI_DEV_SM_CLOCK", unit="MHz"), scope.metrics.add()
    replay.name = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    replay.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    scope.metrics.add(name="latency").histogram.data_points.add(count=3)
    for at, gpu in product(range(20), range(2)):
        nanoseconds = int((BEGIN + 30.0 * at) * 1e9)
        for metric in (clock.gauge, replay.sum):
            point = metric.data_points.add(time_unix_nano=nanoseconds)
            point.attributes.add(key="gpu").value.string_value = str(gpu)
            if metric is clock.gauge:
                point.as_double = 345.5 if gpu else 1410.0
            else:
                point.as_int = gpu
    return request


def otlp_bodies() -> dict[str, bytes]:
    from google.protobuf.json_format import MessageToJson

    request = otlp_request()
    line = MessageToJson(request, indent=None).encode()
    packed = request.SerializeToString()
    return {
        "json": line,
        "lines": line + b"\n",
        "body": packed,
        "file": struct.pack(">I", len(packed)) + packed,
    }


@for_each("form", ["json", "lines", "body", "file"])
def test_metrics_of_a_collector_are_read(tmp_path: Path, form: str) -> None:
    (tmp_path / "metrics.otlp").write_bytes(otlp_bodies()[form])
    rows = rca.read_window(tmp_path).metrics.to_pylist()
    clocks = [row for row in rows if row["name"] == "DCGM_FI_DEV_SM_CLOCK" and row["rank"] == 1]
    assert [row["value"] for row in clocks] == [345.5] * 20
    assert [row["time"] for row in clocks[:2]] == [BEGIN, BEGIN + 30.0]
    assert {row["node"] for row in rows} == {"node-a"}
    # Deltas are added up.
    replays = [row["value"] for row in rows if "REPLAY" in row["name"] and row["rank"] == 1]
    assert replays == list(range(1, 21))


@for_each(("label", "names"), [
    ("gpu.number", {"gpu.dcgm.clock.frequency": (1.41e9, 0.69e9), "gpu.dcgm.utilization": (0.97, 1.0)}),
    ("hw.id", {"hw.gpu.utilization": (0.97, 0.1), "hw.gpu.memory.usage": (8e10, 8e10)}),
])  # fmt: skip
def test_gpus_are_found_by_the_names_of_opentelemetry(
    tmp_path: Path, label: str, names: dict[str, tuple[float, float]]
) -> None:
    def point(gpu: int, at: int, value: float) -> dict[str, Any]:
        number = {"key": label, "value": {"stringValue": str(gpu)}}
        return {"timeUnixNano": str(int((BEGIN + at) * 1e9)), "asDouble": value, "attributes": [number]}

    metrics = [
        {"name": name, "gauge": {"dataPoints": [
            point(gpu, at, value) for at in range(0, 100, 10) for gpu, value in enumerate(values)
        ]}}
        for name, values in names.items()
    ]  # fmt: skip
    host = {"attributes": [{"key": "host.name", "value": {"stringValue": "node-a"}}]}
    request = {"resourceMetrics": [{"resource": host, "scopeMetrics": [{"metrics": metrics}]}]}
    (tmp_path / "metrics.json").write_text(json.dumps(request))
    window = rca.read_window(tmp_path)
    assert [(each.node, each.gpu) for each in window.job.ranks or ()] == [("node-a", 0), ("node-a", 1)]
    rows = window.metrics.to_pylist()
    first, *_ = (tuple(values) for values in names.values())
    found = {row["rank"]: row["value"] for row in rows if row["name"] == next(iter(names)).replace(".", "_")}
    assert found == dict(enumerate(first))


@for_each("form", ["json", "body", "file"])
def test_cut_metrics_of_a_collector_are_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "metrics.otlp"
    body = otlp_bodies()[form]
    for cut in (len(body) // 2, len(body) - 3):
        path.write_bytes(body[:cut])
        with pytest.raises(InvalidInput, match=r"metrics\.otlp holds damaged metrics"):
            rca.read_window(path)


@for_each(
    ("text", "message"),
    [
        ("# TYPE go_goroutines gauge\ngo_goroutines 12\n", "none of 1 series is used"),
        ('# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu="0" 61\n', "damaged metrics"),
        (json.dumps(ANSWER)[:-30], "damaged metrics"),
        (SMI.splitlines()[0], "none of 0 series"),
    ],
    ["unused", "damaged text", "cut", "header only"],
)
def test_unusable_metrics_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        rca.read_window(tmp_path)
