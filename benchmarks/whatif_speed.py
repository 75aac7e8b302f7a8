"""What-if speed compared with the published tool's figures and the lower bound of memory.

    python benchmarks/whatif_speed.py TRACES [--large FILE]

TRACES is the folder with ``trace-AR.parquet`` and ``trace-ST.parquet``; the large trace is what
``whatif_synthetic.py`` writes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rca.whatif.analysis import replay_of, what_if
from rca.whatif.decompose import decompose
from rca.whatif.long_trace.long_trace import stream_replay

PUBLISHED_DECOMPOSITIONS = {"AR": 0.435, "ST": 0.190}
"""Seconds of the published tool on this kind of machine, loading not included."""
PUBLISHED_PROCESS = (1.1, 2.0)


def best(run: Callable[[], object], repeats: int = 30) -> float:
    """Shortest of several runs: the figure least disturbed by others on the machine."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def copy_bandwidth() -> float:
    """Bytes per second of a plain copy (read plus write), the floor for anything that streams."""
    source = np.ones(1 << 27, np.uint8)
    target = np.empty_like(source)
    return 2 * source.nbytes / best(lambda: np.copyto(target, source), 5)


def small(folder: Path, name: str) -> None:
    trace, meta = folder / f"trace-{name}.parquet", folder / f"meta-{name}.yaml"
    theirs = PUBLISHED_DECOMPOSITIONS[name]
    for engine in ("numba", "numpy"):
        replay = replay_of(trace, meta, engine=engine)  # type: ignore[arg-type]
        decompose(replay)
        ours = best(lambda replay=replay: decompose(replay))  # type: ignore[misc]
        ratio = f"{theirs / ours:7.0f}x theirs ({theirs} s)"
        print(f"{name} decompositions, {engine:<6} {ours * 1e3:9.3f} ms   {ratio}")
    command = [
        sys.executable,
        "-m",
        "rca.cli",
        "what-if",
        str(trace),
        "--meta",
        str(meta),
        "--format",
        "json",
    ]
    process = best(lambda: subprocess.run(command, check=True, capture_output=True), 5)
    low, high = PUBLISHED_PROCESS
    print(f"{name} whole command          {process:9.2f} s    theirs {low} to {high} s")
    print(f"{name} largest relative error over all published numbers {parity(folder, name):.1e}")


def parity(folder: Path, name: str) -> float:
    expected = json.loads((folder / f"result-{name}.json").read_text())
    for key in ("Mw", "Ms"):
        expected[key] = json.loads((folder / f"{key.lower()}-{name}.json").read_text())[key]
    found = what_if(folder / f"trace-{name}.parquet", folder / f"meta-{name}.yaml").published()
    return _largest_error(found, expected)


def _largest_error(found: object, expected: object) -> float:
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        return max((_largest_error(found[key], value) for key, value in expected.items()), default=0.0)
    if isinstance(expected, float):
        assert isinstance(found, float)
        return abs(found - expected) / max(abs(expected), 1e-300)
    assert found == expected
    return 0.0


def large(path: Path) -> None:
    began = time.perf_counter()
    replay = stream_replay(path)
    read = time.perf_counter()
    n_stages = replay.n_stages
    seconds = replay.each_data_rank(lambda part: [part.shape.stage == stage for stage in range(n_stages)])
    done = time.perf_counter()
    n_values = sum(part.shape.n_ops * part.shape.n_data * part.shape.steps.size for part in replay.parts)
    floor = 2 * 4 * n_values / copy_bandwidth()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    workers, rate = seconds.shape[0] * seconds.shape[1], n_values / (read - began) / 1e6
    print(f"large: {n_values:,} operations, {workers:,} workers, {seconds.shape[2]} steps")
    print(f"large: read, arrange, derive   {read - began:8.2f} s   {rate:.0f} M operations/s")
    print(f"large: all exact workers       {done - read:8.2f} s   (loading the kernels included)")
    print(f"large: from Parquet to workers {done - began:8.2f} s   target 30 s")
    print(f"large: peak memory             {peak:8.2f} GiB target 4 GiB")
    print(
        f"large: copying the operations' times once takes {floor:.2f} s at {copy_bandwidth() / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--large", type=Path)
    given = parser.parse_args()
    if given.large is not None:
        large(given.large)
    for trace in PUBLISHED_DECOMPOSITIONS:
        small(given.traces, trace)
