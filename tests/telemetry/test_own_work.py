"""Own work is compared between ranks, so it is summed alike on ranks that time other things."""

from __future__ import annotations

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.telemetry.own_work import own_work
from rca.telemetry.phases import PhaseArrays

RANKS, STEPS = 6, 20
WORK = {
    "data_loading_seconds": 0.1,
    "forward_seconds": 0.6,
    "backward_seconds": 1.2,
    "optimizer_seconds": 0.2,
}
EXCHANGE, LATE, BY = "communication_seconds", 4, 0.5


def phases(**untimed: list[int]) -> PhaseArrays:
    """Ranks that wait for one whose forward is late; `untimed` are those without a timer of a phase."""
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
    own = own_work(phases(**untimed)).own.mean(axis=1)
    found: FloatArray = own - np.median(own)
    return found


@pytest.mark.parametrize(
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
    assert np.isnan(own_work(phases(**nothing)).own[2]).all()


def test_a_step_without_a_value_is_no_phase_without_a_timer() -> None:
    """An unfinished step lacks what the rank had not done, which is not what the others did."""
    given = phases(communication=[0, 1, 2, 3, 4, 5])
    given.seconds["optimizer_seconds"][3, -1] = np.nan
    own = own_work(given).own
    assert own[3, -1] == pytest.approx(own[3, 0] - WORK["optimizer_seconds"])
