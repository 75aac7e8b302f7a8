"""Join step times with the exporters of the machines on which the ranks ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidInput, cut
from rca.window.job import Job, RankPlace
from rca.window.node_names import same_nodes
from rca.window.window import Window

#: Least span of exporters beside steps, seconds: a scrape may take a minute.
MIN_SECONDS = 120.0
#: Clocks that began before are no calendar clocks, Unix seconds.
_FIRST_MOMENT = 946_684_800.0


def with_exporters_of(steps: Window, read: Callable[..., Window]) -> Window:
    """A window of steps with the metrics that the job's exporters reported meanwhile.

    Parameters
    ----------
    read : callable
        `read_prometheus` of the job, which takes ``start``, ``end`` and ``steps``.

    Raises
    ------
    InvalidInput
        As `with_exporters`; or if the steps have no calendar time, or the window has no steps.
    SourceError
        As `read_prometheus`.
    """
    job = steps.job
    if not steps.steps.num_rows:
        raise InvalidInput("the window has no steps to join with exporters", hint="give only one of the two")
    if job.start < _FIRST_MOMENT:
        raise InvalidInput(
            "the steps have no calendar time, so exporters cannot be joined",
            hint="give start_time in Unix seconds",
        )
    start = min(job.start, job.end - MIN_SECONDS)
    return with_exporters(steps, read(start=start, end=job.end, steps=False))


def with_exporters(steps: Window, exporters: Window) -> Window:
    """A window of steps with the metrics of the machines.

    Parameters
    ----------
    steps : Window
        Its ranks count.
    exporters : Window
        Of the same job and time, as `read_prometheus` gives it without steps. Its devices get the ranks of
        `steps` where both name nodes. Otherwise both number the ranks alike.

    Raises
    ------
    InvalidInput
        If the windows have no machine in common, or there are more devices than ranks.
    """
    number = _numbers(steps.job, exporters.job)
    places = {number[each.rank]: each for each in exporters.job.ranks or () if each.rank in number}
    size = steps.job.world_size
    if places and max(places) >= size:
        raise InvalidInput(
            f"the steps are of {size} ranks, and exporters report for {max(places) + 1} devices of the job "
            f"{cut(exporters.job.job_id)}",
            hint="name the job whose devices these are with --job, or place its ranks with --labels",
        )
    job = steps.job.model_copy(update={"ranks": _places(steps.job, places)})
    metrics = pa.concat_tables(
        [steps.metrics, _renumbered(exporters.metrics, number)], promote_options="permissive"
    )
    start, end = job.start, job.end
    if exporters.metrics.num_rows:
        time = exporters.metrics.column("time").to_numpy()
        start, end = min(start, float(time.min())), max(end, float(np.nextafter(time.max(), np.inf)))
    tables = {name: getattr(steps, name) for name in ("steps", "events", "ops", "collectives")}
    joined = Window.from_tables(
        job.model_copy(update={"start": start, "end": end}), **tables, metrics=metrics
    )
    notes = dict.fromkeys([*steps.notes, *exporters.notes, *joined.notes])
    return replace(joined, notes=tuple(notes))


def _numbers(own: Job, theirs: Job) -> dict[int, int]:
    """Rank of each device of the exporters in the numbering of the steps."""
    listed = list(theirs.ranks or ())
    mine = [each for each in own.ranks or () if each.node is not None]
    if not mine:
        return {each.rank: each.rank for each in listed}
    nodes = sorted({each.node for each in mine if each.node is not None})
    at = same_nodes([each.node or "" for each in listed], nodes).tolist()
    found: dict[int, int] = {}
    for index, node in enumerate(nodes):
        here = sorted((each for each in mine if each.node == node), key=lambda each: each.rank)
        devices = sorted((each for each, place in zip(listed, at, strict=True) if place == index), key=_order)
        by_gpu = {each.gpu: each.rank for each in here if each.gpu is not None}
        if len(by_gpu) == len(here):
            found |= {each.rank: by_gpu[each.gpu] for each in devices if each.gpu in by_gpu}
        else:
            found |= {each.rank: place.rank for each, place in zip(devices, here, strict=False)}
    if not found:
        shown = cut(", ".join(nodes[:3]))
        raise InvalidInput(
            f"exporters report on none of the machines of the steps ({shown})",
            hint="check --job; the names of machines in steps and metrics have to be the same",
        )
    return found


def _order(place: RankPlace) -> tuple[int, int]:
    return (place.rank if place.gpu is None else place.gpu, place.rank)


def _places(own: Job, places: Mapping[int, RankPlace]) -> tuple[RankPlace, ...] | None:
    """The ranks' own places, completed by those of the exporters."""
    held = {each.rank: each for each in own.ranks or ()}
    found = []
    for rank in sorted({*held, *places}):
        mine, theirs = held.get(rank), places.get(rank)
        known: dict[str, object] = {} if theirs is None else theirs.model_dump(exclude_none=True)
        if mine is not None:
            known |= mine.model_dump(exclude_none=True)
        found.append(RankPlace.model_validate(known | {"rank": rank}))
    return tuple(found) or None


def _renumbered(metrics: pa.Table, number: Mapping[int, int]) -> pa.Table:
    """The samples with other ranks; without those of devices that have none."""
    rank = metrics.column("rank").combine_chunks()
    known = {each: each if each is None else number.get(each, -1) for each in rank.unique().to_pylist()}
    if all(before == after for before, after in known.items()):
        return metrics
    encoded = rank.dictionary_encode()
    changed = pa.array([known[each] for each in encoded.dictionary.to_pylist()], pa.int32()).take(
        encoded.indices
    )
    metrics = metrics.set_column(metrics.column_names.index("rank"), "rank", changed)
    return metrics.filter(pc.fill_null(pc.greater_equal(changed, 0), fill_value=True))
