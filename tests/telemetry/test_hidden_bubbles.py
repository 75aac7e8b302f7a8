"""Where bubbles are booked as work, stages seem equally busy, and only their forwards tell them apart."""

from __future__ import annotations

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.telemetry.hidden_bubbles import bubbles_in_work
from rca.telemetry.hidden_waits import without_hidden_waits
from rca.telemetry.job import Job, Parallelism, Topology
from rca.telemetry.phases import PhaseArrays

FORWARD, BACKWARD, OPTIMIZER, WAIT, TRANSFER, STEP = (
    f"{name}_seconds"
    for name in (
        "forward", "backward", "optimizer", "communication_wait", "communication_transfer", "step",
    )
)  # fmt: skip
APART, STEPS = 0.02, 20
#: Two replicas of four stages: ranks 0 and 1 are the first stage.
SHAPE = Parallelism(data=2, pipeline=4)
TOPOLOGY: Topology = Job(
    job_id="j", world_size=8, parallelism=SHAPE, start=0.0, end=1e3
).topology  # fmt: skip


def busy(forward: list[float], ratio: float = 2.0, *, late_optimizer: bool = False) -> dict[str, FloatArray]:
    """Phases of stages with these forwards, each as long at work as the slowest of them."""
    own = np.repeat(np.array(forward), 2)[:, None] * np.ones(STEPS)
    bubble = (1 + ratio) * (own.max(axis=0) - own)
    in_optimizer = 0.25 * bubble if late_optimizer else 0.0 * bubble
    return {FORWARD: own, BACKWARD: ratio * own + bubble - in_optimizer, OPTIMIZER: 0.05 + in_optimizer}


@pytest.mark.parametrize("late_optimizer", [False, True])
def test_what_stages_wait_for_the_one_with_most_to_do_is_no_work(late_optimizer: bool) -> None:
    told = busy([0.2, 0.3, 0.2, 0.2], late_optimizer=late_optimizer)
    found = bubbles_in_work(told, TOPOLOGY, APART)
    waited = np.sum(list(found.values()), axis=0)
    np.testing.assert_allclose(waited[[0, 1, 4, 5, 6, 7]], 0.3, atol=1e-9)
    np.testing.assert_allclose(waited[2:4], 0.0, atol=1e-9)
    if late_optimizer:
        np.testing.assert_allclose(found[OPTIMIZER][0], 0.075)
    else:
        assert OPTIMIZER not in found


def test_stages_with_equal_forwards_wait_for_nobody_that_could_be_told() -> None:
    assert bubbles_in_work(busy([0.2, 0.2, 0.2, 0.2]), TOPOLOGY, APART) == {}


def test_stages_that_are_not_equally_busy_book_their_bubbles_elsewhere() -> None:
    told = busy([0.2, 0.3, 0.2, 0.2])
    told[BACKWARD] = 2 * told[FORWARD]
    assert bubbles_in_work(told, TOPOLOGY, APART) == {}


def test_a_rank_whose_backward_alone_is_slow_keeps_it() -> None:
    """Its replica waits for it within the backward, and every one of it has as much beyond its forward."""
    told = busy([0.2, 0.3, 0.2, 0.2])
    slow = told[BACKWARD] + np.where(np.arange(8) % 2 == 0, 0.4, 0.0)[:, None]
    found = bubbles_in_work(told | {BACKWARD: slow}, TOPOLOGY, APART)
    np.testing.assert_allclose((slow - found[BACKWARD])[2], told[BACKWARD][2] + 0.4)


def test_few_cases_prove_nothing() -> None:
    few = {name: values[:, :2] for name, values in busy([0.2, 0.3, 0.2, 0.2]).items()}
    assert bubbles_in_work(few, TOPOLOGY, APART) == {}
    assert bubbles_in_work(
        {name: values[:, :3] for name, values in busy([0.2, 0.3, 0.2, 0.2]).items()}, TOPOLOGY, APART
    )


