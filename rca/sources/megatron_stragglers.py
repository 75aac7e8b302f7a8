"""Reports of Megatron-LM's straggler detector (`--log-straggler`): the slowest and the fastest rank of each.

A report names the ranks with the least and the most time and throughput, and no others.

References
----------
NVIDIA/Megatron-LM, ``megatron/core/README_STRAGGLER.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput
from rca.sources.logs.text_lines import LineClock, lines_of
from rca.sources.source import Source
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import OPS, STEPS
from rca.window.window import Window

MARKS = re.compile(rb"MnRtt/Rnk: \d")
_TIME = re.compile(r"\b(Mn|Mx)Rtt/Rnk: (\d{1,12}(?:\.\d{1,6})?)ms/(\d{1,6})\b")
#: The slowest rank is a straggler if it takes so many times as long as the fastest.
MIN_RATIO = 1.1
METRIC = "megatron_straggler"


class _Report(NamedTuple):
    time: float
    slowest: int
    fastest: int
    ratio: float


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the reports of one job into a window of metrics.

    Parameters
    ----------
    job_id : str
        Of the window; logs hold none.

    Returns
    -------
    Window
        With the metric `megatron_straggler` of the slowest and the fastest rank of each report.

    Raises
    ------
    InvalidInput
        If no report is complete.
    """
    reports = _reports(paths)
    if not reports:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(
            f"{names}: lines of Megatron's straggler detector, but none with MnRtt/Rnk and MxRtt/Rnk",
            hint="the log may be cut: give the log of rank 0",
        )
    times = np.array([each.time for each in reports])
    # Reports without a time are in the order of the log.
    times = np.maximum.accumulate(times)
    slow = [each for each in reports if each.ratio >= MIN_RATIO]
    rows = [
        (time, rank, value)
        for time, each in zip(times.tolist(), reports, strict=True)
        for rank, value in {each.fastest: 0.0, each.slowest: float(each.ratio >= MIN_RATIO)}.items()
    ]
    metrics = pa.table(
        {
            "time": pa.array([row[0] for row in rows], pa.float64()),
            "node": pa.array([None] * len(rows), pa.string()),
            "rank": pa.array([row[1] for row in rows], pa.int32()),
            "device": pa.array([None] * len(rows), pa.string()),
            "name": pa.array([METRIC] * len(rows), pa.string()),
            "value": pa.array([row[2] for row in rows], pa.float64()),
        }
    )
    highest = max(max(each.slowest, each.fastest) for each in reports)
    if highest >= MAX_WORLD_SIZE:
        raise InvalidInput(f"a report names rank {highest:,}, above {MAX_WORLD_SIZE - 1:,}")
    window = Window.from_tables(
        {
            "job_id": job_id,
            "framework": "megatron",
            "world_size": highest + 1,
            "start": float(times.min()),
            "end": float(times.max()) + 1.0,
        },
        STEPS.empty(),
        metrics,
        None,
        OPS.empty(),
    )
    notes = ["a report names its slowest and its fastest rank only; the world size is a guess from these"]
    notes.append(
        f"in {len(slow)} of {len(reports)} reports a rank takes {MIN_RATIO:g} times the fastest or more"
    )
    if slow:
        worst = max(slow, key=lambda each: each.ratio)
        notes.append(f"rank {worst.slowest} takes up to {worst.ratio:.2f} times as long as the fastest rank")
    return replace(window, notes=(*window.notes, *notes))


def _reports(paths: Sequence[Path]) -> list[_Report]:
    clock = LineClock()
    found = []
    for path in paths:
        for line in lines_of(path, MARKS):
            stamp = clock.stamp(line)
            ends = {name: (float(value), int(rank)) for name, value, rank in _TIME.findall(line.text)}
            if ends.keys() == {"Mn", "Mx"} and ends["Mn"][0] > 0:
                ratio = ends["Mx"][0] / ends["Mn"][0]
                found.append((stamp, ends["Mx"][1], ends["Mn"][1], ratio))
    return [
        _Report(clock.time_of(stamp), slowest, fastest, ratio) for stamp, slowest, fastest, ratio in found
    ]


SOURCE = Source(
    name="megatron-stragglers",
    title="Megatron-LM job logs with reports of its straggler detector (`--log-straggler`)",
    tells="which rank is the slowest of each report, and by how much",
    lacks="the time of the other ranks, phases, hardware and cause; a cost",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
