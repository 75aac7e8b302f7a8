"""What a cause costs is what the job would have saved: checked on jobs whose cost is known."""

from __future__ import annotations

import numpy as np
import pytest

import rca
from rca.causal.responsibility import UNMEASURED, decided
from rca.diagnosis.bundle import baseline
from rca.diagnosis.excess_time import excess_of, split
from rca.diagnosis.pipeline import analyse
from rca.lab.simulation import Fault, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism


def scenario(fault: Fault, *, parallelism: Parallelism | None = None) -> SimulationScenario:
    return SimulationScenario(
        seed=5,
        dialect="mixed",
        parallelism=parallelism or Parallelism(data=8),
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, intra_node_share=0.5
        ),
        faults=(fault,),
        telemetry=Telemetry(exporters=tuple(EXPORTERS)),
    )


def cost(scenario: SimulationScenario) -> tuple[float, float]:
    """True and diagnosed seconds per step of the scenario's only cause."""
    labelled = simulate(scenario)
    (true,) = labelled.label["causes"]
    found = [each for each in rca.diagnose(labelled.window).causes if each.cause in true["accepted"]]
    assert found, "the cause is not among those named"
    return true["seconds_per_step"], max(each.seconds_per_step for each in found)


FAULTS = {
    "a collector's pauses lie inside other phases": Fault(
        cause="runtime_gc", variant="leak", ranks=(3,), nodes=(1,), severity=0.8, first_step=10
    ),
    "balanced sequences have the mean length": Fault(
        cause="sequence_length_imbalance", ranks=tuple(range(8)), nodes=(0, 1, 2, 3), severity=0.7
    ),
    "a link inside a node makes its ranks alone late": Fault(
        cause="nvlink_degradation", ranks=(0, 1), nodes=(0,), severity=0.9, first_step=20, last_step=50
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_costs_are_those_of_rerunning_the_job_without_the_fault(fault: Fault) -> None:
    true, found = cost(scenario(fault))
    assert found == pytest.approx(true, rel=0.12)


def test_a_pipelines_loader_stall_is_taken_off_the_part_that_runs_once_per_step() -> None:
    stall = Fault(
        cause="checkpoint_stall", ranks=tuple(range(8)), nodes=(0, 1, 2, 3), severity=0.9, first_step=20
    )
    true, found = cost(scenario(stall, parallelism=Parallelism(data=4, pipeline=2)))
    assert found == pytest.approx(true, rel=0.12)


def test_a_pause_inside_a_phase_is_counted_once() -> None:
    total = np.array([[1.0, 0.5]])
    parts = split(total, {"gc": np.array([[0.8, 0.0]]), "data_loading": np.array([[0.9, 0.4]])})
    assert parts["gc"].tolist() == [[0.8, 0.0]]
    assert parts["data_loading"] == pytest.approx(np.array([[0.2, 0.4]]))
    assert sum(parts.values()) == pytest.approx(total)
    assert parts[UNMEASURED] == pytest.approx(np.array([[0.0, 0.1]]))


def test_a_component_that_is_its_whole_stage_is_compared_with_its_own_past(make_window) -> None:
    """Stage 1 is ranks 4 to 7, all late from step 20 on: its peers are no healthier than itself."""
    window = make_window(
        late=dict.fromkeys(range(4, 8), 0.05),
        steps=slice(20, 40),
        parallelism={"data": 4, "pipeline": 2},
        ranks_per_node=4,
        phase="data_loading_seconds",
    )
    features, classification, *_ = analyse(window, baseline())
    suspect = next(each for each in classification.suspects if set(each.component.ranks) >= {4, 5, 6, 7})
    slow = excess_of(suspect, features).total[:, features.comparison.segment.mask(40)]
    assert slow.mean() == pytest.approx(0.05, rel=0.1)


def test_equal_look_alikes_share_equally_and_a_likelier_one_gets_more_than_its_belief() -> None:
    equal = decided({"a": {"forward": 0.5}, "b": {"forward": 0.5}})
    assert equal["a"]["forward"] == equal["b"]["forward"] == pytest.approx(0.5)
    leaning = decided({"a": {"forward": 0.6}, "b": {"forward": 0.3}})
    assert leaning["a"]["forward"] > 0.6
    assert leaning["b"]["forward"] < 0.3
    assert leaning["a"]["forward"] + leaning["b"]["forward"] <= 1


def test_a_doubtful_explanation_is_not_charged_with_everything() -> None:
    assert decided({"a": {"forward": 0.2}})["a"]["forward"] < 0.2
