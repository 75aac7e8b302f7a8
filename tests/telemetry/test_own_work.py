"""Own work is compared between ranks, so it is summed alike on ranks that time other things."""

from __future__ import annotations

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.window.times.own_work import own_work
from rca.window.times.phases import PhaseArrays
from tests.for_each import for_each

RANKS, STEPS = 6, 20
WORK = {
    "data_loading_seconds": 0.1,
    "forward_seconds": 0.6,
    "backward_seconds": 1.2,
    "optimizer_seconds": 0.2,
}
EXCHANGE, LATE, BY = "communication_seconds", 4, 0.5


ONE_STAGE = np.zeros(RANKS, dtype=int)


def phases(**untimed: list[int]) -> PhaseArrays:
    """Ranks that wait for one with a late forward; `untimed` are those without a timer of a phase."""
    shape = RANKS, STEPS
    held: dict[str, FloatArray] = {name: np.full(shape, seconds) for name, seconds in WORK.items()}
    held[EXCHANGE] = np.full(shape, 0.3 + BY)
    held["forward_seconds"][LATE] += BY
    held[EXCHANGE][LATE] -= BY
    held["step_seconds"] = np.full(shape, sum(WORK.values()) + 0.3 + BY)
    for name, ranks in untimed.items():
        held[f"{name}_seconds"][ranks] = np.nan
    start = np.tile(np.arange(STEPS, dtype=float), (RANKS, 1))
    return PhaseArrays(np.arange(STEPS), np.ones(shape, dtype=bool), start, held, {})


def late(**untimed: list[int]) -> FloatArray:
    """How much longer than the others' median each rank works, seconds, shape (n_ranks,)."""
    own = own_work(phases(**untimed), ONE_STAGE).own.mean(axis=1)
    found: FloatArray = own - np.median(own)
    return found


@for_each(
    "untimed",
    [
        {},
        {"communication": [1, 4]},
        {"communication": [1, 4], "optimizer": [0, 1]},
        {"communication": [1, 4], "optimizer": [4], "backward": [2, 3, 5]},
        {"communication": [0, 1, 2, 3, 4, 5], "optimizer": [2, 3], "backward": [0]},
    ],
    ids=["all is timed", "the exchange", "and another phase", "each rank its own", "nobody the exchange"],
)
def test_a_rank_is_not_late_for_lack_of_a_timer(untimed: dict[str, list[int]]) -> None:
    assert late(**untimed) == pytest.approx(np.where(np.arange(RANKS) == LATE, BY, 0.0), abs=1e-9)


def test_who_times_nothing_is_not_known() -> None:
    nothing: dict[str, list[int]] = {name.removesuffix("_seconds"): [2] for name in (*WORK, EXCHANGE)}
    assert np.isnan(own_work(phases(**nothing), ONE_STAGE).own[2]).all()


def test_a_step_without_a_value_is_no_phase_without_a_timer() -> None:
    """An unfinished step lacks what the rank had not done, which is not what the others did."""
    given = phases(communication=[0, 1, 2, 3, 4, 5])
    given.seconds["optimizer_seconds"][3, -1] = np.nan
    own = own_work(given, ONE_STAGE).own
    assert own[3, -1] == pytest.approx(own[3, 0] - WORK["optimizer_seconds"])


def test_a_stray_sample_is_no_timer() -> None:
    given = phases(communication=[1], optimizer=[1])
    given.seconds["optimizer_seconds"][1, 3] = WORK["optimizer_seconds"] + BY
    own = own_work(given, ONE_STAGE).own
    np.testing.assert_allclose(own[1], own[0] + np.where(np.arange(STEPS) == 3, BY, 0.0))


def test_a_pause_of_the_others_is_not_that_of_a_rank_without_timer() -> None:
    given = phases(communication=list(range(RANKS)))
    given.seconds["gc_seconds"] = np.where(np.arange(RANKS) == 2, np.nan, BY)[:, None] * np.ones(STEPS)
    own = own_work(given, ONE_STAGE).own.mean(axis=1)
    assert own[0] - own[2] == pytest.approx(BY)


def in_stages(*untimed: int) -> PhaseArrays:
    """Two ranks of a short stage and four of one that computes twice as long; no rank is late."""
    given = phases(communication=list(untimed), backward=list(untimed))
    given.seconds["forward_seconds"][:] = WORK["forward_seconds"]
    for name in ("forward_seconds", "backward_seconds"):
        given.seconds[name][2:] *= 2
    work = sum(given.seconds[name] for name in WORK)
    given.seconds[EXCHANGE][:] = given.seconds["step_seconds"] - work
    return given


@pytest.mark.parametrize("untimed", [0, 5], ids=["the short one", "the long one"])
def test_a_rank_without_a_timer_works_as_long_as_its_own_stage(untimed: int) -> None:
    stage = np.array([0, 0, 1, 1, 1, 1])
    own = own_work(in_stages(untimed), stage).own.mean(axis=1)
    timed = own_work(in_stages(), stage).own.mean(axis=1)
    assert own == pytest.approx(timed)
    assert timed[0] < timed[5]


def test_a_stage_without_a_timed_phase_does_not_get_another_stages() -> None:
    stage = np.array([0, 0, 1, 1, 1, 1])
    own = own_work(in_stages(0, 1), stage).own.mean(axis=1)
    alone = own_work(in_stages(0, 1), np.zeros(RANKS, dtype=int)).own.mean(axis=1)
    assert own[0] < alone[0]


@pytest.mark.parametrize("loaders", [[0], [0, 2, 4]], ids=["one for all", "one of each tensor group"])
def test_who_times_no_input_reads_none_where_few_do(loaders: list[int]) -> None:
    """Their stall is theirs alone: the others wait for them, and are not late for it."""
    others = np.setdiff1d(np.arange(RANKS), loaders)
    given = phases(communication=list(range(RANKS)))
    given.seconds["forward_seconds"][:] = WORK["forward_seconds"]
    given.seconds["data_loading_seconds"][others] = np.nan
    given.seconds["data_loading_seconds"][loaders] += BY
    own = own_work(given, ONE_STAGE).own.mean(axis=1)
    assert own[loaders].min() - own[others].max() == pytest.approx(BY + WORK["data_loading_seconds"])


def test_a_phase_of_all_ranks_counts_for_ranks_without_a_timer() -> None:
    """One rank of each node times the forward, and one of those is late: no other rank looks slow."""
    leaders, everybody = [0, LATE], list(range(RANKS))
    found = late(communication=everybody, forward=[rank for rank in everybody if rank not in leaders])
    assert found.argmax() == LATE
    assert found.min() >= -BY / 2
    assert found[0] == pytest.approx(-BY / 2)
