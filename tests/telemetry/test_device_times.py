"""Idle, compute, exposed communication and overlap of a GPU, by its profiler trace."""

from __future__ import annotations

import tarfile
from pathlib import Path

import profiler_traces
import pytest

import rca
from rca.sources.profiler.device_times import DeviceTimes, device_times
from rca.sources.profiler.trace import RankTrace, read_trace_file

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "kineto"
#: Idle, compute and overlap in percent, as HolisticTraceAnalysis 0.5.0 gives them:
#: ``TraceAnalysis(trace_files=..., include_last_profiler_step=True)``, then ``get_temporal_breakdown`` and
#: ``get_comm_comp_overlap``.
OF_128 = [(55.21, 17.20, 14.95), (52.89, 22.09, 19.93)]
OF_DLRM = [
    (49.34, 7.95, 4.50),
    (34.28, 6.65, 2.47),
    (62.08, 9.41, 7.88),
    (43.20, 6.58, 3.31),
    (53.57, 6.79, 0.56),
    (55.64, 6.35, 0.64),
    (61.80, 9.21, 7.56),
    (75.75, 9.66, 9.51),
]
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not here")


def shares(times: DeviceTimes | None) -> tuple[float, float, float]:
    assert times is not None
    return 100 * times.idle / times.total, 100 * times.compute / times.total, 100 * times.overlap


def test_times_of_all_streams_are_joined() -> None:
    trace = RankTrace(Path("a"), has_nccl=True)
    trace.kernels = [(0.0, 2.0), (1.0, 2.0), (8.0, 2.0)]
    trace.collectives = [("AllReduce", 2.0, 3.0, ""), ("AllReduce", 4.0, 2.0, "")]
    trace.copies = [(6.5, 0.5)]
    assert device_times(trace) == DeviceTimes(10.0, 1.5, 5.0, 4.0, 3.0)
    assert device_times(RankTrace(Path("a"))) is None


def test_the_answer_tells_the_times_of_each_rank(tmp_path: Path) -> None:
    window = rca.read_window(profiler_traces.write(tmp_path / "job", profiler_traces.job()))
    told = [note for note in window.notes if "its GPU is idle for" in note]
    assert len(told) == window.job.world_size
    assert told[0].startswith("rank 0: ")


@needs_traces
@pytest.mark.system
def test_times_of_two_of_128_ranks_are_those_of_hta() -> None:
    files = sorted((SHARED / "hta-two-of-128-ranks").iterdir())
    for path, wanted in zip(files, OF_128, strict=True):
        assert shares(device_times(read_trace_file(path))) == pytest.approx(wanted, rel=0.005)


@needs_traces
@pytest.mark.system
def test_times_of_a_dlrm_step_are_those_of_hta(tmp_path: Path) -> None:
    with tarfile.open(SHARED / "param-dlrm-8-ranks.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    files = sorted(tmp_path.rglob("worker*.json"))
    for path, wanted in zip(files, OF_DLRM, strict=True):
        # HTA rounds times to microseconds, and kernels here take a few.
        assert shares(device_times(read_trace_file(path))) == pytest.approx(wanted, abs=0.1)
