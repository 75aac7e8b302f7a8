"""Prepend an earlier window of the same job, so that one window shows the change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidInput
from rca.window.job import Topology
from rca.window.resample import equally_often
from rca.window.times.phases import distinct_steps
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

#: As many earlier steps are taken as the window has, and at least these.
MIN_EARLIER_STEPS = 20
#: Step numbers up to here leave room for the numbers before them.
_LARGEST = 2**62


def after_earlier(window: Window, earlier: Window) -> Window:
    """The window after the last steps and samples of an earlier window of its job.

    Nothing is known of the time between the two. These parts of the earlier window are left out:

    - phases and metrics that the window does not have;
    - samples that come more often than in the other window (the denser window is thinned);
    - events and operations.

    Parameters
    ----------
    earlier : Window
        Of the same ranks in the same parallelism. A restarted job may count its steps from 0 again, run on
        other nodes and have another id.

    Returns
    -------
    Window
        The window's steps keep their numbers.

    Raises
    ------
    InvalidInput
        If the two cannot be compared.
    """
    refuse_incomparable(window, earlier)
    clock, n_steps = StepClock.of(earlier), distinct_steps(window.steps.column("step").to_numpy())[0].size
    kept = int(clock.steps[-min(max(n_steps, MIN_EARLIER_STEPS), clock.steps.size)])
    before = clock.between(kept, int(clock.steps[-1]) + 1)
    # A series has one usual interval: after dense samples, sparse ones would count as pauses.
    sampled = equally_often(_of_the_same_names(before.metrics, window.metrics), window.metrics)
    return replace(
        window,
        job=window.job.model_copy(update={"start": before.job.start}),
        steps=_above(_numbered_before(before.steps, window.steps), window.steps),
        metrics=_above(*sampled),
    )


def refuse_incomparable(window: Window, earlier: Window) -> None:
    """Check that an earlier window is of the same ranks and ends before the window begins.

    Raises
    ------
    InvalidInput
        If not.
    """
    if earlier.job.end > window.job.start:
        raise InvalidInput(
            f"the earlier window ends {earlier.job.end - window.job.start:,.6g} s after the window begins",
            hint="give an earlier window that ends by then and in which the job ran normally",
        )
    sizes = earlier.job.world_size, window.job.world_size
    if sizes[0] != sizes[1]:
        raise InvalidInput(
            f"the earlier window has {sizes[0]:,} ranks, the window {sizes[1]:,}",
            hint="give a window of the same job: every rank is compared with its own past",
        )
    if not _alike(earlier.job.topology, window.job.topology):
        raise InvalidInput(
            "the earlier window's ranks have other places in the data, tensor or pipeline dimension",
            hint="give a window of the same job and parallelism: every rank is compared with its own past",
        )


def _alike(one: Topology, other: Topology) -> bool:
    names = ("data_rank", "tensor_rank", "stage")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def _numbered_before(steps: pa.Table, later: pa.Table) -> pa.Table:
    """The steps, renumbered if their numbers are not below the later ones'."""
    number = steps.column("step").to_numpy()
    first, last = pc.min(later.column("step")).as_py(), int(number.max())
    if last < first:
        return steps
    if first - (last - int(number.min())) < -_LARGEST:
        raise InvalidInput("the step numbers of the two windows are too far apart to compare the windows")
    place = steps.column_names.index("step")
    shifted = pa.array(number - (last - first + 1), pa.int64())
    return steps.set_column(place, steps.schema.field(place), shifted)


def _of_the_same_names(metrics: pa.Table, known: pa.Table) -> pa.Table:
    names = pc.unique(known.column("name").cast(pa.string()))
    return metrics.filter(pc.is_in(metrics.column("name").cast(pa.string()), value_set=names))


def _above(rows: pa.Table, table: pa.Table) -> pa.Table:
    """Rows above a table, in the table's columns; NaN, not null, in columns of numbers that the rows lack."""
    shared = rows.select([name for name in table.column_names if name in rows.column_names])
    lacking = [field for field in table.schema if field.name not in shared.column_names]
    for field in lacking:
        absent = pa.nulls(rows.num_rows, field.type)
        if pa.types.is_floating(field.type):
            absent = absent.fill_null(np.nan)
        shared = shared.append_column(field, absent)
    whole = pa.concat_tables([shared.select(table.column_names), table])
    return whole.unify_dictionaries().combine_chunks()
