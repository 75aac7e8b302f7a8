"""Shorter and smaller windows cut from a labelled one, with the label that is true of what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import IntArray
from rca.sources.labels import LabelledCause, WindowLabel
from rca.window.job import Job, Parallelism
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

#: Steps a fault must act in to be felt; a checkpoint every sixth step needs two of them.
ENOUGH_STEPS = 6
ENOUGH_STEPS_PERIODIC = 14
PERIODIC = frozenset({"checkpoint_stall", "runtime_gc"})


def crop(window: Window, label: WindowLabel, first: int, end: int) -> tuple[Window, WindowLabel] | None:
    """Keep the steps from `first` up to, not including, `end`.

    Parameters
    ----------
    label : WindowLabel
        Its causes must say in which steps they act.
    first, end : int
        Step numbers.

    Returns
    -------
    (Window, Label) or None
        None where a fault acts too briefly in what is left to say whether it would be felt. None too where
        the label names no cause for what was wrong: nothing says in which steps.
    """
    if label.failure_mode != "healthy" and not label.causes:
        return None
    clock = StepClock.of(window)
    last_step = int(clock.steps[-1])
    stops = label.failure_mode == "fail_stop"
    end = last_step + 1 if stops else min(end, last_step + 1)
    causes = [_cropped(cause, clock, first, end) for cause in label.causes]
    if any(cause is None for cause in causes):
        return None
    kept = [cause for cause in causes if cause is not None and _acts(cause)]
    part = clock.between(first, end)
    return part, _relabelled(label, kept)


def _acts(cause: LabelledCause) -> bool:
    return cause.last_step is None or cause.first_step is None or cause.last_step >= cause.first_step


def _cropped(cause: LabelledCause, clock: StepClock, first: int, end: int) -> LabelledCause | None:
    """The cause as far as it acts between two steps: empty (last before first) if not at all."""
    if cause.first_step is None:
        return cause
    stop = end if cause.last_step is None else cause.last_step + 1
    begin, stop = max(first, cause.first_step), min(end, stop)
    if cause.cause in ("process_crash", "hang"):
        return cause
    n = max(0, stop - begin)
    if 0 < n < (ENOUGH_STEPS_PERIODIC if cause.cause in PERIODIC else ENOUGH_STEPS):
        return None
    changes: dict[str, Any] = {"first_step": begin, "last_step": begin + n - 1}
    price = (cause.model_extra or {}).get("seconds_per_step")
    if price is not None:
        whole = cause.last_step if cause.last_step is not None else int(clock.steps[-1])
        acted = max(1, whole - cause.first_step + 1)
        changes["seconds_per_step"] = price * (n / (end - first)) / (acted / clock.steps.size)
    return cause.model_copy(update=changes)


def _relabelled(label: WindowLabel, causes: list[LabelledCause]) -> WindowLabel:
    if not causes:
        healthy = {"failure_mode": "healthy", "straggler_type": None, "pattern": None, "causes": ()}
        return label.model_copy(update=healthy | {"injected": [], "impact": None})
    return label.model_copy(update={"causes": tuple(causes), "pattern": None})


def without_ranks(window: Window, label: WindowLabel, dropped: IntArray) -> tuple[Window, WindowLabel]:
    """The job without some of its ranks, the others renumbered: as if it had been started smaller.

    Only of data-parallel jobs, whose ranks do not depend on which others there are; none of the dropped
    may be to blame.
    """
    job = window.job
    kept = np.setdiff1d(np.arange(job.world_size), dropped)
    number = np.full(job.world_size, -1)
    number[kept] = np.arange(kept.size)
    names = [place.node for place in job.ranks or () if place.rank in set(kept.tolist())]
    smaller = replace(
        window,
        job=_smaller(job, kept, number),
        steps=_renumbered(window.steps, number),
        metrics=_on_nodes(_renumbered(window.metrics, number), names),
        events=_on_nodes(_renumbered(window.events, number), names),
        ops=window.ops.slice(0, 0),
    )
    causes = tuple(
        cause.model_copy(update={"ranks": tuple(int(number[r]) for r in cause.ranks if number[r] >= 0)})
        for cause in label.causes
    )
    return smaller, label.model_copy(update={"causes": causes})


def _smaller(job: Job, kept: IntArray, number: IntArray) -> Job:
    places = None
    if job.ranks is not None:
        places = tuple(
            place.model_copy(update={"rank": int(number[place.rank]), "data_rank": None})
            for place in job.ranks
            if number[place.rank] >= 0
        )
    size = int(kept.size)
    return job.model_copy(update={"world_size": size, "parallelism": Parallelism(data=size), "ranks": places})


def _renumbered(table: pa.Table, number: IntArray) -> pa.Table:
    """The table without the dropped ranks' rows; rows of no rank stay."""
    if not table.num_rows:
        return table
    column = table.column("rank").combine_chunks()
    known = np.asarray(column.is_valid())
    old = np.asarray(column.fill_null(0)).astype(np.int64)
    fresh = number[old]
    keep = ~known | (fresh >= 0)
    ranks = pa.array(fresh[keep].astype(np.int32), mask=~known[keep])
    place = table.column_names.index("rank")
    return table.filter(pa.array(keep)).set_column(place, table.schema.field("rank"), ranks)


def _on_nodes(table: pa.Table, names: list[str | None]) -> pa.Table:
    """Rows of nodes that are still there, and of none in particular."""
    if not table.num_rows or not any(names):
        return table
    node = table.column("node").cast(pa.string())
    there = pc.is_in(node, value_set=pa.array(sorted({name for name in names if name}), pa.string()))
    return table.filter(pc.or_(pc.is_null(node), there))
