"""Where no timer tells own work from waiting, machines say who, and the job's own past says how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import simulated_jobs

import rca
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.causes import slow_causes
from rca.diagnosis.pricing import price
from rca.diagnosis.step_time_fallback import priced_by_step_time
from rca.features import FeatureSet, extract
from rca.lab.simulation import Benign, Fault, PhaseAccounting, SimulationScenario, simulate
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.job import Parallelism

SLOW, MATE = (5,), (4,)
FLAT = Parallelism(data=8)
LAUNCHES = PhaseAccounting(waits_for_device="optimizer", launch_share=0.3)


def job(*, shape: Parallelism = FLAT, last: int | None = 70, **telemetry) -> SimulationScenario:
    """Rank 5's GPU is throttled from step 40 on."""
    fault = Fault(cause="gpu_throttling", ranks=SLOW, nodes=(0,), severity=0.8, first_step=40, last_step=last)
    workload = simulated_jobs.WORKLOAD.model_copy(update={"data_loading_seconds": 0.004})
    return simulated_jobs.job(
        fault, seed=21, workload=workload, parallelism=shape,
        telemetry=simulated_jobs.every_exporter(**telemetry),
    )  # fmt: skip


def suspected(*ranks: int, scope: str = "rank") -> Suspect:
    return Suspect(Component(scope, ranks, 0.9), {}, {"gpu_throttling": 0.9})


def priced(
    scenario: SimulationScenario, suspect: Suspect
) -> tuple[FeatureSet, PhaseReplay, FeatureSet, PhaseReplay]:
    window = simulate(scenario).window
    features = extract(window)
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    return features, replay, *priced_by_step_time(features, [suspect], replay)


@pytest.mark.parametrize("shape", [FLAT, Parallelism(data=4, pipeline=2)], ids=["data", "pipeline"])
def test_steps_beyond_the_quiet_ones_are_the_named_ranks_doing(shape: Parallelism) -> None:
    scenario = job(shape=shape, visibility="minimal")
    _, _, blind, flat = priced(scenario, suspected(*SLOW))
    stepwise = flat.evaluate(flat.own, flat.serial, flat.transfer)
    inside = blind.comparison.segment.mask(stepwise.size)
    np.testing.assert_allclose(stepwise[inside], flat.measured[inside], rtol=0.02)
    healthy = np.delete(flat.own, SLOW, axis=0)
    cost = float(
        (stepwise - flat.evaluate(innocent_everywhere(flat.own, healthy), None, flat.transfer)).mean()
    )
    true = simulate(scenario).label["causes"][0]["seconds_per_step"]
    assert cost == pytest.approx(true, rel=0.15)


