"""Confounder 7: two faults at once; the larger one must not hide the other, nor their sum be one cause's."""

from __future__ import annotations

from itertools import combinations

import pytest
from hand_made import KERNELS, believed, blamed

import rca
from rca.lab.simulation import Fault, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism
from tests.for_each import for_each

FAULTS = {
    "gpu_throttling": Fault(cause="gpu_throttling", ranks=(6,), nodes=(3,)),
    "nic_degradation": Fault(cause="nic_degradation", ranks=(0, 1), nodes=(0,)),
    "cpu_contention": Fault(cause="cpu_contention", ranks=(2, 3), nodes=(1,)),
    "data_loader_stall": Fault(cause="data_loader_stall", ranks=(5,), nodes=(2,)),
}


def job(*faults: Fault, seed: int = 12) -> SimulationScenario:
    acting = [
        fault.model_copy(update={"severity": 0.8, "first_step": 20, "last_step": 50}) for fault in faults
    ]
    return SimulationScenario(
        seed=seed,
        dialect="mixed",
        parallelism=Parallelism(data=8),
        workload=Workload(
            forward_seconds=0.25,
            backward_seconds=0.5,
            transfer_seconds=0.2,
            launch_seconds=0.12,
            gradient_bytes=4e9,
        ),
        faults=tuple(acting),
        telemetry=Telemetry(exporters=tuple(EXPORTERS)),
    )


@for_each("pair", list(combinations(FAULTS, 2)), ids=" and ".join)
def test_two_faults_at_once_are_both_named(pair: tuple[str, str]) -> None:
    diagnosis = rca.diagnose(simulate(job(*(FAULTS[name] for name in pair))).window)
    assert believed(diagnosis) == {(name, FAULTS[name].ranks) for name in pair}


def test_a_congested_link_and_a_hot_gpu_are_priced_apart() -> None:
    """Together they cost as much as both do: one acts before the collective, the other within it."""
    labelled = simulate(job(FAULTS["gpu_throttling"], FAULTS["nic_degradation"]))
    true = {cause["cause"]: cause["seconds_per_step"] for cause in labelled.label["causes"]}
    found = {cause.cause: cause.seconds_per_step for cause in rca.diagnose(labelled.window).causes}
    for name, seconds in true.items():
        assert found[name] == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize("hidden", [0.036, 0.035])
def test_of_two_late_ranks_the_hidden_one_is_named_as_well(make_window, hidden: float) -> None:
    """Repairing rank 5 alone gains few ms: the answer has to name rank 2 now, not after the repair."""
    diagnosis = rca.diagnose(make_window(late={2: hidden, 5: 0.036 if hidden == 0.036 else 0.04}))
    assert blamed(diagnosis) == {2, 5}


def test_two_faults_after_each_other_are_both_named(make_window) -> None:
    first = make_window(n_steps=80, late={2: 0.04}, steps=slice(10, 35), phase=KERNELS)
    second = make_window(n_steps=80, late={5: 0.04}, steps=slice(45, 70), phase="data_loading_seconds")
    assert blamed(rca.diagnose(first)) == {2}
    assert blamed(rca.diagnose(joined(first, second, 40))) == {2, 5}


def joined(first: rca.Window, second: rca.Window, step: int) -> rca.Window:
    """Steps before `step` from the first window, the others from the second, one after the other in time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    early = first.steps.filter(pc.less(first.steps["step"], step))
    late = second.steps.filter(pc.greater_equal(second.steps["step"], step))
    ended = max(
        a + b
        for a, b in zip(*(early[name].to_pylist() for name in ("start_time", "step_seconds")), strict=True)
    )
    shift = ended - pc.min(late["start_time"]).as_py()
    place = late.column_names.index("start_time")
    late = late.set_column(place, "start_time", pc.add(late["start_time"], shift))
    end = pc.max(pc.add(late["start_time"], late["step_seconds"])).as_py() + 0.1
    return rca.Window.from_tables(first.job.model_copy(update={"end": end}), pa.concat_tables([early, late]))
