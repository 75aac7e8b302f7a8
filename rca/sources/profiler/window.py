"""Windows of profiler traces: rounds of own work and collectives, and the parts of a step.

The k-th collective of one rank and the k-th of another are the same one, and both end together. A rank that
starts it last made the others wait. A step ends with its last collective: what follows belongs to the next
step, whose first collective waits for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.sources.profiler.device_times import notes_of
from rca.sources.profiler.trace import ARRAY, RankTrace, is_trace, read_trace_file
from rca.sources.source import Source
from rca.window.rows.clock_units import LATEST_SECOND
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import EVENTS, METRICS, OPS
from rca.window.window import Window

#: Clocks of ranks that differ by less are left alone, seconds.
MIN_OFFSET = 1e-4
#: A collective ends on all ranks within so many seconds, or within this share of its duration.
MAX_SPREAD_SECONDS, MAX_SPREAD_SHARE = 1e-3, 0.1
#: Share of the collectives that have to end together; fewer are point to point, or of smaller groups.
MIN_AGREEMENT = 0.8


@dataclass(frozen=True)
class _Rounds:
    """Matched collectives, on one clock.

    Attributes
    ----------
    start, end : ndarray of shape (n_ranks, n_collectives), Unix seconds
    step : ndarray of shape (n_collectives,), int
    """

    start: FloatArray
    end: FloatArray
    step: IntArray


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the traces of one job, one file per rank.

    Parameters
    ----------
    job_id : str
        Of the window; traces hold none.

    Returns
    -------
    Window
        With ``steps``, and with ``ops`` of the types ``own-work`` and ``collective`` if the collectives of at
        least two ranks can be matched. Its notes say what is missing.

    Raises
    ------
    InvalidInput
        If a trace is damaged or has no step, a rank is unknown, or two traces are of one rank. If times are
        beyond the year 5000.
    """
    traces = _by_rank([read_trace_file(path) for path in paths])
    _check_times(traces)
    notes: list[str] = []
    rounds, offsets = _matched(traces, notes)
    given = max((trace.world_size or 1 for trace in traces), default=1)
    world_size = max(given, 1 + max(trace.rank or 0 for trace in traces))
    if world_size > len(traces):
        notes.append(f"traces of {len(traces)} of {world_size} ranks: waiting for the others is not seen")
    notes += notes_of(traces)
    begins = [start for trace in traces for start, _ in trace.steps.values()]
    ends = [start + length for trace in traces for start, length in trace.steps.values()]
    window = Window.from_tables(
        {
            "job_id": job_id,
            "framework": "pytorch",
            "world_size": world_size,
            "start": min(begins),
            "end": max(max(ends), min(begins) + 1e-3),
        },
        _steps(traces, offsets, rounds),
        METRICS.empty(),
        EVENTS.empty(),
        OPS.empty() if rounds is None else _operations(traces, rounds),
    )
    return replace(window, notes=(*window.notes, *notes))


def _check_times(traces: Sequence[RankTrace]) -> None:
    for trace in traces:
        latest = max(start + length for start, length in trace.steps.values())
        if not latest < LATEST_SECOND:
            raise InvalidInput(
                f"{trace.path}: the trace has steps beyond the year 5000: are its times nanoseconds?",
                hint="times in a Kineto trace (ts, dur) are microseconds, whatever displayTimeUnit says",
            )


def _by_rank(traces: Sequence[RankTrace]) -> list[RankTrace]:
    if len(traces) == 1 and traces[0].rank is None:
        traces[0].rank = 0
    unnamed = [trace.path.name for trace in traces if trace.rank is None]
    if unnamed:
        raise InvalidInput(
            f"{unnamed[0]}: neither the profiler trace nor its name holds the rank",
            hint="name the files rank0.json, rank1.json, ...",
        )
    found: dict[int, RankTrace] = {}
    for trace in traces:
        rank = trace.rank or 0
        if rank >= MAX_WORLD_SIZE:
            raise InvalidInput(f"{trace.path}: rank {rank:,} is above {MAX_WORLD_SIZE - 1:,}")
        if rank in found:
            raise InvalidInput(
                f"{found[rank].path.name} and {trace.path.name} are both of rank {rank}",
                hint="give one trace per rank, all of the same steps",
            )
        found[rank] = trace
    return [found[rank] for rank in sorted(found)]


