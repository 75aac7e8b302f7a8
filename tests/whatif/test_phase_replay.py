"""The replay of phases: step time as a max-plus function of the ranks' own work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.job import Job
from rca.window.times.phases import PhaseArrays


def job_of(world_size: int, hints: dict[str, Any] | None = None, **sizes: int) -> Job:
    parallelism: dict[str, Any] = sizes or {"data": world_size}
    return Job.model_validate(
        {
            "job_id": "job",
            "world_size": world_size,
            "parallelism": parallelism,
            "start": 0.0,
            "end": 1.0,
            "hints": hints or {},
        }
    )


def phases_of(**seconds: FloatArray) -> PhaseArrays:
    shape = next(iter(seconds.values())).shape
    return PhaseArrays(
        steps=np.arange(shape[1]),
        present=np.ones(shape, dtype=bool),
        start_time=np.zeros(shape),
        seconds={f"{name}_seconds": values for name, values in seconds.items()},
        load={},
    )


def synchronous(own: FloatArray, transfer: float = 0.1) -> dict[str, FloatArray]:
    """Phases of a data-parallel job in which all ranks leave every step together."""
    wait = own.max(axis=0) - own
    moved = np.full(own.shape, transfer)
    return {
        "forward": 0.4 * own,
        "backward": 0.5 * own,
        "communication_wait": wait,
        "communication_transfer": moved,
        "step": own + wait + moved,
    }


OWN = arrays(np.float64, (4, 3), elements=st.floats(0.1, 2.0))


@given(OWN)
def test_split_communication_reproduces_the_measured_steps(own: FloatArray) -> None:
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job_of(4))
    assert replay.fidelity < 1e-9
    np.testing.assert_allclose(replay.own, own)
    np.testing.assert_allclose(replay.step_seconds(), own.max(axis=0) + 0.1)


@given(OWN)
def test_unsplit_communication_gives_the_same_replay(own: FloatArray) -> None:
    split = synchronous(own)
    unsplit = split | {"communication": split["communication_wait"] + split["communication_transfer"]}
    del unsplit["communication_wait"], unsplit["communication_transfer"]
    replay = PhaseReplay.from_arrays(phases_of(**unsplit), job_of(4))
    np.testing.assert_allclose(replay.own, own)
    np.testing.assert_allclose(replay.transfer, 0.1)


@given(OWN)
def test_phases_without_communication_leave_transfer_to_the_residual(own: FloatArray) -> None:
    phases = synchronous(own)
    only_work = {name: phases[name] for name in ("forward", "backward", "step")}
    replay = PhaseReplay.from_arrays(phases_of(**only_work), job_of(4))
    assert replay.fidelity < 1e-9
    np.testing.assert_allclose(replay.transfer, 0.1 + 0.1 * own.max(axis=0))


def step_seconds_of(replay: PhaseReplay, own: FloatArray) -> FloatArray:
    """Step times for other own work, with the transfer as measured."""
    return replay.evaluate(own, replay.serial, replay.transfer)


def test_only_whole_steps_give_a_note() -> None:
    step = np.array([[1.0, 2.0], [1.0, 2.5]])
    replay = PhaseReplay.from_arrays(phases_of(step=step), job_of(2))
    assert not replay.informative
    assert replay.notes
    np.testing.assert_allclose(replay.step_seconds({"forward_seconds": step}), [1.0, 2.25])


def test_a_straggler_costs_what_the_others_wait_for() -> None:
    own = np.full((4, 5), 1.0)
    own[2] = 1.5
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job_of(4))
    faster = np.full((4, 5), np.nan)
    faster[2] = 0.5 * 1.0
    np.testing.assert_allclose(replay.step_seconds({"backward_seconds": faster}), 1.5 - 0.25 + 0.1)


def test_absent_ranks_leave_the_maximum_and_unfinished_steps_are_nan() -> None:
    own = np.array([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]])
    phases = synchronous(own)
    phases["step"][1, 1] = np.nan
    phases["step"][:, 2] = np.nan
    replay = PhaseReplay.from_arrays(phases_of(**phases), job_of(2))
    np.testing.assert_allclose(replay.step_seconds(), [3.1, 1.1, np.nan])


def test_waiting_cannot_be_replaced() -> None:
    own = np.ones((2, 2))
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job_of(2))
    with pytest.raises(InvalidInput, match="result of the replay"):
        replay.step_seconds({"communication_wait_seconds": own})


def test_shorter_transfers_shorten_the_step() -> None:
    own = np.ones((2, 2))
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job_of(2))
    new = np.full((2, 2), 0.04)
    np.testing.assert_allclose(replay.step_seconds({"communication_transfer_seconds": new}), 1.04)


def one_f_one_b(work: FloatArray, microbatches: int) -> float:
    """Brute force: forward of every microbatch down the stages (backward mirrors it)."""
    per = work / microbatches
    end = np.zeros((work.size, microbatches))
    for microbatch in range(microbatches):
        for stage in range(work.size):
            ready = max(
                end[stage - 1, microbatch] if stage else 0.0,
                end[stage, microbatch - 1] if microbatch else 0.0,
            )
            end[stage, microbatch] = ready + per[stage]
    return float(end[-1, -1])


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_pipelines_take_the_one_f_one_b_time(microbatches: int) -> None:
    work = np.array([1.0, 1.3, 0.8])
    whole = one_f_one_b(work, microbatches) + 0.1
    own = np.tile(work[:, None], (1, 6))
    wait = whole - 0.1 - own
    phases = {
        "communication_wait": wait,
        "communication_transfer": np.full(own.shape, 0.1),
        "step": np.full(own.shape, whole),
    }
    for hints in ({"microbatches": microbatches}, {}):
        replay = PhaseReplay.from_arrays(phases_of(**phases), job_of(3, hints, pipeline=3))
        assert replay.fidelity < 1e-9
        balanced = step_seconds_of(replay, np.full(own.shape, work.mean()))
        expected = one_f_one_b(np.full(3, work.mean()), microbatches) + 0.1
        np.testing.assert_allclose(balanced, expected)


def test_contradicting_microbatches_are_refitted_with_a_note() -> None:
    own = np.ones((4, 5))
    whole = one_f_one_b(np.ones(4), 2)
    phases = {"communication_wait": whole - own, "step": np.full(own.shape, whole)}
    replay = PhaseReplay.from_arrays(phases_of(**phases), job_of(4, {"microbatches": 64}, pipeline=4))
    assert replay.fidelity < 1e-9
    assert any("contradict" in note for note in replay.notes)


def test_tensor_ranks_wait_for_each_other_inside_a_stage() -> None:
    own = np.ones((8, 2))
    own[1] = 2.0
    sizes = {"tensor": 2, "data": 2, "pipeline": 2}
    phases = synchronous(own)
    replay = PhaseReplay.from_arrays(phases_of(**phases), job_of(8, {"microbatches": 4}, **sizes))
    cured = step_seconds_of(replay, np.ones((8, 2)))
    np.testing.assert_allclose(cured, 1.0 + replay.bubble + replay.transfer)


@settings(max_examples=25)
@given(arrays(np.float64, (3, 8, 4), elements=st.floats(0.0, 5.0)), st.permutations(range(4)))
def test_batches_equal_one_by_one_and_relabelled_data_ranks_change_nothing(
    scenarios: FloatArray, order: list[int]
) -> None:
    own = np.linspace(0.5, 1.5, 32).reshape(8, 4)
    job = job_of(8, {"microbatches": 4}, data=4, pipeline=2)
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job)
    batch = step_seconds_of(replay, scenarios)
    np.testing.assert_array_equal(batch, [step_seconds_of(replay, one) for one in scenarios])
    relabelled = np.concatenate([scenarios[:, order], scenarios[:, [4 + rank for rank in order]]], axis=1)
    np.testing.assert_array_equal(batch, step_seconds_of(replay, relabelled))


@given(OWN, st.integers(0, 3), st.floats(0.0, 1.0))
def test_shortening_a_phase_never_lengthens_a_step(own: FloatArray, rank: int, factor: float) -> None:
    replay = PhaseReplay.from_arrays(phases_of(**synchronous(own)), job_of(4, None, data=2, pipeline=2))
    shorter = np.full(own.shape, np.nan)
    shorter[rank] = 0.5 * own[rank] * factor
    assert (replay.step_seconds({"backward_seconds": shorter}) <= replay.step_seconds() + 1e-12).all()