def innocent_everywhere(own: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    return np.broadcast_to(healthy.max(axis=0), own.shape)


@pytest.mark.parametrize(
    ("telemetry", "last"),
    [({}, 70), ({"visibility": "minimal"}, None)],
    ids=["the exchange is timed", "no quiet steps"],
)
def test_what_can_be_priced_otherwise_or_not_at_all_is_left_alone(telemetry: dict, last: int | None) -> None:
    scenario = job(last=last, **telemetry)
    if last is None:
        always = scenario.faults[0].model_copy(update={"first_step": 0})
        scenario = scenario.model_copy(update={"faults": (always,)})
    features, replay, same, as_given = priced(scenario, suspected(*SLOW))
    assert same is features
    assert as_given is replay


def test_a_job_that_times_some_phases_is_priced_by_them() -> None:
    features, _, same, _ = priced(job(phase_accounting=LAUNCHES), suspected(*range(8), scope="job"))
    assert same is features


def test_lateness_that_is_a_small_part_of_what_steps_took_longer_is_no_price() -> None:
    """Everybody's backward is as long as the slow one's: what he is late by is his forward alone."""
    scenario = job(phase_accounting=PhaseAccounting(exchange_in="backward"))
    features, _, same, _ = priced(scenario, suspected(*SLOW))
    assert same is not features
    found = rca.diagnose(simulate(scenario).window)
    true = simulate(scenario).label["causes"][0]["seconds_per_step"]
    assert found.causes[0].ranks == list(SLOW)
    assert found.causes[0].seconds_per_step == pytest.approx(true, rel=0.15)


def test_checkpoints_in_the_slow_stretch_are_not_what_it_costs() -> None:
    """Four untimed checkpoints of ten steps each, two of them while the device is slow."""
    saves = Benign(warmup_steps=0, slow_step_every=22, slow_step_factor=10.0, slow_step_phase="between")
    scenario = job(visibility="minimal", last=None).model_copy(update={"benign": saves})
    _, _, blind, flat = priced(scenario, suspected(*SLOW))
    assert blind.comparison.segment.first > 30
    stepwise = flat.evaluate(flat.own, flat.serial, flat.transfer)
    healthy = innocent_everywhere(flat.own, np.delete(flat.own, SLOW, axis=0))
    cost = float((stepwise - flat.evaluate(healthy, None, flat.transfer)).mean())
    true = simulate(scenario).label["causes"][0]["seconds_per_step"]
    assert cost == pytest.approx(true, rel=0.2)


def saves_and_stalls(every: int, stall: float) -> tuple[rca.Window, float]:
    """A device a little slow from step 40 to 70, a save each so many steps, and stalls with those meanwhile.

    Returns
    -------
    window : Window
    true : float
        Seconds per step that the device and the stalls cost.
    """
    saves = Benign(warmup_steps=0, slow_step_every=every, slow_step_factor=3.0, slow_step_phase="between")
    given = job(visibility="minimal")
    faults = (given.faults[0].model_copy(update={"severity": 0.3}),)
    labelled = simulate(given.model_copy(update={"benign": saves, "faults": faults}))
    steps = labelled.window.steps
    number, seconds = (steps.column(name).to_numpy() for name in ("step", "step_seconds"))
    job_step = np.array([np.median(seconds[number == each]) for each in range(number.max() + 1)])
    usual = np.median(job_step)
    saved = (job_step > 2 * usual) if every else np.arange(job_step.size) % 8 == 4
    stalled = np.flatnonzero(saved & (np.abs(np.arange(job_step.size) - 55) <= 15))
    assert stalled.size
    # One such step beside the stretch is not one of many.
    longer = pa.array(seconds + np.where(np.isin(number, [*stalled, 20]), stall, 0.0))
    column = steps.column_names.index("step_seconds")
    window = replace(labelled.window, steps=steps.set_column(column, "step_seconds", longer))
    return window, labelled.label["causes"][0]["seconds_per_step"] + stall * stalled.size / job_step.size


@pytest.mark.parametrize(
    ("every", "stall"), [(8, 0.0), (8, 1.0), (0, 1.0)], ids=["saves", "longer saves", "stalls alone"]
)
def test_what_is_longer_than_the_jobs_own_saves_is_what_it_costs(every: int, stall: float) -> None:
    window, true = saves_and_stalls(every, stall)
    features = extract(window)
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    _, flat = priced_by_step_time(features, [suspected(*SLOW)], replay)
    healthy = innocent_everywhere(flat.own, np.delete(flat.own, SLOW, axis=0))
    stepwise = flat.evaluate(flat.own, flat.serial, flat.transfer)
    cost = float((stepwise - flat.evaluate(healthy, None, flat.transfer)).mean())
    assert cost == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize(
    ("cause", "by_steps"), [("network_congestion", True), ("runtime_gc", False)], ids=["links", "phases"]
)
def test_slower_collectives_lengthen_whatever_phase_they_are_in(cause: str, by_steps: bool) -> None:
    all_ranks = replace(suspected(*range(8), scope="job"), causes={cause: 0.9})
    features, _, blind, _ = priced(job(phase_accounting=PhaseAccounting(exchange_in="backward")), all_ranks)
    assert (blind is not features) == by_steps


def test_a_cause_that_nothing_prices_is_named_all_the_same() -> None:
    """Steps were as long from the first to the last: who and why is plain, and how much is not."""
    scenario = job(visibility="minimal")
    always = scenario.faults[0].model_copy(update={"first_step": 0, "last_step": None})
    window = simulate(scenario.model_copy(update={"faults": (always,)})).window
    features, mechanisms = extract(window), baseline().mechanisms
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    busy = BusyEvidence.from_features(features, mechanisms)
    priced = price(features, [suspected(*SLOW)], busy, mechanisms, replay)
    (cause,) = slow_causes(priced, features, [])
    assert (cause.cause, cause.ranks, cause.seconds_per_step) == ("gpu_throttling", [5], None)
    assert cause.probability > 0.5
    assert "its cost is unknown" in cause.evidence[0].note


def test_a_replay_of_whole_steps_takes_as_long_as_they_did() -> None:
    features, replay, _, _ = priced(job(visibility="minimal"), suspected(*SLOW))
    for cause in ("gpu_throttling", "nic_degradation"):
        suspect = Suspect(Component("rank", SLOW, 0.9), {}, {cause: 0.9})
        _, flat = priced_by_step_time(features, [suspect], replay)
        np.testing.assert_allclose(
            flat.evaluate(flat.own, flat.serial, flat.transfer), flat.replayed, rtol=1e-2
        )


def test_a_link_costs_what_whole_steps_are_longer() -> None:
    """Its time is the collectives': no rank's own work is longer for it."""
    node = tuple(range(8, 16))
    fault = Fault(
        cause="nic_degradation",
        ranks=node,
        nodes=(1,),
        severity=0.9,
        strength=1.5,
        first_step=40,
        last_step=70,
    )
    telemetry = simulated_jobs.every_exporter(visibility="minimal")
    labelled = simulate(simulated_jobs.job(fault, seed=22, telemetry=telemetry))
    found = rca.diagnose(labelled.window)
    assert (found.causes[0].cause, tuple(found.causes[0].ranks)) == ("nic_degradation", node)
    true = labelled.label["causes"][0]["seconds_per_step"]
    assert found.causes[0].seconds_per_step == pytest.approx(true, rel=0.2)
    assert not found.abstained


def leaders_only(window: rca.Window, *leaders: int) -> rca.Window:
    """The same window where one rank of each node reports for all."""
    kept = np.isin(np.asarray(window.steps.column("rank")), leaders)
    return replace(window, steps=window.steps.filter(pa.array(kept)))


def test_a_rank_without_rows_is_named_by_its_machine_and_priced_by_the_others() -> None:
    labelled = simulate(job().model_copy(update={"ranks_per_node": 4}))
    found = rca.diagnose(leaders_only(labelled.window, 0, 4))
    assert (found.causes[0].cause, found.causes[0].ranks) == ("gpu_throttling", [5])
    true = labelled.label["causes"][0]["seconds_per_step"]
    assert found.causes[0].seconds_per_step == pytest.approx(true, rel=0.2)


def test_an_unknown_cost_is_not_reported_as_none() -> None:
    scenario = job(visibility="minimal")
    always = scenario.faults[0].model_copy(update={"first_step": 0, "last_step": None})
    answer = rca.diagnose(simulate(scenario.model_copy(update={"faults": (always,)})).window)
    (cause,) = answer.causes
    assert cause.without_price
    assert all(action.expected_seconds_per_step_saved is None for action in answer.actions)
    page = answer.to_markdown()
    assert "unknown" in page
    assert "+0 s" not in page.splitlines()[0]