def _matched(traces: Sequence[RankTrace], notes: list[str]) -> tuple[_Rounds | None, FloatArray]:
    """The collectives of all ranks, matched by their order, and the clock offset of each rank."""
    offsets = np.zeros(len(traces))
    whole = [_of_all_ranks(trace, len(traces)) for trace in traces]
    smaller = sum(len(trace.collectives) - len(held) for trace, held in zip(traces, whole, strict=True))
    if smaller:
        notes.append(f"{smaller} collectives of smaller groups count as own work")
    if len(traces) < 2:
        notes.append("the trace of one rank: waiting and own work cannot be told apart")
        return None, offsets
    count = min(len(held) for held in whole)
    if count == 0:
        notes.append("no NCCL kernels of all ranks: no operations")
        return None, offsets
    kept = _aligned(whole, count)
    if kept is None:
        notes.append("the ranks run different collectives: no operations")
        return None, offsets
    dropped = sum(len(held) - count for held in whole)
    if dropped:
        notes.append(f"{dropped} collectives without a counterpart on every rank are left out")
    start = np.array([[one[1] for one in held] for held in kept])
    end = start + np.array([[one[2] for one in held] for held in kept])
    offsets = np.median(end - np.median(end, axis=0), axis=1)
    if np.abs(offsets).max() < MIN_OFFSET:
        offsets = np.zeros(len(traces))
    else:
        moved = int((np.abs(offsets) >= MIN_OFFSET).sum())
        notes.append(f"clocks of {moved} ranks corrected by up to {np.abs(offsets).max():.3g} s")
    start, end = start - offsets[:, None], end - offsets[:, None]
    tolerance = np.maximum(MAX_SPREAD_SECONDS, MAX_SPREAD_SHARE * (end - start).max(axis=0))
    agreeing = int((np.ptp(end, axis=0) <= tolerance).sum())
    if agreeing < MIN_AGREEMENT * count:
        notes.append(
            f"{count - agreeing} of {count} exchanges do not end together on all ranks: they are point to "
            "point or of smaller groups, so there are no operations"
        )
        return None, np.zeros(len(traces))
    spans = traces[0].device_steps or traces[0].steps
    begins = [begin - offsets[0] for begin, _ in spans.values()]
    numbers = list(spans)
    step = [numbers[max(0, bisect_right(begins, float(at)) - 1)] for at in start[0]]
    return _Rounds(start, end, np.array(step)), offsets


def _of_all_ranks(trace: RankTrace, n_traces: int) -> list[tuple[str, float, float, str]]:
    """Collectives that all ranks of the job join, as far as the trace says."""
    sizes = trace.group_sizes
    largest = max(sizes.values(), default=0)
    wanted = max(largest, min(n_traces, trace.world_size or n_traces))
    return [one for one in trace.collectives if sizes.get(one[3], wanted) >= wanted]


def _aligned(
    whole: Sequence[list[tuple[str, float, float, str]]], count: int
) -> list[list[tuple[str, float, float, str]]] | None:
    """The same number of collectives of each rank, of the same kinds: the last ones, else the first."""
    for chosen in ([held[len(held) - count :] for held in whole], [held[:count] for held in whole]):
        kinds = {tuple(one[0] for one in held) for held in chosen}
        if len(kinds) == 1:
            return chosen
    return None


