"""What holds for files of every source: content decides, windows are valid, bad files get an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import flight_recorder_dumps
import inspector_files
import numpy as np
import nvrx_reports
import profiler_traces
import pytest
import watchdog_logs

import rca
from rca.collect.counters import SERIES
from rca.collect.segments import SAMPLES, STEPS, SegmentWriter, table_block
from rca.collect.timers import COLUMNS
from rca.errors import RcaError
from rca.sources.registry import SOURCES, source_of
from tests.for_each import for_each

BEGIN = 1_760_000_000.0
Writer = Callable[[Path], None]


def _ras(folder: Path) -> None:
    ranks = [
        {"rank": rank, "host": "a", "pid": rank, "cuda_dev": rank, "collective_counts": {"AllReduce": 9}}
        for rank in range(4)
    ]
    content = {"nccl_version": "2.28.7", "communicators_count": 1, "communicators": [{"ranks": ranks}]}
    (folder / "ras.json").write_text(json.dumps(content))


def _inspector(folder: Path) -> None:
    inspector_files.write(folder, inspector_files.records(np.zeros((4, 30), dtype=np.int64)))


def _flight_recorder(folder: Path) -> None:
    entries = [flight_recorder_dumps.entry("0", number) for number in range(3)]
    dump = flight_recorder_dumps.dump({"0": range(3)}, entries)
    flight_recorder_dumps.write(folder, dict.fromkeys(range(3), dump))


def _collector(folder: Path) -> None:
    for rank in range(2):
        header = {
            "rank": rank, "world_size": 2, "gpu": rank, "node": "a", "job_id": "j", "run": None, "pid": rank,
            "started": BEGIN, "steps": list(COLUMNS), "series": [list(each) for each in SERIES],
        }  # fmt: skip
        writer = SegmentWriter(folder, f"rank-{rank}", header, 1 << 24)
        held = {"step_seconds": 1.0, "forward_seconds": 0.5}
        steps = [
            [{"step": step, "start_time": BEGIN + step, **held}.get(name, np.nan) for name in COLUMNS]
            for step in range(30)
        ]
        writer.append(table_block(STEPS, np.array(steps, dtype=np.float64)))
        samples = np.column_stack([np.arange(BEGIN, BEGIN + 30), np.ones((30, len(SERIES)))])
        writer.append(table_block(SAMPLES, samples))
        writer.close()


def _profiler(folder: Path) -> None:
    profiler_traces.write(folder, profiler_traces.job())


def _table(folder: Path) -> None:
    rows = [f"{rank},{step},{BEGIN + step},1.0" for rank in range(4) for step in range(30)]
    (folder / "steps.csv").write_text("\n".join(["rank,step,start_time,step_seconds", *rows]) + "\n")


def _megatron(folder: Path) -> None:
    lines = []
    for step in range(1, 30):
        lines.append(
            f" iteration {step:8d}/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |"
        )
        lines += ["times across ranks (ms):", "  forward-compute:"]
        lines += [f"     rank {rank:2d}: 400.00" for rank in range(4)]
    (folder / "job.log").write_text("\n".join(lines) + "\n")


def _stragglers(folder: Path) -> None:
    lines = [
        f"[2025-05-01 10:{minute:02}:00] | MnRtt/Rnk: 3453.08ms/1 | MxRtt/Rnk: 4861.20ms/3 | MnPwr/Rnk: 60W/0"
        for minute in range(20)
    ]
    (folder / "job.log").write_text("\n".join(lines) + "\n")


def _nvrx(folder: Path) -> None:
    lines = [line for minute in range(5) for line in nvrx_reports.logged({0: 0.9, 1: 1.0}, minute=minute)]
    (folder / "job.log").write_text("\n".join(lines) + "\n")


def _watchdog(folder: Path) -> None:
    lines = [line for each in watchdog_logs.hang(4, [1]).values() for line in each]
    watchdog_logs.write(folder / "job.log", lines)


def _mlperf(folder: Path) -> None:
    values = [
        {"key": "tracked_stats", "time_ms": int((BEGIN + step) * 1e3), "value": {"train_step_time": 0.9}}
        for step in range(30)
    ]
    (folder / "result.txt").write_text("".join(f":::MLLOG {json.dumps(each)}\n" for each in values))


def _step_log(folder: Path) -> None:
    lines = [
        f"[titan] 2025-05-01 10:{step // 60:02}:{step % 60:02},250 - root - INFO - step: {step:2}  loss: 7.1"
        for step in range(1, 120)
    ]
    (folder / "job.log").write_text("\n".join(lines) + "\n")


def _sacct(folder: Path) -> None:
    rows = ["JobID|State|ExitCode|End|NodeList", "7|FAILED|1:0|2025-03-01T12:00:05|a[1-2]"]
    rows += [f"7.{step}|FAILED|1:0|2025-03-01T12:00:0{step}|a{step}" for step in range(3)]
    (folder / "sacct.txt").write_text("\n".join(rows) + "\n")


def _pods(folder: Path) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-03-01T12:00:05Z"}
    status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    pod = {"kind": "Pod", "metadata": {"name": "a-1"}, "spec": {"nodeName": "n1"}, "status": status}
    (folder / "pods.json").write_text(json.dumps({"kind": "List", "items": [pod]}))


def _kubernetes(folder: Path) -> None:
    items = [
        {
            "kind": "Event",
            "involvedObject": {"kind": "Pod", "name": f"worker-{pod}"},
            "reason": "Evicted",
            "firstTimestamp": f"2025-03-01T12:00:0{pod}Z",
        }
        for pod in range(3)
    ]
    (folder / "events.json").write_text(json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}))


def _py_spy(folder: Path) -> None:
    for rank in range(3):
        frames = ["barrier (torch/distributed/distributed_c10d.py:4159)", "train (train.py:7)"]
        head = [f"Process {rank}: python train.py", "Python v3.11.9 (/usr/bin/python)", ""]
        lines = [*head, 'Thread 0x7FA6E7C01740 (active): "MainThread"', *(f"    {each}" for each in frames)]
        (folder / f"rank{rank}.txt").write_text("\n".join(lines) + "\n")


def _metrics(folder: Path) -> None:
    lines = ["timestamp, index, temperature.gpu, clocks.current.sm [MHz]"]
    lines += [
        f"2025/03/01 12:{minute:02}:00.000, {gpu}, 61, 1410 MHz" for minute in range(30) for gpu in range(4)
    ]
    (folder / "node-a.csv").write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Writer] = {
    "nccl-inspector": _inspector,
    "nccl-ras": _ras,
    "flight-recorder": _flight_recorder,
    "collector": _collector,
    "profiler": _profiler,
    "table": _table,
    "megatron-timers": _megatron,
    "megatron-stragglers": _stragglers,
    "nvrx": _nvrx,
    "watchdog": _watchdog,
    "mlperf": _mlperf,
    "step-log": _step_log,
    "sacct": _sacct,
    "kubernetes-events": _kubernetes,
    "kubernetes-pods": _pods,
    "py-spy": _py_spy,
    "metric-files": _metrics,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with well-formed files of each source."""
    found = {}
    for name, writer in WRITERS.items():
        found[name] = tmp_path_factory.mktemp(name)
        writer(found[name])
    return found


