"""Version 2 of the corpus: the mixture of version 1, and mechanisms that it lacks.

A mechanism draws its parameters from ranges and is put on a healthy job with its own machines, telemetry and
noise. None is a copy of a case. Version 1 draws none of them and stays as it is, byte by byte.
"""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.faults import FAULTS, FIRST_CAUSES
from rca.lab.simulation.impact import VISIBLE_SLOWDOWN, slowdown
from rca.lab.simulation.mechanisms import harmless, slow, stops
from rca.lab.simulation.mechanisms.parts import ON_GPUS, Mechanism, changed
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.sampling import ATTEMPTS, DIALECTS, NEAR_MISS_SHARE, healthy_base, sample_scenario
from rca.lab.simulation.scenario import Dialect, SimulationScenario

__all__ = ["FIRST_SHARE", "MECHANISMS", "Mechanism", "sample_second"]

#: Share of the windows with the mixture of version 1 (about a third of them healthy).
FIRST_SHARE = 0.5
#: Shares among the windows of mechanisms, up to their sum.
MECHANISMS: dict[str, Mechanism] = {
    "chronic": Mechanism(0.10, slow.chronic, slow.CHRONIC_CAUSES, "nic_degradation"),
    "chronic_job": Mechanism(0.09, slow.chronic_job, tuple(slow.ABSOLUTE_EVIDENCE), "nic_degradation"),
    "untimed_saves": Mechanism(0.07, slow.untimed_saves, ("checkpoint_stall",)),
    "pauses_in_turns": Mechanism(0.06, slow.pauses_in_turns, ("runtime_gc",)),
    "blocking": Mechanism(0.06, slow.blocking, ("unknown",)),
    "allocator_retries": Mechanism(0.09, slow.allocator_retries, ("allocator_retries",), dialects=ON_GPUS),
    "communication_misconfiguration": Mechanism(
        0.09,
        slow.misconfiguration,
        ("communication_misconfiguration",),
        "nic_degradation",
        ON_GPUS,
    ),
    "recompilation": Mechanism(0.06, slow.recompilation, ("recompilation",), dialects=ON_GPUS),
    "own_processes": Mechanism(0.07, slow.own_processes, ("cpu_contention",)),
    "gang": Mechanism(0.05, stops.gang, ("process_crash",), "process_crash"),
    "flapping_port": Mechanism(
        0.04, stops.flapping_port, ("process_crash", "nic_degradation"), "nic_degradation", ON_GPUS
    ),
    "hang_after_slowness": Mechanism(0.04, stops.hang_after_slowness, ("hang",), "hang"),
    "hang_before_first_step": Mechanism(0.02, stops.hang_before_first_step, ("hang",), "hang"),
    "silent_hang": Mechanism(0.03, stops.silent_hang, ("hang",), "hang"),
    "vanished_rank": Mechanism(0.04, stops.vanished_rank, ("process_crash",), "process_crash", ON_GPUS),
    "small_blocking": Mechanism(0.05, slow.small_blocking, ()),
    "full_memory": Mechanism(0.06, harmless.full_memory, (), dialects=ON_GPUS),
    "untimed_evaluation": Mechanism(0.06, harmless.untimed_evaluation, ()),
    "few_compilations": Mechanism(0.05, harmless.few_compilations, (), dialects=ON_GPUS),
}
#: Mechanisms of healthy jobs, and the share of requested healthy jobs with one of them.
HARMLESS = ("full_memory", "untimed_evaluation", "few_compilations")
HARMLESS_SHARE = 0.3
#: Shares of all windows of version 2 with exporters only, and with step times and exporters but no phases.
EXPORTERS_ONLY_SHARE, WITHOUT_PHASES_SHARE = 0.05, 0.12
#: Shares of jobs whose step timer ends before the host's work between steps, and before checkpoints as well.
ENDS_BEFORE_PAUSES_SHARE, ENDS_BEFORE_SAVES_SHARE = 0.12, 0.06
#: Share of stopped jobs of which all waiting ranks have watchdogs that report.
ALL_WATCHDOGS_SHARE = 0.3
#: Range of the share of device memory that a job holds.
MEMORY_SHARES = (0.25, 0.98)


