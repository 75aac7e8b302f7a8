"""Time in no phase is work without a timer if the others wait for the rank within a phase."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.window.job import Job, Parallelism, Topology
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.own_work import UNTIMED, own_work
from rca.window.times.phases import PhaseArrays
from tests.for_each import for_each

STEPS, STEP = 30, 1.0
FORWARD, BACKWARD, OPTIMIZER, LOADING = (
    f"{name}_seconds" for name in ("forward", "backward", "optimizer", "data_loading")
)
LATE, SECONDS, UNEVEN, FIRST = 2, 0.2, 0.004, 10


def topology(stages: int = 1) -> Topology:
    parallelism = Parallelism(data=8 // stages, pipeline=stages)
    return Job(job_id="j", world_size=8, parallelism=parallelism, start=0.0, end=1e3).topology


def phases(seconds: Mapping[str, FloatArray | float]) -> PhaseArrays:
    """Eight ranks that begin and end every step together, with the phases given."""
    shape = 8, STEPS
    start = np.tile(np.arange(STEPS, dtype=float), (8, 1))
    held = {name: np.broadcast_to(values, shape).copy() for name, values in seconds.items()}
    held["step_seconds"] = np.full(shape, STEP)
    return PhaseArrays(np.arange(STEPS), np.ones(shape, dtype=bool), start, held, {})


def waited_for(within_forward: float = 1.0, *, ranks: list[int] | None = None) -> PhaseArrays:
    """In later steps the late rank copies untimed for `SECONDS`; the others wait in forward and backward."""
    forward, backward = np.full((8, STEPS), 0.2), np.full((8, STEPS), 0.5)
    others = np.setdiff1d(np.arange(8), [LATE] if ranks is None else ranks)
    forward[others, FIRST:] += within_forward * SECONDS
    backward[others, FIRST:] += (1.0 - within_forward) * SECONDS
    # Who is a little slower in the forward waits less in the backward: they end it together.
    uneven = np.random.default_rng(1).uniform(0, UNEVEN, (8, STEPS))
    forward, backward = forward + uneven, backward - uneven
    return phases({FORWARD: forward, BACKWARD: backward, OPTIMIZER: 0.05})


@pytest.mark.parametrize("within_forward", [1.0, 0.7, 0.0], ids=["forward", "mostly forward", "backward"])
def test_untimed_time_of_the_late_rank_is_work(within_forward: float) -> None:
    corrected = without_hidden_waits(waited_for(within_forward), topology())
    assert np.allclose(corrected.seconds[FORWARD], 0.2, atol=2 * UNEVEN)
    assert np.allclose(corrected.seconds[BACKWARD], 0.5, atol=2 * UNEVEN)
    own = own_work(corrected, topology().stage).own
    assert np.allclose(own[LATE, FIRST:], 0.75 + SECONDS, atol=2 * UNEVEN)
    assert np.allclose(own[LATE, :FIRST], 0.75, atol=2 * UNEVEN)
    assert np.allclose(np.delete(own, LATE, axis=0), 0.75, atol=2 * UNEVEN)


def test_phases_without_waiting_are_unchanged() -> None:
    given = waited_for()
    before = {name: values.copy() for name, values in given.seconds.items()}
    without_hidden_waits(given, topology())
    assert given.seconds.keys() == before.keys()
    assert all(np.array_equal(given.seconds[name], before[name]) for name in before)


@for_each(
    ("forward", "backward", "optimizer"),
    [(0.25, 0.25, 0.25), (0.5, 0.0, 0.0), (0.0, 0.3, 0.0), (0.1, 0.3, 0.0), (0.0, 0.0, 0.8)],
    ids=["everything", "forward", "backward", "backward mostly", "host"],
)
@for_each("first", [0, FIRST], ids=["always", "later"])
def test_a_faster_rank_waits_in_no_phase(
    forward: float, backward: float, optimizer: float, first: int
) -> None:
    """Ranks are uneven in every phase, and no rank waits in one."""
    rng = np.random.default_rng(2)
    held = {
        FORWARD: 0.2 * rng.normal(1, 0.01, (8, STEPS)),
        BACKWARD: 0.5 * rng.normal(1, 0.01, (8, STEPS)),
        OPTIMIZER: 0.1 * rng.normal(1, 0.01, (8, STEPS)),
    }
    for name, share in zip(held, (forward, backward, optimizer), strict=True):
        held[name][LATE, first:] *= 1.0 - share
    given = phases(held)
    assert without_hidden_waits(given, topology()) is given


def test_the_fastest_of_uneven_ranks_has_no_untimed_work() -> None:
    rng = np.random.default_rng(3)
    given = phases({FORWARD: 0.4 * rng.normal(1, 0.05, (8, STEPS)), BACKWARD: 0.5})
    assert without_hidden_waits(given, topology()) is given


def test_ranks_without_timers_stay_unknown() -> None:
    given = waited_for()
    for name in (FORWARD, BACKWARD, OPTIMIZER):
        given.seconds[name][6:] = np.nan
    own = own_work(without_hidden_waits(given, topology()), topology().stage).own
    assert np.isnan(own[6:]).all()
    assert own[LATE, FIRST:].mean() == pytest.approx(0.95, abs=2 * UNEVEN)


def test_half_of_the_ranks_are_not_few() -> None:
    given = waited_for(ranks=[0, 1, 2, 3])
    assert without_hidden_waits(given, topology()) is given
    assert UNTIMED in without_hidden_waits(waited_for(ranks=[0, 1, 2]), topology()).seconds


def test_a_few_steps_tell_nothing() -> None:
    given = waited_for()
    for name in (FORWARD, BACKWARD):
        given.seconds[name][:, FIRST + 5 :] = given.seconds[name][LATE, FIRST + 5 :]
    assert without_hidden_waits(given, topology()) is given


@pytest.mark.parametrize("timed", ["communication_seconds", "communication_wait_seconds"])
def test_with_a_timed_exchange_waiting_is_known(timed: str) -> None:
    given = waited_for()
    corrected = phases({**given.seconds, timed: 0.01})
    cleared = without_hidden_waits(corrected, topology())
    assert UNTIMED not in cleared.seconds


def test_time_in_no_phase_of_a_pipeline_is_its_bubbles() -> None:
    assert UNTIMED not in without_hidden_waits(waited_for(), topology(stages=2)).seconds


@pytest.mark.parametrize("untimed", [FORWARD, BACKWARD])
def test_who_computes_untimed_shows_nothing(untimed: str) -> None:
    given = waited_for(0.0 if untimed == FORWARD else 1.0)
    kept = {name: values for name, values in given.seconds.items() if name != untimed}
    assert UNTIMED not in without_hidden_waits(phases(kept), topology()).seconds


def test_a_rank_without_a_timer_of_the_others_phases_is_not_waited_for() -> None:
    given = waited_for(ranks=[])
    given.seconds[BACKWARD][LATE] = np.nan
    assert UNTIMED not in without_hidden_waits(given, topology()).seconds


def test_two_that_are_late_by_different_times_wait_for_the_later_one() -> None:
    forward = np.full((8, STEPS), 0.2)
    forward[:, FIRST:] += SECONDS
    forward[LATE, FIRST:], forward[5, FIRST:] = 0.2, 0.2 + SECONDS / 2
    corrected = without_hidden_waits(phases({FORWARD: forward, BACKWARD: 0.5, LOADING: 0.0}), topology())
    own = own_work(corrected, topology().stage).own[:, FIRST]
    assert own[[0, LATE, 5]] == pytest.approx([0.7, 0.7 + SECONDS, 0.7 + SECONDS / 2])


def test_what_is_not_timed_in_every_step_is_nothing_in_the_others() -> None:
    given = waited_for()
    occasional = np.full((8, STEPS), np.nan)
    occasional[:, ::7] = 0.001
    corrected = phases({**given.seconds, "gc_seconds": occasional})
    assert own_work(without_hidden_waits(corrected, topology()), topology().stage).own[
        LATE, FIRST:
    ].mean() == pytest.approx(0.95, abs=0.01)


def test_who_waits_partly_in_two_phases_has_waited_once() -> None:
    corrected = without_hidden_waits(waited_for(0.7), topology())
    given = waited_for(0.7)
    waited = sum(given.seconds[name] - corrected.seconds[name] for name in (FORWARD, BACKWARD))
    assert np.delete(waited, LATE, axis=0)[:, FIRST:] == pytest.approx(SECONDS, abs=2 * UNEVEN)


def test_a_rank_without_reports_hides_no_other() -> None:
    given = waited_for()
    for name in (FORWARD, BACKWARD, OPTIMIZER, "step_seconds"):
        given.seconds[name][0] = np.nan
    own = own_work(without_hidden_waits(given, topology()), topology().stage).own
    assert own[LATE, FIRST:].mean() == pytest.approx(0.95, abs=2 * UNEVEN)


def test_waiting_in_an_optimizer_that_all_ranks_end_together() -> None:
    """Timers that see launches: the backward is uneven, and the optimizer waits for the device."""
    uneven = np.random.default_rng(4).uniform(0, 0.01, (8, STEPS))
    optimizer = 0.3 - uneven
    optimizer[np.arange(8) != LATE, FIRST:] += SECONDS
    given = phases({FORWARD: 0.1, BACKWARD: 0.1 + uneven, OPTIMIZER: optimizer})
    corrected = without_hidden_waits(given, topology())
    assert np.delete(corrected.seconds[OPTIMIZER], LATE, axis=0) == pytest.approx(0.3, abs=0.02)


def test_who_is_waited_for_now_and_then_is_seen_by_the_long_waits() -> None:
    """In most steps what ranks do untimed is of no account, and says nothing of where they meet."""
    given = waited_for(0.0, ranks=list(range(8)))
    given.seconds[FORWARD][np.arange(8) != LATE, ::3] += SECONDS
    given.seconds[BACKWARD][np.arange(8) != 4, 1::3] += 0.03
    corrected = without_hidden_waits(given, topology())
    assert corrected.seconds[UNTIMED][LATE, ::3] == pytest.approx(SECONDS, abs=2 * UNEVEN)
