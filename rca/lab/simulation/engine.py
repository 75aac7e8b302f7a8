"""Simulation of one scenario: a labelled window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.lab.simulation.compute_work import drawn_lengths, load_columns
from rca.lab.simulation.exporters import export
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.finished_run import FinishedRun, RunEnd, run_end_of
from rca.lab.simulation.job_records import clock_errors, events_table, ops_table, steps_table
from rca.lab.simulation.label import Label, label_of
from rca.lab.simulation.noise import Noise, draw_noise
from rca.lab.simulation.phase_accounting import needs_ends
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import SimulationScenario
from rca.lab.simulation.scraping import MetricsScraper
from rca.lab.simulation.timing import Timing, run_steps
from rca.window.job import Job, RankPlace
from rca.window.schema import COLLECTIVES, METRICS, OPS, STEPS
from rca.window.window import Window

METRIC_TYPES = pa.schema([(column.name, column.type) for column in METRICS.columns])


@dataclass(frozen=True)
class LabelledWindow:
    """A window, its label, and its scenario."""

    window: Window
    label: Label
    scenario: SimulationScenario


def simulate(scenario: SimulationScenario) -> LabelledWindow:
    """Simulate one window; the same scenario always gives the same one.

    A window whose faults cost less than 5 % of a step is labelled healthy, with a note. The label's
    ``impact`` holds the figures. Each cause's ``seconds_per_step`` is what the job would save without it: the
    same noise runs again without the fault.
    """
    resources, noise = apply_faults(scenario), draw_noise(scenario)
    timing = run_steps(scenario, resources, noise, keep_ends=scenario.telemetry.ops or needs_ends(scenario))
    course_rng, steps_rng, metrics_rng, events_rng = (
        np.random.default_rng([scenario.seed, 2, stream]) for stream in range(4)
    )
    run_end = run_end_of(scenario, resources, timing, course_rng)
    named = scenario.telemetry.node_names and scenario.telemetry.list_ranks
    node_names = node_labels(scenario) if named else None
    run = FinishedRun(
        scenario, resources, timing, _edges(timing, run_end), run_end.n_run, run_end.process_end, run_end.end
    )
    collector = MetricsScraper(run, metrics_rng, node_names)
    export(run, collector)
    errors, load = clock_errors(scenario, steps_rng), _load(scenario, resources, noise)
    window = Window(
        job=_job(scenario, run_end, node_names),
        steps=steps_table(scenario, resources, timing, run_end, steps_rng, clock_error=errors, load=load)
        if scenario.telemetry.steps_reported
        else STEPS.empty(),
        metrics=collector.table(METRIC_TYPES, scenario.start),
        events=events_table(scenario, resources, run_end, node_names, events_rng),
        ops=ops_table(scenario, timing, run_end.n_run, errors) if scenario.telemetry.ops else OPS.empty(),
        collectives=COLLECTIVES.empty(),
    )
    return LabelledWindow(window, label_of(scenario, noise, timing, node_names), scenario)


def node_labels(scenario: SimulationScenario) -> list[str]:
    """Names of the nodes, in the style of the dialect."""
    if scenario.dialect == "cpu_testbed":
        return [f"node-{index}" for index in range(scenario.n_nodes)]
    style = ("gpu-{:03d}", "worker-{}", "10.0.3.{}:9100", "ip-10-1-0-{}")[scenario.seed % 4]
    return [style.format(index + scenario.seed % 7) for index in range(scenario.n_nodes)]


def _load(scenario: SimulationScenario, resources: Resources, noise: Noise) -> dict[str, FloatArray]:
    telemetry = scenario.telemetry
    if not telemetry.load_columns and not telemetry.samples_counted:
        return {}
    columns = load_columns(scenario, drawn_lengths(scenario, resources.length_spread[0], noise.lengths))
    return columns if telemetry.load_columns else {"samples": columns["samples"]}


def _edges(timing: Timing, run_end: RunEnd) -> FloatArray:
    starts = timing.start.mean(axis=0)
    if run_end.still_from is not None:
        finish = [run_end.still_from, run_end.end]
        return np.concatenate([starts[: run_end.n_run], finish])
    last = float((timing.start[:, -1] + timing.phases["step_seconds"][:, -1]).mean())
    return np.append(starts, last)


def _hardware(scenario: SimulationScenario, rank: int, *, named: bool) -> dict[str, str]:
    """Switches and adapter of a rank; empty without a wiring or names of nodes."""
    if scenario.wiring is None or not named:
        return {}
    node, gpu = divmod(rank, scenario.ranks_per_node)
    return scenario.wiring.columns(node, gpu, scenario.ranks_per_node)


def _job(scenario: SimulationScenario, run_end: RunEnd, node_names: list[str] | None) -> Job:
    ranks = None
    if scenario.telemetry.list_ranks:
        ranks = tuple(
            RankPlace(
                rank=rank,
                node=None if node_names is None else node_names[rank // scenario.ranks_per_node],
                gpu=rank % scenario.ranks_per_node,
                **_hardware(scenario, rank, named=node_names is not None),
            )
            for rank in range(scenario.world_size)
        )
    return Job(
        window_id=f"sim-{scenario.seed}",
        job_id=f"simulated-{scenario.dialect}",
        framework="pytorch",
        world_size=scenario.world_size,
        parallelism=scenario.parallelism,
        ranks=ranks,
        start=scenario.start - 0.4,
        end=scenario.start + run_end.end,
        hints={"gradient_bytes": scenario.workload.gradient_bytes},
    )