def _operations(traces: Sequence[RankTrace], rounds: _Rounds) -> pa.Table:
    """Rows of own work and collective, in turn, of every rank and step."""
    n_ranks, n_rounds = rounds.start.shape
    first = np.array([[min(start for start, _ in trace.steps.values())] for trace in traces])
    # Collectives on several streams may overlap: a round begins when all earlier ones have ended.
    before = np.maximum.accumulate(rounds.end, axis=1)
    begin = np.concatenate([np.minimum(first, rounds.start[:, :1]), before[:, :-1]], axis=1)
    begin = np.minimum(begin, rounds.start)
    cuts = np.flatnonzero(np.diff(rounds.step, prepend=rounds.step[0] - 1))
    sequence = np.arange(n_rounds) - np.repeat(cuts, np.diff(np.append(cuts, n_rounds)))
    start = np.stack([begin, rounds.start], axis=2).ravel()
    duration = np.stack([rounds.start - begin, rounds.end - rounds.start], axis=2).ravel()
    size = start.size
    ranks = np.array([trace.rank for trace in traces])
    zeros = np.zeros(size, np.int64)
    columns = {
        "rank": np.repeat(ranks, 2 * n_rounds),
        "dp_rank": np.repeat(np.arange(n_ranks), 2 * n_rounds),
        "stage": zeros,
        "step": np.tile(np.repeat(rounds.step, 2), n_ranks),
        "optype": np.tile(np.array(["own-work", "collective"]), n_ranks * n_rounds),
        "seq_id": np.tile(np.repeat(sequence, 2), n_ranks),
        "mc": zeros,
        "gmc": zeros,
        "mb_id": zeros - 1,
        "start_ts": start,
        "duration": duration,
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _steps(traces: Sequence[RankTrace], offsets: FloatArray, rounds: _Rounds | None) -> pa.Table:
    """One row per rank and step, with the parts that the trace times."""
    rows: dict[str, list[float]] = {
        name: []
        for name in (
            "rank", "step", "start_time", "step_seconds", "data_loading_seconds", "host_to_device_seconds",
            "optimizer_seconds", "communication_wait_seconds", "communication_transfer_seconds",
            "communication_seconds",
        )
    }  # fmt: skip
    latest = None if rounds is None else rounds.start.max(axis=0)
    for place, trace in enumerate(traces):
        spans = list(trace.steps.values())
        begins = [start for start, _ in spans]
        # Work on the GPU runs later than the host's step that started it.
        on_device = (
            list(trace.device_steps.values()) if trace.device_steps.keys() == trace.steps.keys() else spans
        )
        sums = {
            "data_loading_seconds": _per_step(trace.data_loading, spans),
            "host_to_device_seconds": _per_step(trace.host_to_device, on_device),
            "optimizer_seconds": _per_step(trace.optimizer, on_device),
        }
        rows["rank"] += [trace.rank or 0] * len(spans)
        rows["step"] += list(trace.steps)
        rows["start_time"] += [start - float(offsets[place]) for start in begins]
        rows["step_seconds"] += [length for _, length in spans]
        for name, values in sums.items():
            rows[name] += values
        exposed = [np.nan] * len(spans)
        if rounds is None and trace.collectives:
            exposed = _per_step(_exposed(trace), on_device)
        rows["communication_seconds"] += exposed
        for step in trace.steps:
            chosen = np.zeros(0, bool) if rounds is None else rounds.step == step
            if rounds is None or latest is None or not chosen.any():
                rows["communication_wait_seconds"].append(np.nan)
                rows["communication_transfer_seconds"].append(np.nan)
                continue
            start, end = rounds.start[place, chosen], rounds.end[place, chosen]
            waited = np.minimum(latest[chosen], end) - start
            rows["communication_wait_seconds"].append(float(waited.sum()))
            rows["communication_transfer_seconds"].append(float((end - start - waited).sum()))
    return pa.table({name: pa.array(values) for name, values in rows.items()})


def _exposed(trace: RankTrace) -> list[tuple[float, float]]:
    """Times in which the GPU runs collectives and nothing else, as starts and durations."""
    edges: list[tuple[float, int, int]] = []
    for spans, kind in (
        ([(start, length) for _, start, length, _ in trace.collectives], 0),
        ([*trace.kernels, *trace.copies], 1),
    ):
        for start, length in spans:
            edges += [(start, kind, 1), (start + length, kind, -1)]
    running, since, found = [0, 0], 0.0, []
    for at, kind, change in sorted(edges):
        if running[0] and not running[1] and at > since:
            found.append((since, at - since))
        running[kind] += change
        since = at
    return found


def _per_step(spans: Sequence[tuple[float, float]], steps: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds of the spans within each step; NaN in all if there are no spans.

    Parameters
    ----------
    steps : sequence of (float, float)
        Start and duration of each step, by start.
    """
    if not spans:
        return [np.nan] * len(steps)
    sums = [0.0] * len(steps)
    begins = [begin for begin, _ in steps]
    for start, length in spans:
        place = max(0, bisect_right(begins, start) - 1)
        while place < len(steps) and begins[place] < start + length:
            begin, duration = steps[place]
            sums[place] += max(0.0, min(start + length, begin + duration) - max(start, begin))
            place += 1
    return sums


SOURCE = Source(
    name="profiler",
    title="PyTorch profiler (Kineto) traces, one JSON file per rank, plain or gzip",
    tells="which rank makes the others wait at collectives, and what it costs per step (`rca what-if`)",
    lacks="hardware and cause; certainty, because a trace holds few steps; jobs with pipeline stages",
    recognises=is_trace,
    read=read,
    late_marks=ARRAY,
)