def sample_second(
    rng: np.random.Generator,
    *,
    cause: str | None = None,
    dialect: Dialect | None = None,
    mechanism: str | None = None,
) -> SimulationScenario:
    """Draw a scenario of version 2.

    Parameters
    ----------
    cause : str, optional
        ``healthy`` or a catalogue id. A cause of version 1 is drawn as there, a later one by its mechanism.
        Some healthy jobs have a mechanism that is harmless.
    dialect : {"gpu_cluster", "cpu_testbed", "mixed"}, optional
        Mechanisms that need other machines ignore it.
    mechanism : str, optional
        Name of the mechanism that the scenario has.

    Raises
    ------
    ValueError
        For an unknown cause or mechanism.

    Notes
    -----
    As in version 1, faults are redrawn until they cost at least 5 % of a step, except for a few near misses.
    """
    if mechanism is not None and mechanism not in MECHANISMS:
        raise ValueError(f"unknown mechanism {mechanism!r}; expected one of {sorted(MECHANISMS)}")
    if mechanism is None and cause in FAULTS and cause not in FIRST_CAUSES:
        mechanism = cause
    if mechanism is None and cause == "healthy" and rng.random() < HARMLESS_SHARE:
        mechanism = _pick(rng, HARMLESS)
    if mechanism is None and (cause is not None or rng.random() < FIRST_SHARE):
        return _varied(rng, sample_scenario(rng, cause=cause, dialect=dialect))
    name = mechanism or _pick(rng, tuple(MECHANISMS))
    return _drawn(rng, name, MECHANISMS[name], dialect)


def _pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    weights = np.array([MECHANISMS[name].weight for name in names])
    return names[int(rng.choice(weights.size, p=weights / weights.sum()))]


def _drawn(
    rng: np.random.Generator, name: str, mechanism: Mechanism, dialect: Dialect | None
) -> SimulationScenario:
    if dialect not in mechanism.dialects:
        known, weights = zip(*(each for each in DIALECTS if each[0] in mechanism.dialects), strict=True)
        dialect = known[int(rng.choice(len(known), p=np.array(weights) / sum(weights)))]
    base = _varied(rng, healthy_base(rng, dialect, mechanism.job))
    base = base.model_copy(update={"mechanism": name})
    scenario = mechanism.draw(rng, base)
    slow_only = scenario.faults and all(FAULTS[each.cause].straggler_type for each in scenario.faults)
    if not slow_only or not mechanism.labels or rng.random() < NEAR_MISS_SHARE:
        return scenario
    for _ in range(ATTEMPTS):
        if slowdown(scenario, draw_noise(scenario)) - 1 >= VISIBLE_SLOWDOWN:
            break
        scenario = mechanism.draw(rng, base)
    return scenario


def _varied(rng: np.random.Generator, scenario: SimulationScenario) -> SimulationScenario:
    """The job with telemetry and machines that version 1 does not draw."""
    telemetry = scenario.telemetry
    bare, phases, ends, watched = rng.random(4)
    changes: dict[str, object] = {}
    if telemetry.exporters and bare < EXPORTERS_ONLY_SHARE:
        changes["steps_reported"] = False
    elif telemetry.exporters and phases < WITHOUT_PHASES_SHARE:
        changes["visibility"] = "minimal"
    if watched < ALL_WATCHDOGS_SHARE:
        changes["watchdogs"] = "all"
    early = ENDS_BEFORE_PAUSES_SHARE + ENDS_BEFORE_SAVES_SHARE
    if ends < early:
        place = "before saves" if ends < ENDS_BEFORE_SAVES_SHARE else "before pauses"
        changes["phase_accounting"] = telemetry.phase_accounting.model_copy(update={"step_ends": place})
    benign = scenario.benign
    largest = 1 + benign.slow_step_every * harmless.MAX_UNTIMED_SHARE
    if benign.slow_step_phase == "between" and benign.slow_step_factor > largest:
        benign = benign.model_copy(update={"slow_step_factor": largest})
    held = scenario.fleet.model_copy(update={"memory_share": rng.uniform(*MEMORY_SHARES)})
    second = scenario.model_copy(update={"corpus": 2, "fleet": held, "benign": benign})
    return changed(second, telemetry=changes)
