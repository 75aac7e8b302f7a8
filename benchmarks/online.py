"""``python -m benchmarks online``: false alarms per healthy job-hour, and steps until a diagnosis.

Simulated jobs are watched as `rca_api.jobs.watcher` watches them: a look every few steps, and a diagnosis
where one is due. An alarm is a diagnosis that is certain and not healthy. Several alarms, or a very certain
one, open an incident (`rca_api.incidents.state_machine`). Healthy jobs have all that is benign in training,
such as warm-up, hiccups and sequence lengths.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import orjson
import pyarrow.compute as pc

import rca
from benchmarks.measure import print_table
from rca.diagnosis.result import Diagnosis
from rca.features.lateness_change import LatenessChange
from rca.lab.evaluation.intervals import poisson_rate
from rca.lab.simulation.engine import simulate
from rca.lab.simulation.sampling import sample_scenario
from rca.lab.simulation.scenario import SimulationScenario
from rca.process import usable_cores
from rca.window.fragments import between_steps
from rca.window.window import Window
from rca.workers import Workers
from rca_api.incidents.observation import Observation
from rca_api.incidents.observe import verdict_of
from rca_api.incidents.repository import observation
from rca_api.incidents.state_machine import Hysteresis, NoIncident, State, next_state
from rca_api.incidents.tables import ObservationRow
from rca_api.jobs.watcher import FIRST_STEPS, followed
from rca_api.jobs.work import Look, WantedLook, WatchedSteps, first_step, is_due

HEALTHY_SEED, FAULTY_SEED = 930_000_000, 940_000_000
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
    diagnoses, alarms : dict of str to int
        By why they are due: the first one, a change, or the time after it.
    incidents : dict of str to int
        Incidents that were opened, by the diagnosis that opened them.
    signs, late_signs : int
        Changes that began a diagnosis, and those of them that were of lateness.
    seen_after, alarmed_after, opened_after : int or None
        Steps from the onset to the first look with a change, to the first alarm, and until an incident has a
        cause.
    slowdown : float
        Median step after the onset over that before it; 1 where there is none before it.
    """

    hours: float
    diagnoses: Counter[str]
    alarms: Counter[str]
    incidents: Counter[str]
    signs: int = 0
    late_signs: int = 0
    seen_after: int | None = None
    alarmed_after: int | None = None
    opened_after: int | None = None
    slowdown: float = 1.0


