"""``python -m benchmarks online``: false alarms per healthy job-hour, and steps until a diagnosis.

Simulated jobs are watched as `rca_api.jobs.watcher` watches them: a look every few steps, and a diagnosis
where one is due. An alarm is a diagnosis that is certain and not healthy. Healthy jobs have all that is
benign in training, such as warm-up, hiccups and sequence lengths.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow.compute as pc

import rca
from benchmarks.measure import print_table
from rca.features.lateness_change import LatenessChange
from rca.lab.evaluation.intervals import poisson_rate
from rca.lab.simulation.engine import simulate
from rca.lab.simulation.sampling import sample_scenario
from rca.lab.simulation.scenario import SimulationScenario
from rca.process import usable_cores
from rca.window.fragments import between_steps
from rca.window.window import Window
from rca.workers import Workers
from rca_api.jobs.watcher import FIRST_STEP, followed
from rca_api.jobs.work import Look, WantedLook, WatchedSteps, first_step, is_due

HEALTHY_SEED, FAULTY_SEED = 910_000_000, 920_000_000
MAX_WORLD = 32
HEALTHY_STEPS, FAULTY_STEPS = 1500, 300
ONSET = 160
#: Steps before the onset with which those after it are compared.
WARM = 140
STEPS_PER_LOOK = 5
#: Asked: a straggler is diagnosed within so many steps of its onset.
WITHIN_STEPS = 20


@dataclass(frozen=True)
class Watched:
    """One watched job.

    Attributes
    ----------
    hours : float
    diagnoses, alarms : int
    signs, late_signs : int
        Changes that began a diagnosis, and those of them that were of lateness.
    seen_after, alarmed_after : int or None
        Steps from the onset to the first look with a change, and to the first alarm.
    slowdown : float
        Median step after the onset over that before it.
    """

    hours: float
    diagnoses: int
    alarms: int
    signs: int = 0
    late_signs: int = 0
    seen_after: int | None = None
    alarmed_after: int | None = None
    slowdown: float = 1.0


def main(arguments: list[str]) -> int:
    """Watch healthy and faulty jobs, and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks online", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="healthy job-hours [default: 1000]")
    parser.add_argument("--faulty", type=int, default=300, help="faulty jobs [default: 300]")
    parser.add_argument(
        "--undiagnosed",
        action="store_true",
        help="healthy jobs: count changes only, which is ten times faster",
    )
    parser.add_argument("--processes", type=int, default=usable_cores(), help="[default: one per core]")
    given = parser.parse_args(arguments)
    healthy: list[Watched] = []
    seeds = range(HEALTHY_SEED, FAULTY_SEED)
    with Workers(given.processes) as workers:
        watch = partial(watched_healthy, diagnosed=not given.undiagnosed)
        for one in workers.map(watch, seeds, chunk=2):
            healthy.append(one)
            hours = sum(each.hours for each in healthy)
            late = sum(each.late_signs for each in healthy)
            says = f"online: {hours:,.0f} of {given.hours:,.0f} healthy job-hours, {late} changes of lateness"
            print(says, file=sys.stderr)
            if hours >= given.hours:
                break
        _print_healthy(healthy)
        seeds = range(FAULTY_SEED, FAULTY_SEED + given.faulty)
        _print_faulty(list(workers.map(watched_faulty, seeds, chunk=2)))
    return 0


def watched_healthy(seed: int, *, diagnosed: bool = True) -> Watched:
    """Watch a job without a fault."""
    scenario = _small(seed, partial(_without_faults, n_steps=HEALTHY_STEPS))
    return watched(simulate(scenario).window, onset=None, diagnosed=diagnosed)


def watched_faulty(seed: int) -> Watched:
    """Watch a job with one lasting fault that begins in it."""
    return watched(simulate(_small(seed, _with_late_fault)).window, onset=ONSET)


def _small(
    seed: int, changed: Callable[[SimulationScenario], SimulationScenario | None]
) -> SimulationScenario:
    draw = np.random.default_rng(seed)
    while True:
        scenario = sample_scenario(draw)
        found = changed(scenario)
        if scenario.world_size <= MAX_WORLD and found is not None:
            return found


def _without_faults(scenario: SimulationScenario, n_steps: int) -> SimulationScenario | None:
    values = scenario.model_dump() | {"faults": (), "n_steps": n_steps}
    return SimulationScenario.model_validate(values)


