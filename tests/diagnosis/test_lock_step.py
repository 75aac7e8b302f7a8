"""What a slow rank's tensor mates have above the reference is waiting for it, and no more than that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.diagnosis.excess_time import lock_step_waits
from rca.window.job import Job, Parallelism, Topology

#: Seconds above the reference per rank, of four ranks in two tensor groups, in each of two steps.
FORWARD = np.array([[0.30, 0.0], [0.25, 0.1], [0.20, 0.2], [0.0, -0.1]])
LOADING = np.array([[0.0, 0.0], [0.50, 0.0], [0.0, 0.0], [0.0, 0.0]])


def features(tensor: int) -> Any:
    job = Job.model_validate(
        {
            "format": 1,
            "window_id": "w",
            "job_id": "j",
            "world_size": 4,
            "start": 0.0,
            "end": 1.0,
            "parallelism": Parallelism(tensor=tensor, data=4 // tensor).model_dump(),
        }
    )
    excess = {"forward_seconds": FORWARD, "data_loading_seconds": LOADING}
    comparison = SimpleNamespace(phase_excess=excess, excess=FORWARD + LOADING)
    return SimpleNamespace(topology=Topology.from_job(job), comparison=comparison)


def waits(*ranks: int, tensor: int = 2) -> np.ndarray:
    suspect: Any = SimpleNamespace(component=SimpleNamespace(scope="rank", ranks=ranks))
    return lock_step_waits([suspect] if ranks else [], features(tensor))


def test_mates_are_cleared_of_computing_as_long_as_the_slow_rank() -> None:
    """Rank 1 is the mate of rank 0: .25 are waiting. Its loading is its own."""
    assert waits(0) == pytest.approx(np.array([[0, 0], [0.25, 0], [0, 0], [0, 0]]))


def test_other_groups_are_left_alone() -> None:
    assert not waits(0)[2:].any()
    assert waits(2)[3] == pytest.approx([0.0, 0.0])  # It was never above the reference.


@pytest.mark.parametrize(("ranks", "tensor"), [((), 2), ((0,), 1), ((0, 1), 2)])
def test_without_innocent_mates_there_is_nothing_to_clear(ranks: tuple[int, ...], tensor: int) -> None:
    assert not waits(*ranks, tensor=tensor).any()
