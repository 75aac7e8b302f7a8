"""Completes an answer: when it began, where its ranks are, and which costs are unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.diagnosis.format_1 import COSTS, cost_is_unknown
from rca.diagnosis.places import Place, WindowSpan
from rca.diagnosis.result import Diagnosis, Slowdown, Straggler
from rca.window.job import Job, RankPlace
from rca.window.window import Window

#: A component lists the places of so many ranks.
MAX_PLACES = 16
#: A straggler that is late until at most so many steps before the window's end still lasts.
MAX_STEPS_AFTER = 3


class _Moments(NamedTuple):
    """Median begin and end of a step over its ranks, Unix seconds."""

    begin: float
    end: float


def completed(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """The answer with times, places, and None in place of costs that are unknown."""
    span = span_of(window)
    stragglers = _with_times(diagnosis.stragglers, window, span)
    places = Places(window.job)
    left_out = dict(diagnosis.left_out)
    blamed = {"stragglers": [each.ranks for each in stragglers]}
    blamed["causes"] = [each.ranks for each in diagnosis.causes]
    for name, found in blamed.items():
        left_out |= {
            f"{name}[{position}].places": len(ranks) - MAX_PLACES
            for position, ranks in enumerate(found)
            if len(ranks) > MAX_PLACES
        }
    since, until = _span_of_trouble(diagnosis, stragglers)
    return diagnosis.model_copy(
        update={
            "since": since,
            "until": until,
            "window": span,
            "slowdown": _slowdown(diagnosis, window, since),
            "unexplained_seconds_per_step": None
            if _is_unpriced(diagnosis)
            else diagnosis.unexplained_seconds_per_step,
            "stragglers": [each.model_copy(update={"places": places.of(each.ranks)}) for each in stragglers],
            "causes": [
                each.model_copy(update={"places": places.of(each.ranks)}) for each in diagnosis.causes
            ],
            "left_out": left_out,
        }
    )


def span_of(window: Window) -> WindowSpan:
    """The span of a job that a window shows."""
    job, steps = window.job, window.steps
    bounds = pc.min_max(steps.column("step")).as_py() if steps.num_rows else {"min": None, "max": None}
    return WindowSpan(
        start=utc(job.start),
        end=utc(job.end),
        first_step=bounds["min"],
        last_step=bounds["max"],
        world_size=job.world_size,
        nodes=len(job.topology.node_names),
    )


def utc(moment: float | None) -> datetime | None:
    """Unix seconds as a time; None for none, and for numbers that are no calendar time."""
    if moment is None or not np.isfinite(moment):
        return None
    try:
        return datetime.fromtimestamp(round(moment, 3), UTC)
    except (OverflowError, OSError, ValueError):
        return None


class Places:
    """Places of a job's ranks."""

    def __init__(self, job: Job) -> None:
        self._topology = job.topology
        self._listed: Mapping[int, RankPlace] = {each.rank: each for each in job.ranks or ()}

    def of(self, ranks: Sequence[int]) -> list[Place]:
        """Places of the first `MAX_PLACES` of these ranks."""
        return [self._of(rank) for rank in ranks[:MAX_PLACES]]

    def _of(self, rank: int) -> Place:
        topology, listed = self._topology, self._listed.get(rank)
        node = int(topology.node[rank])
        return Place(
            rank=rank,
            node=topology.node_names[node] if node >= 0 else None,
            gpu=None if listed is None else listed.gpu,
            pci_address=None if listed is None else listed.pci_address,
            nic=None if listed is None else listed.nic,
            stage=int(topology.stage[rank]) if topology.n_stages > 1 else None,
            pod=None if listed is None else listed.pod,
            namespace=None if listed is None else listed.namespace,
        )


def _with_times(stragglers: Sequence[Straggler], window: Window, span: WindowSpan) -> list[Straggler]:
    """The stragglers with the times of their first and last step."""
    bounds = [step for each in stragglers for step in (each.first_step, each.last_step) if step is not None]
    if not bounds or span.last_step is None:
        return list(stragglers)
    moments = _moments(window, bounds)
    return [each.model_copy(update=_times(each, moments, window, span.last_step)) for each in stragglers]


def _times(
    straggler: Straggler, moments: Mapping[int, _Moments], window: Window, last_step: int
) -> dict[str, datetime | None]:
    first, last = straggler.first_step, straggler.last_step
    begun = moments.get(first) if first is not None else None
    ended = moments.get(last) if last is not None and last < last_step - MAX_STEPS_AFTER else None
    # The first step of a stopped rank is the last one that it finished.
    since = None if begun is None else begun.end if last is None else begun.begin
    return {
        "since": _within(since, window.job) or straggler.since,
        "until": _within(None if ended is None else ended.end, window.job),
    }


def _within(moment: float | None, job: Job) -> datetime | None:
    """A moment by the ranks' clocks, which may differ from the window's, as a time in the window."""
    return None if moment is None or not np.isfinite(moment) else utc(min(max(moment, job.start), job.end))


def _moments(window: Window, steps: Iterable[int]) -> dict[int, _Moments]:
    """Begin and end of some steps."""
    wanted = pa.array(sorted(set(steps)), pa.int64())
    rows = window.steps.filter(pc.is_in(window.steps.column("step"), value_set=wanted))
    number = rows.column("step").to_numpy()
    begin = rows.column("start_time").to_numpy()
    duration = np.nan_to_num(rows.column("step_seconds").to_numpy())
    found = {}
    for step in np.unique(number).tolist():
        here = (number == step) & np.isfinite(begin)
        if here.any():
            found[step] = _Moments(
                float(np.median(begin[here])), float(np.median(begin[here] + duration[here]))
            )
    return found


def _span_of_trouble(
    diagnosis: Diagnosis, stragglers: Sequence[Straggler]
) -> tuple[datetime | None, datetime | None]:
    """When the stragglers of the answer's failure mode began, and when the last of them was over."""
    if diagnosis.failure_mode == "fail_stop":
        stopped = [each.since for each in stragglers if each.last_step is None and each.since]
        return min(stopped, default=None), None
    began = [each.since for each in stragglers if each.since]
    over = [each.until for each in stragglers]
    ended = [each for each in over if each is not None]
    return min(began, default=None), max(ended) if ended and len(ended) == len(over) else None


def _is_unpriced(diagnosis: Diagnosis) -> bool:
    slowdown = diagnosis.slowdown
    return cost_is_unknown(
        steps_used=diagnosis.quality.steps_used,
        seconds=slowdown.seconds_per_step,
        ratio=slowdown.ratio,
        versus_own_past=slowdown.versus_own_past,
        abstained=diagnosis.abstained,
        priced=[not each.without_price for each in diagnosis.causes if not each.stops_the_job],
    )


def _slowdown(diagnosis: Diagnosis, window: Window, since: datetime | None) -> Slowdown:
    """The slowdown without unknown costs, and with the hours in which a stopped job was idle."""
    slowdown = diagnosis.slowdown
    if _is_unpriced(diagnosis):
        slowdown = slowdown.model_copy(update=dict.fromkeys(COSTS))
    if diagnosis.failure_mode != "fail_stop" or since is None:
        return slowdown
    idle = max(window.job.end - since.timestamp(), 0.0) * window.job.world_size / 3600
    lost = (slowdown.gpu_hours_lost or 0.0) + idle
    return slowdown.model_copy(update={"gpu_hours_idle": idle, "gpu_hours_lost": lost})
