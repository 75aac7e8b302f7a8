"""Where stages wait for each other within their backward, no own work is known, and health neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rca.arrays import FloatArray
from rca.classify.preconditions import stages_end_together
from rca.diagnosis import diagnose
from rca.window.job import Job, Parallelism, Topology
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

FORWARD, BACKWARD, OPTIMIZER, UNSPLIT, STEP = (
    f"{name}_seconds" for name in ("forward", "backward", "optimizer", "communication", "step")
)
STEPS = 60
#: Two replicas of four stages: ranks 0 and 1 are the first stage.
JOB = Job(job_id="j", world_size=8, parallelism=Parallelism(data=2, pipeline=4), start=0.0, end=1e3)
HEAVY = (0.2, 0.3, 0.2, 0.2)


def noisy(values: FloatArray, seed: int = 3, share: float = 0.01) -> FloatArray:
    """Each of these, of all ranks and steps, a little longer or shorter than usual."""
    rng = np.random.default_rng(seed)
    spread: FloatArray = np.repeat(np.asarray(values), 2)[:, None] * rng.normal(1, share, (8, STEPS))
    return spread


def waiting(forward: FloatArray, ratio: float = 2.0, in_optimizer: float = 0.0) -> dict[str, FloatArray]:
    """Phases of stages that are in their backward, or optimizer, until the last of their replica is done."""
    own = (1 + ratio) * forward
    last = own.reshape(4, 2, STEPS).max(axis=0)
    bubble = np.tile(last, (4, 1)) - own
    return {
        FORWARD: forward,
        BACKWARD: ratio * forward + (1 - in_optimizer) * bubble,
        OPTIMIZER: 0.05 + in_optimizer * bubble,
    }


def found(seconds: dict[str, FloatArray], topology: Topology = JOB.topology) -> bool:
    start = np.tile(np.arange(STEPS, dtype=float), (8, 1))
    phases = PhaseArrays(np.arange(STEPS), np.ones((8, STEPS), dtype=bool), start, seconds, {})
    return stages_end_together(phases, topology, 1.0)


@pytest.mark.parametrize("in_optimizer", [0.0, 0.4])
def test_unequal_stages_that_end_together_wait_at_work(in_optimizer: float) -> None:
    assert found(waiting(noisy(np.array(HEAVY)), in_optimizer=in_optimizer))


def test_stages_with_equal_forwards_are_equal() -> None:
    assert not found(waiting(noisy(np.full(4, 0.2))))


def test_a_little_more_forward_is_no_other_stage() -> None:
    assert not found(waiting(noisy(np.array([0.2, 0.205, 0.2, 0.2]))))


def test_stages_that_wait_elsewhere_are_not_equally_busy() -> None:
    forward = noisy(np.array(HEAVY))
    assert not found({FORWARD: forward, BACKWARD: 2 * forward})


def test_stages_that_are_balanced_by_design_vary_each_by_itself() -> None:
    """Two stages recompute (their backward is three times their forward) and have fewer layers for that."""
    forward, backward = (
        noisy(np.array([0.3, 0.3, 0.225, 0.225])),
        noisy(np.array([0.6, 0.6, 0.675, 0.675]), 4),
    )
    assert not found({FORWARD: forward, BACKWARD: backward})


@pytest.mark.parametrize("missing", [FORWARD, BACKWARD])
def test_without_a_forward_or_a_backward_nothing_is_told(missing: str) -> None:
    seconds = waiting(noisy(np.array(HEAVY)))
    del seconds[missing]
    assert not found(seconds)


def test_without_a_pipeline_there_are_no_stages() -> None:
    flat = Job(job_id="j", world_size=8, parallelism=Parallelism(data=8), start=0.0, end=1e3)
    assert not found(waiting(noisy(np.array(HEAVY))), flat.topology)


def test_few_steps_prove_nothing() -> None:
    seconds = waiting(noisy(np.array(HEAVY)))
    few = {name: np.where(np.arange(STEPS) < 2, values, np.nan) for name, values in seconds.items()}
    assert not found(few)
    more = {name: np.where(np.arange(STEPS) < 8, values, np.nan) for name, values in seconds.items()}
    assert found(more)


def test_a_rank_without_timers_hides_it_of_nobody_else() -> None:
    seconds = waiting(noisy(np.array(HEAVY)))
    seconds[BACKWARD][4] = np.nan
    assert found(seconds)


def window(seconds: dict[str, FloatArray]) -> Window:
    step = sum(seconds.values(), np.zeros((8, STEPS))) + 0.06
    rank, number = np.divmod(np.arange(8 * STEPS), STEPS)
    columns: dict[str, Any] = {
        "rank": rank.astype(np.int32),
        "step": number.astype(np.int64),
        "start_time": 1.7e9 + np.cumsum(np.median(step, axis=0))[number],
        **{name: values.ravel() for name, values in seconds.items()},
        UNSPLIT: np.full(8 * STEPS, 0.06),
        STEP: step.ravel(),
    }
    end = 1.7e9 + float(np.median(step, axis=0).sum()) + 2.0
    job = JOB.model_copy(update={"start": 1.7e9, "end": end})
    return Window.from_tables(job, pa.table(columns))


def test_such_a_job_is_not_healthy_with_certainty() -> None:
    answer = diagnose(window(waiting(noisy(np.array(HEAVY)))))
    assert answer.abstained
    assert answer.abstention_reason is not None
    assert answer.abstention_reason.code == "too_few_ranks"
    assert "own work" in answer.abstention_reason.sentence
    equal = diagnose(window(waiting(noisy(np.full(4, 0.2)))))
    assert equal.abstention_reason is None or equal.abstention_reason.code != "too_few_ranks"
