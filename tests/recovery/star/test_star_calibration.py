"""Prices corrected by the first steps of each mode, and by what the server's machine can take."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.calibration import CalibratedChoice
from rca.runtime.star.capacity import TaskLoad, max_reports
from rca.runtime.star.grouping import Grouping, Groups, SeenTimes, XOrder
from rca.runtime.star.modes import choose, synchronous, x_order
from rca.runtime.star.price import UpdateProgress
from tests.for_each import for_each

NAN = float("nan")
#: Rank 0 is the server.
SLOW = np.array([NAN, 0.1, 0.1, 0.1, 0.4])
CALM = np.array([NAN, 0.1, 0.1, 0.1, 0.1])
#: The last worker is as fast as the others in most steps.
PAUSES = np.array([[NAN] * 8, *[[0.1] * 8] * 3, [0.1, 0.1, 0.1, 0.6, 0.1, 0.1, 0.6, 0.1]])


class Job:
    """A server whose updates take as long as the test says."""

    def __init__(self, **settings: float) -> None:
        self.at, self.updates, self.reports = 0.0, 0, 0
        self.choose = CalibratedChoice(16, 640.0, every=2, clock=lambda: self.at, **settings)

    def run(self, usual: np.ndarray, reports_per_second: float) -> Grouping | None:
        """Eight reports, of four workers twice."""
        self.at += 8 / reports_per_second
        self.updates += 2
        self.reports += 8
        seen = SeenTimes(usual.reshape(5, -1), report_seconds=0.001)
        return self.choose(self.updates, self.reports, seen)


def test_a_mode_that_is_slower_than_its_price_is_left() -> None:
    job = Job()
    first = job.run(SLOW, 10.0)
    assert first not in (None, XOrder(4))
    expected = job.choose.mode
    # As expected: it stays.
    assert job.run(SLOW, expected.reports_per_second) == first
    # A third of the reports, as on a busy machine: the others look better.
    assert job.run(SLOW, expected.reports_per_second / 3) != first


def test_a_common_error_of_all_prices_changes_no_choice() -> None:
    exact, low = Job(), Job()
    assert exact.run(SLOW, 10.0) == low.run(SLOW, 8.0)
    reports = exact.choose.mode.reports_per_second
    assert exact.run(SLOW, reports) == low.run(SLOW, 0.8 * reports)
    assert low.choose.seconds(low.choose.mode) == pytest.approx(
        1.25 * exact.choose.seconds(exact.choose.mode)
    )


def test_training_is_synchronous_again_when_no_worker_straggles() -> None:
    job = Job()
    assert job.run(SLOW, 10.0) != XOrder(4)
    assert job.run(CALM, 30.0) == XOrder(4)


@for_each("factor", [2.0, 4.0])
def test_eight_steps_at_speed_are_enough_to_be_synchronous_again(factor: float) -> None:
    steps = np.full((5, 32), 0.1)
    steps[0], steps[4, :24] = NAN, 0.1 * factor
    slow, calm = steps[:, :24], steps
    job = Job()
    assert job.run(slow, 39.0 / factor) != XOrder(4)
    assert job.run(calm, 39.0) == XOrder(4)


def test_a_worker_that_pauses_is_not_waited_for() -> None:
    """Its usual step is that of the others, so that synchronous training looked the cheapest."""
    job = Job()
    assert job.run(PAUSES, 17.0) != XOrder(4)
    assert job.run(CALM, 30.0) == XOrder(4)


def test_a_choice_waits_for_the_first_steps_of_a_mode() -> None:
    job = Job()
    assert job.choose(1, 7, SeenTimes(SLOW[:, None])) is None
    assert job.choose(1, 8, SeenTimes(np.full((5, 1), NAN))) is None


def test_groups_name_ranks() -> None:
    job = Job(learning_rate=0.2)
    found = job.run(np.array([NAN, 0.4, 0.1, 0.1, 0.1]), 10.0)
    assert isinstance(found, Groups | XOrder)
    if isinstance(found, Groups):
        assert sorted(rank for group in found.groups for rank in group) == [1, 2, 3, 4]


def test_a_busy_machine_takes_fewer_reports_than_asynchronous_training_sends() -> None:
    """Two processors, of which other tasks use 1.5; a report takes 50 ms of one."""
    others = [TaskLoad(1.0, 4e7), TaskLoad(0.5, 4e7)]
    report = TaskLoad(0.05, 1e6)
    limit = max_reports(TaskLoad(2.0, 1e8), others, report)
    assert limit == pytest.approx(10.0)
    seconds = np.array([0.1, 0.1, 0.1, 0.4])
    free, busy = (UpdateProgress(seconds, 16, 64.0, max_reports=each) for each in (np.inf, limit))
    assert x_order(free, 1).reports_per_second == pytest.approx(32.5)
    assert x_order(busy, 1).reports_per_second == pytest.approx(10.0)
    # Synchronous training sends ten reports per second, and is not slower.
    assert synchronous(busy).seconds == synchronous(free).seconds
    assert choose(free).kind != "synchronous"
    assert choose(busy).kind == "synchronous"


def test_bandwidth_limits_as_cpu_does() -> None:
    assert max_reports(TaskLoad(8.0, 1e8), [TaskLoad(1.0, 9e7)], TaskLoad(0.01, 1e6)) == pytest.approx(10.0)
    assert max_reports(TaskLoad(1.0, 1e8), [TaskLoad(2.0, 0.0)], TaskLoad(0.01, 1e6)) == 0
    with pytest.raises(InvalidInput, match="makes no update"):
        UpdateProgress(np.ones(2), 1, 1.0, max_reports=0.0)
    with pytest.raises(InvalidInput, match="-1 processors"):
        TaskLoad(-1, 0.0)
    with pytest.raises(InvalidInput, match="in 0 steps"):
        CalibratedChoice(1, 1.0, every=0)
