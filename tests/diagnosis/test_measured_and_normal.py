"""A cause whose own signals are measured and normal is not named; what was not measured excludes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simulated_jobs

import rca
from rca.causal.scores import BusyEvidence
from rca.diagnosis.bundle import baseline
from rca.diagnosis.machine_evidence import is_contradicted, most_unlike
from rca.features import extract
from rca.features.device_load import SM_ACTIVE, activity_per_compute
from rca.features.resource_evidence import RESOURCES, resource_names
from rca.lab.simulation import Fault, simulate
from rca.window.causes import CAUSES, DECIDING
from tests.for_each import for_each


@pytest.fixture(scope="module")
def slow(make_window):
    return extract(make_window(late={5: 0.05}, steps=slice(20, None)))


def measured(features, scores: dict[str, float]):
    """The features with these scores on all ranks, and everything else not measured."""
    held = np.full((8, len(RESOURCES)), np.nan)
    for name, score in scores.items():
        held[:, resource_names().index(name)] = score
    evidence = replace(features.evidence, versus_peers=held, versus_past=held, versus_nominal=held)
    return replace(features, evidence=evidence)


def busy(features) -> BusyEvidence:
    return BusyEvidence.from_features(features, baseline().mechanisms)


@for_each("cause", DECIDING)
def test_normal_signals_contradict_and_moved_or_missing_ones_do_not(slow, cause: str) -> None:
    def normal_on(scores: dict[str, float]) -> bool:
        features = measured(slow, scores)
        return is_contradicted(cause, most_unlike([5], features, busy(features)))

    normal = dict.fromkeys(DECIDING[cause], 0.05)
    assert normal_on(normal)
    assert not normal_on(normal | {DECIDING[cause][0]: 6.0})
    normal.pop(DECIDING[cause][0])
    assert not normal_on(normal)


COLLECTOR = resource_names().index("collector")


def collecting(slow, shown: list[float], *, peers: float = 0.0):
    """The features of eight ranks whose collectors show this beside a sound machine, and nothing else."""
    shape = (8, len(RESOURCES))
    held = {name: np.full(shape, np.nan) for name in ("peers", "past", "nominal")}
    held["peers"][:, COLLECTOR], held["nominal"][:, COLLECTOR] = peers, shown
    evidence = replace(slow.evidence, **{f"versus_{name}": scores for name, scores in held.items()})
    return replace(slow, evidence=evidence)


@for_each(
    ("sounder", "of_them", "normal"),
    [(0, 0.9, True), (0, 0.7, True), (4, 0.9, True), (1, 0.7, True), (2, 0.7, False), (4, 0.7, False)],
)
def test_what_the_others_show_as_well_sets_nobody_apart(slow, sounder: int, of_them: float, normal) -> None:
    """Collectors that run on every rank explain no straggler; half as much on a fifth of the others tells."""
    features = collecting(slow, [*[of_them] * sounder, *[1.5] * (8 - sounder)])
    assert is_contradicted("runtime_gc", most_unlike([5], features, busy(features))) is normal


def test_nobody_to_compare_with_or_most_of_the_job_leaves_the_sound_machine(slow) -> None:
    alike = collecting(slow, [1.5] * 8)
    assert not is_contradicted("runtime_gc", most_unlike(list(range(8)), alike, busy(alike)))
    alone = collecting(slow, [*[np.nan] * 5, 1.5, np.nan, np.nan])
    assert not is_contradicted("runtime_gc", most_unlike([5], alone, busy(alone)))
    no_peers = collecting(slow, [1.5] * 8, peers=np.nan)
    assert not is_contradicted("runtime_gc", most_unlike([5], no_peers, busy(no_peers)))
    calm = collecting(slow, [0.2] * 8, peers=np.nan)
    assert is_contradicted("runtime_gc", most_unlike([5], calm, busy(calm)))


def test_a_nodes_own_ranks_do_not_speak_for_it(slow) -> None:
    topology = replace(slow.topology, node=np.repeat([0, 1], 4), node_names=("a", "b"))
    features = replace(collecting(slow, [0.1] * 4 + [1.5] * 4), topology=topology)
    assert not is_contradicted("runtime_gc", most_unlike([5], features, busy(features)))
    features = replace(collecting(slow, [1.5] * 4 + [0.1, 1.5, 0.1, 0.1]), topology=topology)
    assert is_contradicted("runtime_gc", most_unlike([5], features, busy(features)))


def test_deciding_resources_are_the_causes_own() -> None:
    assert all(set(names) <= set(CAUSES[cause].resources) for cause, names in DECIDING.items())


@pytest.mark.parametrize(("cause", "variant"), [("unknown", "compute"), ("gpu_contention", "process")])
def test_a_device_busy_with_its_own_slow_work_is_not_contended(cause: str, variant: str) -> None:
    """Both keep it busier than its waiting peers; only a stranger's work more than its computing takes."""
    fault = Fault(
        cause=cause, variant=variant, ranks=(5,), nodes=(0,), first_step=40, severity=0.8, strength=1.0
    )
    window = simulate(simulated_jobs.job(fault, seed=9, workload=simulated_jobs.WORKLOAD)).window
    active = extract(window).evidence.values["sm_active"]
    assert active[5] > 1.1 * np.median(active)
    found = {each.cause: each for each in rca.diagnose(window).causes}
    contended = found["gpu_contention"].probability if "gpu_contention" in found else 0.0
    assert (contended > 0.5) is (cause == "gpu_contention")


def test_without_activity_or_phases_nobody_can_say_whose_work_it_is() -> None:
    features = extract(simulate(simulated_jobs.job(seed=9)).window)
    active = features.evidence.values[SM_ACTIVE]
    inside = np.ones(features.work.steps.size, dtype=bool)
    assert np.isfinite(activity_per_compute(features.work, active, inside)).all()
    unknown = activity_per_compute(replace(features.work, phases={}), active, inside)
    assert np.isnan(unknown).all()