def _with_late_fault(scenario: SimulationScenario) -> SimulationScenario | None:
    slow = [fault for fault in scenario.faults if fault.cause not in ("process_crash", "hang")]
    if len(slow) != 1 or len(scenario.faults) != 1:
        return None
    fault = slow[0].model_copy(update={"first_step": ONSET, "last_step": None})
    return SimulationScenario.model_validate(
        scenario.model_dump() | {"faults": (fault.model_dump(),), "n_steps": FAULTY_STEPS}
    )


def watched(
    window: Window, onset: int | None, every: int = STEPS_PER_LOOK, *, diagnosed: bool = True
) -> Watched:
    """Watch the steps of a window as they come.

    Parameters
    ----------
    onset : int or None
        First step of the fault, counted from the first row.
    every : int
        Steps from one look to the next.
    diagnosed : bool
        Make the diagnoses that are due; without them there is no alarm.
    """
    zero = int(pc.min(window.steps.column("step")).as_py())
    # Numbers from 0: the warm-up of a watched job is its own.
    counted = pc.subtract(window.steps.column("step"), zero)
    place = window.steps.column_names.index("step")
    window = replace(window, steps=window.steps.set_column(place, "step", counted))
    nodes = {place.rank: place.node for place in window.job.ranks or () if place.node}
    job = WatchedSteps.of(window, nodes)
    seen = alarmed = None
    wanted = WantedLook(None, None, FIRST_STEP)
    diagnoses = alarms = signs = late_signs = 0
    for last in job.steps[every - 1 :: every].tolist():
        change = job.change(last)
        due = is_due(change, last, wanted)
        if change is not None and wanted.changed_step is None:
            signs += 1
            late_signs += isinstance(change, LatenessChange)
        if due:
            diagnoses += 1
        if due and diagnosed:
            answer = rca.diagnose(between_steps(window, max(0, first_step(change, last, wanted)), last))
            if not answer.abstained and answer.failure_mode != "healthy":
                alarms += 1
                if onset is not None and alarmed is None and last >= onset:
                    alarmed = last - onset
        if change is not None and onset is not None and seen is None and last >= onset:
            seen = last - onset
        look = Look(change, last, None, None)
        changed_step, next_step, steady = followed(look, wanted, queued=due)
        first = None if due else wanted.first_step
        wanted = WantedLook(changed_step, next_step, first, steady_since=steady)
    slowdown = 1.0
    if onset is not None:
        slowdown = float(np.nanmedian(job.seconds[onset:]) / np.nanmedian(job.seconds[:onset][-WARM:]))
    hours = float(np.nansum(job.seconds)) / 3600.0
    return Watched(hours, diagnoses, alarms, signs, late_signs, seen, alarmed, slowdown)


def _print_healthy(jobs: Sequence[Watched]) -> None:
    hours, alarms = sum(job.hours for job in jobs), sum(job.alarms for job in jobs)
    rate, low, high = (1e3 * each for each in poisson_rate(alarms, hours))
    diagnoses, alarmed = sum(job.diagnoses for job in jobs), sum(job.alarms > 0 for job in jobs)
    signs, late = sum(job.signs for job in jobs), sum(job.late_signs for job in jobs)
    found = signs, late, diagnoses, alarmed, alarms, f"{rate:.2f} [{low:.2f}, {high:.2f}]"
    row = (len(jobs), f"{hours:,.0f}", *found)
    columns = (
        "jobs", "job-hours", "changes", "of lateness", "diagnoses", "jobs with an alarm", "alarms",
        "per 1,000 h [95 %]",
    )  # fmt: skip
    print_table("healthy jobs", columns, [row])


def _print_faulty(jobs: Sequence[Watched]) -> None:
    rows = []
    for low, high in ((0.0, 1.05), (1.05, 1.1), (1.1, 1.25), (1.25, 2.0), (2.0, np.inf)):
        group = [job for job in jobs if low <= job.slowdown < high]
        seen, alarmed = ([getattr(job, name) for job in group] for name in ("seen_after", "alarmed_after"))
        soon = [sum(each is not None and each <= WITHIN_STEPS for each in after) for after in (seen, alarmed)]
        rows.append((f"{low:g} to {high:g}", len(group), *soon, sum(each is not None for each in alarmed)))
    within = (f"seen within {WITHIN_STEPS}", f"alarm within {WITHIN_STEPS}")
    print_table("stragglers", ("step time grows by a factor of", "jobs", *within, "alarm"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
