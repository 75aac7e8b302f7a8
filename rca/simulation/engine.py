"""One scenario in, one labelled window out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray
from rca.simulation.compute_work import drawn_lengths, load_columns
from rca.simulation.exporters import export
from rca.simulation.faults import apply_faults
from rca.simulation.finished_run import Course, World, course_of
from rca.simulation.job_records import clock_errors, events_table, ops_table, steps_table
from rca.simulation.label import Label, label_of
from rca.simulation.noise import Noise, draw_noise
from rca.simulation.phase_accounting import needs_ends
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario
from rca.simulation.scraping import Collector
from rca.simulation.timing import Timing, run_steps
from rca.telemetry.job import Job, RankPlace
from rca.telemetry.schema import METRICS, OPS
from rca.telemetry.window import Window

METRIC_TYPES = pa.schema([(column.name, column.type) for column in METRICS.columns])


@dataclass(frozen=True)
class LabelledWindow:
    """A window, the truth about it, and the scenario that made it."""

    window: Window
    label: Label
    scenario: Scenario


def simulate(scenario: Scenario) -> LabelledWindow:
    """Simulate one window; the same scenario always gives the same one.

    A fault whose cost stays below 5 % of a step is labelled healthy, with a note, because nobody would see
    a slowdown; the label's ``impact`` holds the figures. Each cause's ``seconds_per_step`` is what the job
    would save without it, found by re-running the same noise without the fault.
    """
    resources, noise = apply_faults(scenario), draw_noise(scenario)
    timing = run_steps(scenario, resources, noise, keep_ends=scenario.telemetry.ops or needs_ends(scenario))
    course_rng, steps_rng, metrics_rng, events_rng = (
        np.random.default_rng([scenario.seed, 2, stream]) for stream in range(4)
    )
    course = course_of(scenario, resources, timing, course_rng)
    named = scenario.telemetry.node_names and scenario.telemetry.list_ranks
    node_names = node_labels(scenario) if named else None
    world = World(scenario, resources, timing, _edges(timing, course), course.n_run, course.death, course.end)
    collector = Collector(world, metrics_rng, node_names)
    export(world, collector)
    errors, load = clock_errors(scenario, steps_rng), _load(scenario, resources, noise)
    window = Window(
        job=_job(scenario, course, node_names),
        steps=steps_table(scenario, resources, timing, course, steps_rng, clock_error=errors, load=load),
        metrics=collector.table(METRIC_TYPES, scenario.start),
        events=events_table(scenario, resources, course, node_names, events_rng),
        ops=ops_table(scenario, timing, course.n_run, errors) if scenario.telemetry.ops else OPS.empty(),
    )
    return LabelledWindow(window, label_of(scenario, noise, timing, node_names), scenario)


def node_labels(scenario: Scenario) -> list[str]:
    """Names of the nodes, in the style of the dialect."""
    if scenario.dialect == "cpu_testbed":
        return [f"node-{index}" for index in range(scenario.n_nodes)]
    style = ("gpu-{:03d}", "worker-{}", "10.0.3.{}:9100", "ip-10-1-0-{}")[scenario.seed % 4]
    return [style.format(index + scenario.seed % 7) for index in range(scenario.n_nodes)]


def _load(scenario: Scenario, resources: Resources, noise: Noise) -> dict[str, FloatArray]:
    told = scenario.telemetry
    if not told.load_columns and not told.samples_counted:
        return {}
    columns = load_columns(scenario, drawn_lengths(scenario, resources.length_spread[0], noise.lengths))
    return columns if told.load_columns else {"samples": columns["samples"]}


def _edges(timing: Timing, course: Course) -> FloatArray:
    starts = timing.start.mean(axis=0)
    if course.still_from is not None:
        finish = [course.still_from, course.end]
        return np.concatenate([starts[: course.n_run], finish])
    last = float((timing.start[:, -1] + timing.phases["step_seconds"][:, -1]).mean())
    return np.append(starts, last)


def _job(scenario: Scenario, course: Course, node_names: list[str] | None) -> Job:
    ranks = None
    if scenario.telemetry.list_ranks:
        ranks = tuple(
            RankPlace(
                rank=rank,
                node=None if node_names is None else node_names[rank // scenario.ranks_per_node],
                gpu=rank % scenario.ranks_per_node,
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
        end=scenario.start + course.end,
        hints={"gradient_bytes": scenario.workload.gradient_bytes},
    )
