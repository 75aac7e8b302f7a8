"""Windows to state laws about, ways to rewrite them, and what it means that two answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rca.diagnosis import Diagnosis
from rca.window import Window

#: A diagnosis takes tens of milliseconds, so a handful of examples is what a law may cost.
few = settings(
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PHASES = ("data_loading_seconds", "host_to_device_seconds", "forward_seconds", "backward_seconds")
STRETCHES = {"always": slice(None), "a while": slice(14, 30), "from then on": slice(20, None)}

#: Arguments of `build_window` for jobs that are healthy, have one late rank, or a late node.
jobs = st.fixed_dictionaries(
    {
        "n_ranks": st.sampled_from([4, 8, 12]),
        "late": st.sampled_from([{}, {1: 0.04}, {3: 0.015}, {2: 0.03, 3: 0.03}, {0: 0.03, 3: 0.05}]),
        "phase": st.sampled_from(PHASES),
        "steps": st.sampled_from(list(STRETCHES.values())),
        "seed": st.integers(0, 20),
    }
)


def rewritten(table: pa.Table, name: str, values: object) -> pa.Table:
    """The table with one column replaced."""
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


def relabelled(window: Window, new: Mapping[int, int]) -> Window:
    """Rank r is called new[r] everywhere; its rows and its node stay the same."""
    job = window.job.model_dump()
    for place in job["ranks"] or ():
        place["rank"] = new[place["rank"]]

    def table(one: pa.Table) -> pa.Table:
        ranks = [None if rank is None else new[rank] for rank in one["rank"].to_pylist()]
        return rewritten(one, "rank", ranks)

    return Window.from_tables(job, table(window.steps), table(window.metrics), table(window.events))


def retimed(window: Window, moment: Callable[[np.ndarray], np.ndarray], factor: float = 1.0) -> Window:
    """Every moment of the window mapped, every duration multiplied by the factor."""
    steps = rewritten(window.steps, "start_time", moment(window.steps["start_time"].to_numpy()))
    for name in steps.column_names:
        if name.endswith("_seconds"):
            steps = rewritten(steps, name, steps[name].to_numpy() * factor)
    tables = [
        rewritten(table, "time", moment(table["time"].to_numpy()))
        for table in (window.metrics, window.events)
    ]
    start, end = moment(np.array([window.job.start, window.job.end]))
    job = window.job.model_copy(update={"start": float(start), "end": float(end)})
    return Window.from_tables(job, steps, *tables)


def reordered(window: Window, seed: int) -> Window:
    """The rows of all tables in another order."""
    rng = np.random.default_rng(seed)
    tables = [
        table.take(rng.permutation(table.num_rows)) for table in (window.steps, window.metrics, window.events)
    ]
    return Window.from_tables(window.job, *tables)


def named(diagnosis: Diagnosis, rank: Callable[[int], int] = int) -> set[tuple[str, tuple[int, ...]]]:
    """Scope and ranks of the stragglers, ranks renamed."""
    return {(one.scope, tuple(sorted(map(rank, one.ranks)))) for one in diagnosis.stragglers}


def priced(
    diagnosis: Diagnosis, rank: Callable[[int], int] = int
) -> dict[tuple[str, tuple[int, ...]], float]:
    """Seconds per step of every cause that has a cost, and 0 of the others, ranks renamed."""
    return {
        (one.cause, tuple(sorted(map(rank, one.ranks)))): one.seconds_per_step or 0.0
        for one in diagnosis.causes
    }


def assert_same(
    one: Diagnosis,
    other: Diagnosis,
    *,
    rank: Callable[[int], int] = int,
    factor: float = 1.0,
    rel: float = 1e-3,
) -> None:
    """The second answer is the first, ranks renamed and seconds multiplied."""
    assert other.failure_mode == one.failure_mode
    assert other.failure_mode_probability == pytest.approx(one.failure_mode_probability, abs=1e-3)
    assert named(other) == named(one, rank)
    assert (other.slowdown.seconds_per_step is None) == (one.slowdown.seconds_per_step is None)
    lost, other_lost = (each.slowdown.seconds_per_step or 0.0 for each in (one, other))
    assert other_lost == pytest.approx(lost * factor, rel=rel, abs=1e-9 * factor)
    expected = {key: seconds * factor for key, seconds in priced(one, rank).items()}
    smallest = 1e-3 * factor * max([lost, 1e-6])
    assert priced(other) == pytest.approx(expected, rel=rel, abs=smallest)