def test_every_source_is_covered() -> None:
    assert sorted(WRITERS) == sorted(source.name for source in SOURCES)


@for_each("name", WRITERS)
def test_content_decides(written: dict[str, Path], tmp_path: Path, name: str) -> None:
    for path in written[name].iterdir():
        found = source_of(path)
        assert found is not None
        assert found.name == name
        if name != "flight-recorder":
            # Only these dumps have their rank in the name.
            renamed = source_of(shutil.copy(path, tmp_path / "file"))
            assert renamed is not None
            assert renamed.name == name


@for_each("name", WRITERS)
def test_a_window_is_valid_and_survives_its_encoding(written: dict[str, Path], name: str) -> None:
    window = rca.read_window(written[name])
    tables = (window.steps, window.metrics, window.collectives, window.events)
    assert any(table.num_rows for table in tables)
    again = rca.read_window(window.to_json())
    assert (again.steps.num_rows, again.collectives.num_rows) == (
        window.steps.num_rows,
        window.collectives.num_rows,
    )


@for_each("share", [0.03, 0.5, 0.97])
@for_each("name", WRITERS)
def test_cut_files_are_refused_or_read_in_part(
    written: dict[str, Path], tmp_path: Path, name: str, share: float
) -> None:
    for path in written[name].iterdir():
        body = path.read_bytes()
        (tmp_path / path.name).write_bytes(body[: int(share * len(body))])
    try:
        n_rows = rca.read_window(tmp_path).steps.num_rows
    except RcaError:
        return
    assert n_rows <= rca.read_window(written[name]).steps.num_rows


@for_each("name", WRITERS)
def test_files_among_others_are_refused(written: dict[str, Path], tmp_path: Path, name: str) -> None:
    for path in written[name].iterdir():
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(RcaError, match=rf"holds files of {name} and 1 other files \(model\.bin\)"):
        rca.read_window(tmp_path)