def main(arguments: list[str]) -> int:
    """Watch healthy and faulty jobs, and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks online", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="healthy job-hours [default: 1000]")
    parser.add_argument("--faulty", type=int, default=300, help="faulty jobs of each kind [default: 300]")
    parser.add_argument(
        "--undiagnosed",
        action="store_true",
        help="healthy jobs: count changes only, which is faster",
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
            if len(healthy) % 100 == 0:
                opened = sum(each.incidents.total() for each in healthy)
                print(
                    f"online: {hours:,.0f} of {given.hours:,.0f} healthy job-hours, {opened} incidents",
                    file=sys.stderr,
                )
            if hours >= given.hours:
                break
        _print_healthy(healthy)
        seeds = range(FAULTY_SEED, FAULTY_SEED + given.faulty)
        faulty, from_start = (
            list(workers.map(of, seeds, chunk=2)) for of in (watched_faulty, watched_from_start)
        )
    _print_faulty(faulty, from_start)
    return 0


def watched_healthy(seed: int, *, diagnosed: bool = True) -> Watched:
    """Watch a job without a fault."""
    scenario = _small(seed, partial(_without_faults, n_steps=HEALTHY_STEPS))
    return watched(simulate(scenario).window, onset=None, diagnosed=diagnosed)


def watched_faulty(seed: int) -> Watched:
    """Watch a job with one lasting fault that begins in it."""
    return watched(simulate(_small(seed, _with_late_fault)).window, onset=ONSET)


def watched_from_start(seed: int) -> Watched:
    """Watch a job with one lasting fault that it has from its first step."""
    return watched(simulate(_small(seed, partial(_with_late_fault, onset=0))).window, onset=0)


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


def _with_late_fault(scenario: SimulationScenario, onset: int = ONSET) -> SimulationScenario | None:
    slow = [fault for fault in scenario.faults if fault.cause not in ("process_crash", "hang")]
    if len(slow) != 1 or len(scenario.faults) != 1:
        return None
    fault = slow[0].model_copy(update={"first_step": onset, "last_step": None})
    benign = scenario.benign.model_copy(
        update={
            "bursts": tuple(each for each in scenario.benign.bursts if each.first_step < FAULTY_STEPS),
            "events": tuple(each for each in scenario.benign.events if each.step < FAULTY_STEPS),
        }
    )
    values = {"faults": (fault.model_dump(),), "benign": benign.model_dump(), "n_steps": FAULTY_STEPS}
    return SimulationScenario.model_validate(scenario.model_dump() | values)


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
    seen = alarmed = opened = None
    wanted = WantedLook(None, None, FIRST_STEPS)
    diagnoses, alarms, incidents = Counter[str](), Counter[str](), Counter[str]()
    incident: State = NoIncident()
    signs = late_signs = 0
    for last in job.steps[every - 1 :: every].tolist():
        change = job.change(last)
        due = is_due(change, last, wanted)
        if change is not None and wanted.changed_step is None:
            signs += 1
            late_signs += isinstance(change, LatenessChange)
        if due:
            why = "change" if change is not None else "after" if wanted.first_step is None else "first"
            diagnoses[why] += 1
        if due and diagnosed:
            cut = between_steps(window, max(0, first_step(change, last, wanted)), last)
            answer = rca.diagnose(cut)
            incident, events = next_state(incident, _observed(answer, cut), Hysteresis())
            incidents[why] += sum(each.kind in ("opened", "suspected", "reopened") for each in events)
            named = any(each.kind in ("opened", "confirmed") for each in events)
            if opened is None and named and onset is not None and last >= onset:
                opened = last - onset
            if not answer.abstained and answer.failure_mode != "healthy":
                alarms[why] += 1
                if onset is not None and alarmed is None and last >= onset:
                    alarmed = last - onset
        if change is not None and onset is not None and seen is None and last >= onset:
            seen = last - onset
        look = Look(change, last, None, None)
        changed_step, next_step, steady = followed(look, wanted, queued=due)
        first = None if due else wanted.first_step
        wanted = WantedLook(changed_step, next_step, first, steady_since=steady)
    slowdown = 1.0
    if onset:
        slowdown = float(np.nanmedian(job.seconds[onset:]) / np.nanmedian(job.seconds[:onset][-WARM:]))
    hours = float(np.nansum(job.seconds)) / 3600.0
    return Watched(hours, diagnoses, alarms, incidents, signs, late_signs, seen, alarmed, opened, slowdown)


def _observed(answer: Diagnosis, window: Window) -> Observation:
    """A diagnosed window as the incidents of the service count it."""
    place = {"job_id": window.job.job_id, "window_start": window.job.start, "window_end": window.job.end}
    said = verdict_of(orjson.loads(answer.model_dump_json()))
    return observation(ObservationRow(**place, **said, diagnosis_id=""))


def _print_healthy(jobs: Sequence[Watched]) -> None:
    hours = sum(job.hours for job in jobs)
    signs, late = sum(job.signs for job in jobs), sum(job.late_signs for job in jobs)
    print_table(
        "healthy jobs",
        ("jobs", "job-hours", "changes", "of lateness"),
        [(len(jobs), f"{hours:,.0f}", signs, late)],
    )
    rows = []
    for why in ("first", "change", "after"):
        counted = (
            sum(getattr(job, name)[why] for job in jobs) for name in ("diagnoses", "alarms", "incidents")
        )
        diagnoses, alarms, incidents = counted
        rows.append((why, diagnoses, alarms, _rate(alarms, hours), incidents, _rate(incidents, hours)))
    per = "per 1,000 h [95 %]"
    print_table("diagnoses of healthy jobs", ("due by", "diagnoses", "alarms", per, "incidents", per), rows)


def _rate(number: int, hours: float) -> str:
    rate, low, high = (1e3 * each for each in poisson_rate(number, hours))
    return f"{rate:.2f} [{low:.2f}, {high:.2f}]"


def _print_faulty(jobs: Sequence[Watched], from_start: Sequence[Watched]) -> None:
    rows = []
    for low, high in ((0.0, 1.05), (1.05, 1.1), (1.1, 1.25), (1.25, 2.0), (2.0, np.inf)):
        rows.append((f"grows {low:g} to {high:g} times", *_reached(jobs, low, high)))
    rows.append(("is long from the start", *_reached(from_start)))
    within = (f"{stage} within {WITHIN_STEPS}" for stage in ("seen", "alarm", "incident"))
    print_table("stragglers", ("step time", "jobs", *within, "alarm", "incident"), rows)


def _reached(jobs: Sequence[Watched], low: float = 0.0, high: float = np.inf) -> tuple[int, ...]:
    """Number of jobs of a slowdown, and of those that reached each stage soon, or at all."""
    group = [job for job in jobs if low <= job.slowdown < high]
    seen, alarmed, opened = (
        [getattr(job, name) for job in group] for name in ("seen_after", "alarmed_after", "opened_after")
    )
    soon = [
        sum(each is not None and each <= WITHIN_STEPS for each in after) for after in (seen, alarmed, opened)
    ]
    return len(group), *soon, *(sum(each is not None for each in after) for after in (alarmed, opened))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
