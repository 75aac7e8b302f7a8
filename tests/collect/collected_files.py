"""Files of the collector, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rca.collect.counters import SERIES
from rca.collect.segments import OPEN_STEP, SAMPLES, STEPS, SegmentWriter, event_block, table_block
from rca.collect.timers import COLUMNS

BEGIN = 1_700_000_000.0
END = {"kind": "collector_end", "code": None, "message": None, "errors": 0, "lost_rows": 0}
#: Seconds after `BEGIN`, kind, code, message.
Event = tuple[float, str, str | None, str | None]


def write_rank(
    folder: Path,
    rank: int,
    *,
    steps: Sequence[int] = range(30),
    world_size: int = 4,
    started: float = BEGIN,
    run: str | None = None,
    ends: bool = True,
    samples_until: float = 30.0,
    open_step: int | None = None,
    lost_rows: int = 0,
    events: Sequence[Event] = (),
    counted: float = 1.0,
    max_bytes: int = 1 << 24,
    attempt: int | None = None,
    **phases: float,
) -> list[Path]:
    """Files of one rank: a step each second, with these seconds per phase, and events of its collector.

    All counters grow by `counted` each second.
    """
    header = {
        "rank": rank,
        "world_size": world_size,
        "gpu": rank % 2,
        "node": f"node-{rank // 2}",
        "job_id": "job-1",
        "run": run,
        "attempt": attempt,
        "pid": 100 + rank,
        "started": started,
        "steps": list(COLUMNS),
        "series": [list(each) for each in SERIES],
    }
    writer = SegmentWriter(folder, f"rank-{rank:05}-{started:.0f}", header, max_bytes)
    rows = np.full((len(steps), len(COLUMNS)), np.nan)
    for row, step in zip(rows, steps, strict=True):
        seconds = {f"{name}_seconds": value for name, value in phases.items()}
        held = {"step": step, "start_time": started + step, "step_seconds": 1.0, **seconds}
        row[:] = [held.get(name, np.nan) for name in COLUMNS]
    for part in np.array_split(rows, max(1, len(rows) // 100)):
        writer.append(table_block(STEPS, part))
    times = np.arange(started, started + samples_until)
    values = np.column_stack([times, np.outer(counted * np.arange(len(times)), np.ones(len(SERIES)))])
    values[:, -1] = np.nan
    writer.append(table_block(SAMPLES, values))
    if open_step is not None:
        held = {"step": open_step, "start_time": started + open_step, "forward_seconds": 0.1}
        writer.append(table_block(OPEN_STEP, np.array([held.get(name, np.nan) for name in COLUMNS])))
    for time, kind, code, message in events:
        event = {"time": started + time, "kind": kind, "code": code, "message": message}
        writer.append(event_block(event))
    if ends:
        writer.append(event_block({**END, "time": started + samples_until, "lost_rows": lost_rows}))
    writer.close()
    return sorted(folder.glob(f"rank-{rank:05}-{started:.0f}*"))


def write_job(folder: Path, *, ranks: Sequence[int] = range(4), **options: Any) -> Path:
    for rank in ranks:
        write_rank(folder, rank, **options)
    return folder
