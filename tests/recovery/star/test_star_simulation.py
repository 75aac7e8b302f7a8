"""Simulated modes against what follows from the times by hand, and against the price."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.arrivals import expected_arrivals, that_may_recur
from rca.runtime.star.grouping import DynamicGroups, Groups, SeenTimes, XOrder, of_mode
from rca.runtime.star.modes import dynamic_groups, static_groups, synchronous, x_order
from rca.runtime.star.price import UpdateProgress
from rca.runtime.star.simulation import SimulatedJob, with_ring, with_server
from rca.runtime.star.usual_step import usual_seconds
from tests.for_each import for_each

TIMES = np.array([0.1, 0.1, 0.1, 0.4])


class Never:
    """A grouping that is never content."""

    def next_update(self, waiting: Sequence[int], alive: Collection[int]) -> Sequence[int]:
        return ()


def job(**changes: Any) -> SimulatedJob:
    return SimulatedJob(TIMES, 16, **({"noise": 64.0, "variation": 0.0} | changes))


def test_synchronous_training_waits_for_the_slowest() -> None:
    for updates in (with_server(job(), XOrder(4), 3.9), with_ring(job(), [], 3.9)):
        assert updates.at == pytest.approx(0.4 * np.arange(1, 11))
        assert (updates.reports == 4).all()
        assert not updates.staleness.any()
        assert updates.seconds_per_progress(job()) == pytest.approx(
            synchronous(UpdateProgress(TIMES, 16, 64.0)).seconds
        )


def test_groups_update_at_their_own_pace() -> None:
    updates = with_server(job(), Groups(((0, 1, 2), (3,))), 4.0)
    assert (updates.reports == 3).sum() == pytest.approx(40, abs=1)
    assert (updates.reports == 1).sum() == 10
    assert updates.staleness[updates.reports == 1].mean() == pytest.approx(4.0, abs=0.5)
    priced = UpdateProgress(TIMES, 16, 64.0).of_groups([[0, 1, 2], [3]])
    assert updates.seconds_per_progress(job()) == pytest.approx(priced, rel=0.05)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_price_of_an_order_is_near_the_simulation(order: int) -> None:
    updates = with_server(job(variation=0.1), XOrder(order), 40.0)
    assert updates.staleness.mean() == pytest.approx(4 / order - 1, abs=0.05)
    priced = x_order(UpdateProgress(TIMES, 16, 64.0), order).seconds
    assert updates.seconds_per_progress(job()) == pytest.approx(priced, rel=0.15)


def varied(variation: float, pause_chance: float) -> np.ndarray:
    """Steps of four workers, which vary; the last one pauses."""
    rng = np.random.default_rng(3)
    sigma = float(np.sqrt(np.log1p(variation**2)))
    steps = 0.1 * rng.lognormal(-(sigma**2) / 2, sigma, (4, 32))
    steps[3] += 0.5 * (rng.random(32) < pause_chance)
    return steps


@for_each(
    ("variation", "pauses", "server"),
    [(0.02, 0.0, 0.001), (0.3, 0.0, 0.001), (0.02, 0.1, 0.001), (0.05, 0.0, 0.004)],
)
def test_the_price_knows_steps_that_vary_pauses_and_the_server(
    variation: float, pauses: float, server: float
) -> None:
    steps = varied(variation, pauses)
    simulated = job(steps=steps, server_seconds=server)
    # A report is two messages.
    progress = UpdateProgress(usual_seconds(steps), 16, 64.0, report_seconds=2 * server, steps=steps)
    modes = [
        synchronous(progress),
        x_order(progress, 1),
        static_groups(progress, 3),
        static_groups(progress, 2),
    ]
    found = [with_server(simulated, of_mode(mode), 20.0).seconds_per_progress(simulated) for mode in modes]
    assert [mode.seconds for mode in modes] == pytest.approx(found, rel=0.12)


def test_workers_that_begin_together_report_when_all_their_steps_say() -> None:
    steps = np.array([[0.1, 0.2, np.nan], [0.1, 0.3, 0.5], [0.4, 0.4, np.nan]])
    drawn = [sorted(each) for each in itertools.product(*(row[np.isfinite(row)].tolist() for row in steps))]
    assert expected_arrivals(steps) == pytest.approx(np.mean(drawn, axis=0))


def test_steps_before_a_worker_changed_its_pace_do_not_count() -> None:
    steps = np.full((2, 20), 0.1)
    steps[0, :12] = 0.4
    kept = that_may_recur(steps)
    assert np.isnan(kept[0, :12]).all()
    assert np.isfinite(kept).sum(axis=1).tolist() == [7, 19]


def test_a_step_that_was_long_once_is_no_habit() -> None:
    steps = np.full((2, 20), 0.1)
    steps[0, 5], steps[1, [3, 9]] = 9.0, 0.6
    assert np.nanmax(that_may_recur(steps), axis=1).tolist() == [0.1, 0.6]


def test_a_busy_server_limits_asynchronous_training() -> None:
    busy = job(server_seconds=0.03)
    updates = with_server(busy, XOrder(1), 30.0)
    # Two messages of each report take 60 ms, and reports would come every 31 ms.
    assert np.diff(updates.at[5:]).mean() == pytest.approx(0.06, rel=0.02)


def test_a_ring_takes_what_its_child_has_ready() -> None:
    updates = with_ring(job(reduce_seconds=0.01), [3], 11.0)
    assert np.diff(updates.at) == pytest.approx(0.11)
    assert set(updates.reports) == {3, 4}
    # A gradient is ready after 0.4 s: in the fourth update, which is used and answered 0.44 s after the last.
    assert (updates.reports == 4).sum() == 25
    assert (updates.weight == 0.75).all()


def test_pauses_make_synchronous_training_slower_than_a_few_reports() -> None:
    paused = SimulatedJob(np.full(4, 0.1), 16, 640.0, pause_chance=0.1, pause_seconds=1.0)
    full = with_server(paused, XOrder(4), 60.0).seconds_per_progress(paused)
    few = with_server(paused, XOrder(1), 60.0).seconds_per_progress(paused)
    assert few < 0.8 * full


def test_a_given_learning_rate_may_make_no_progress() -> None:
    fast = job(learning_rate=1.9, noise=0.0)
    assert np.isfinite(with_server(fast, XOrder(4), 4.0).seconds_per_progress(fast))
    assert np.isinf(with_server(fast, XOrder(1), 4.0).seconds_per_progress(fast))


def test_the_same_seed_gives_the_same_run() -> None:
    varied = job(variation=0.2, pause_chance=0.1, pause_seconds=0.2)
    first, again = (with_server(varied, XOrder(2), 5.0, seed=3) for _ in range(2))
    other = with_server(varied, XOrder(2), 5.0, seed=4)
    assert first.at.tolist() == again.at.tolist()
    assert first.at.tolist() != other.at.tolist()


def test_steps_are_drawn_from_measured_ones() -> None:
    measured = np.array([[0.1, 0.3], [0.1, 0.1]])
    rare = SimulatedJob(np.full(2, 0.1), 16, 64.0, steps=measured)
    assert set(np.diff(with_ring(rare, [], 9.0).at).round(6)) == {0.1, 0.3}
    with pytest.raises(InvalidInput, match="2 workers have steps of 1"):
        SimulatedJob(np.full(2, 0.1), 16, 64.0, steps=measured[:1])


def test_groups_are_complete_when_all_living_members_wait() -> None:
    groups = Groups(((0, 1), (2, 3)))
    assert groups.next_update([0, 2], range(4)) == ()
    assert groups.next_update([0, 2, 3], range(4)) == [2, 3]
    assert groups.next_update([0, 2, 3, 1], range(4)) == [2, 3]
    assert groups.next_update([0], [0, 2, 3]) == [0]
    assert groups.next_update([0, 7], range(8)) == [7]
    assert XOrder(3).next_update([2, 1], [1, 2]) == [2, 1]
    assert XOrder(3).next_update([], []) == ()


def test_dynamic_groups_follow_the_times() -> None:
    choice = DynamicGroups(0.05, every=4)
    assert choice(3, 9, SeenTimes(TIMES[:, None])) is None
    assert choice(4, 9, SeenTimes(np.full((4, 1), np.nan))) is None
    assert choice(4, 9, SeenTimes(TIMES[:, None])) == Groups(((0, 1, 2), (3,)))
    assert choice(8, 9, SeenTimes(np.array([[0.1], [np.nan], [0.4], [0.1]]))) == Groups(((0, 3), (2,)))


def test_a_mode_has_a_grouping() -> None:
    progress = UpdateProgress(TIMES, 16, 64.0)
    assert of_mode(synchronous(progress)) == XOrder(4)
    assert of_mode(x_order(progress, 2)) == XOrder(2)
    assert of_mode(static_groups(progress, 2)) == Groups(((0, 1), (2, 3)))
    assert of_mode(dynamic_groups(progress)) == Groups(((0, 1, 2), (3,)))


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(InvalidInput, match="server seconds is -1"):
        job(server_seconds=-1.0)
    with pytest.raises(InvalidInput, match="no worker"):
        SimulatedJob(np.array([]), 16, 1.0)
    with pytest.raises(InvalidInput, match="children"):
        with_ring(job(), range(4), 1.0)
    with pytest.raises(InvalidInput, match="no update"):
        with_server(job(), Never(), 1.0)
    with pytest.raises(InvalidInput, match="0 reports is none"):
        XOrder(0)
    with pytest.raises(InvalidInput, match="every 0"):
        DynamicGroups(every=0)