@pytest.mark.parametrize("missing", [FORWARD, BACKWARD])
def test_without_a_forward_or_a_backward_nothing_is_told(missing: str) -> None:
    told = busy([0.2, 0.3, 0.2, 0.2])
    del told[missing]
    assert bubbles_in_work(told, TOPOLOGY, APART) == {}


def test_without_a_pipeline_there_are_no_bubbles() -> None:
    flat = Job(
        job_id="j", world_size=8, parallelism=Parallelism(data=8), start=0.0, end=1e3
    ).topology  # fmt: skip
    assert bubbles_in_work(busy([0.2, 0.3, 0.2, 0.2]), flat, APART) == {}


def test_who_times_no_backward_waits_as_his_stage_does() -> None:
    told = busy([0.2, 0.3, 0.2, 0.2])
    told[BACKWARD][4] = np.nan
    found = bubbles_in_work(told, TOPOLOGY, APART)[BACKWARD]
    # Rank 4 waits as rank 5 does: its whole step may be measured, and its wait for the exchange.
    np.testing.assert_allclose(found[[0, 1, 4, 5, 6, 7]], 0.3)
    np.testing.assert_allclose(found[[2, 3]], 0.0, atol=1e-9)


def test_stages_that_are_balanced_by_design_vary_each_by_itself() -> None:
    """Two stages recompute (their backward is three times their forward) and have fewer layers for that."""
    rng = np.random.default_rng(3)
    forward = np.repeat([0.3, 0.3, 0.225, 0.225], 2)[:, None] * rng.normal(1, 0.01, (8, STEPS))
    backward = np.repeat([0.6, 0.6, 0.675, 0.675], 2)[:, None] * rng.normal(1, 0.01, (8, STEPS))
    assert bubbles_in_work({FORWARD: forward, BACKWARD: backward}, TOPOLOGY, APART) == {}
    # The same, but each stage is in its backward until the last one is done.
    ends = (forward + backward).reshape(4, 2, STEPS).max(axis=0)
    together = np.tile(ends, (4, 1)) - forward
    assert bubbles_in_work({FORWARD: forward, BACKWARD: together}, TOPOLOGY, APART)


@pytest.mark.parametrize("forward", [[0.2, 0.23, 0.2, 0.2], [0.9, 0.3, 0.3, 0.3]])
def test_a_little_more_forward_or_a_frozen_stage_proves_nothing(forward: list[float]) -> None:
    """What one stage has more of in its forward, it may have less of in its backward."""
    own = np.repeat(np.array(forward), 2)[:, None] * np.ones(STEPS)
    assert bubbles_in_work({FORWARD: own, BACKWARD: 1.0 - own}, TOPOLOGY, APART) == {}


def test_an_optimizer_that_only_one_rank_times_holds_no_waiting() -> None:
    told = busy([0.2, 0.3, 0.2, 0.2])
    told[OPTIMIZER][1:] = np.nan
    found = bubbles_in_work(told, TOPOLOGY, APART)
    assert OPTIMIZER not in found
    np.testing.assert_allclose(found[BACKWARD][[0, 1, 4, 5, 6, 7]], 0.3)


def test_bubbles_become_waiting_and_nothing_is_lost() -> None:
    told = busy([0.2, 0.3, 0.2, 0.2])
    work = np.sum(list(told.values()), axis=0)
    exchange = np.full(work.shape, 0.1)
    held = told | {WAIT: np.zeros(work.shape), TRANSFER: exchange, STEP: work + exchange}
    start = np.tile(np.arange(STEPS, dtype=float), (8, 1))
    phases = PhaseArrays(np.arange(STEPS), np.ones((8, STEPS), dtype=bool), start, held, {})
    cleared = without_hidden_waits(phases, TOPOLOGY)
    np.testing.assert_allclose(cleared.seconds[WAIT][0], 0.3)
    np.testing.assert_allclose(cleared.seconds[WAIT][2], 0.0, atol=1e-9)
    names = (FORWARD, BACKWARD, OPTIMIZER, WAIT, TRANSFER)
    np.testing.assert_allclose(np.sum([cleared.seconds[name] for name in names], axis=0), held[STEP])
