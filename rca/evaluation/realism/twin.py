"""Simulated twins of a capture: its job, victims, steps and slowdown; all else as the simulator draws it.

What a twin shares with its capture is what the campaign's plan decided. What is left to differ is what the
simulator claims about the world: how a fault that costs so much shows in phases and signals, and how restless
a healthy job is.
"""

from __future__ import annotations

import numpy as np

from rca.evaluation.realism.subject import Injected, Subject
from rca.simulation import FAULTS, Benign, Fault, HarmlessSignal, Scenario, Telemetry, sample_scenario
from rca.simulation.engine import slowdown
from rca.simulation.sampling_benign import sample_benign, sample_bursts, sample_late_batches
from rca.simulation.sampling_faults import sample_fault, sample_strength
from rca.simulation.sampling_telemetry import TESTBED_EXPORTERS

#: Severities a twin may have; the weakest still acts.
SEVERITIES = (0.02, 1.0)
#: Halvings of that range: to within 1 %, far finer than one job's noise.
BISECTIONS = 7
#: A slowdown below this is not told from none.
LEAST_RATIO = 1.02
#: Where a capture does not tell its slowdown.
USUAL_SEVERITY = 0.6


def twin(subject: Subject, seed: int) -> Scenario:
    """Draw one twin of a capture; the same seed gives the same one."""
    rng = np.random.default_rng(seed)
    base = _job(subject, rng)
    if not subject.faults:
        return base
    faults = tuple(_fault(each, base, rng) for each in subject.faults)
    drawn = _with_severity(base, faults, USUAL_SEVERITY)
    if subject.stops or not np.isfinite(subject.ratio):
        return drawn
    return _as_slow(drawn, max(subject.ratio, LEAST_RATIO))


def ratio_at(scenario: Scenario, severity: float) -> float:
    """Slowdown of a twin, had its faults this severity."""
    return slowdown(_with_severity(scenario, scenario.faults, float(np.clip(severity, *SEVERITIES))))


def reshaped(scenario: Scenario, **changes: object) -> Scenario:
    """The scenario with another shape; machines drawn for each node do not fit other nodes: all alike."""
    document = scenario.model_copy(update=changes).model_dump()
    document.pop("fleet", None)
    return Scenario.model_validate(document)


def _job(subject: Subject, rng: np.random.Generator) -> Scenario:
    drawn = sample_scenario(rng, cause="healthy", dialect="cpu_testbed")
    base = reshaped(
        drawn,
        parallelism=subject.parallelism,
        ranks_per_node=subject.ranks_per_node,
        n_steps=subject.n_steps,
        first_step_number=0,
        benign=Benign(),
        telemetry=Telemetry(
            exporters=TESTBED_EXPORTERS,
            interval_seconds=subject.interval_seconds,
            states_sampled=True,
            missing_phases=subject.missing_phases,
            load_columns=subject.sequences,
            events=subject.events,
            ending="finished" if subject.finished else "complete",
        ),
    )
    return base.model_copy(update={"benign": _benign(base, subject, rng)})


def _benign(base: Scenario, subject: Subject, rng: np.random.Generator) -> Benign:
    """Healthy variation with those confounders that somebody put into the capture, and no others."""
    loaded = "neighbour_load" in subject.benign
    drawn = sample_benign(rng, base, lengths_told=subject.sequences)
    late = sample_late_batches(rng, base) if "slow_warm_up" in subject.benign else (0, 0.0)
    return drawn.model_copy(
        update={
            "warmup_steps": max(drawn.warmup_steps, 1),
            "bursts": sample_bursts(rng, base) if "hiccup" in subject.benign else (),
            "slow_batches": late[0],
            "slow_batch_factor": late[1],
            "slow_step_every": 0,
            "slow_step_factor": 1.0,
            # Only jobs that report their sequences have any.
            "sequence_jitter": drawn.sequence_jitter if subject.sequences else 0.0,
            "shift_step": None,
            "shift_factor": 1.0,
            "harmless": (HarmlessSignal(kind="load"),) if loaded else (),
        }
    )


def _fault(injected: Injected, base: Scenario, rng: np.random.Generator) -> Fault:
    drawn = sample_fault(rng, base, injected.cause)
    known = injected.variant in FAULTS[injected.cause].variants
    variant = injected.variant if known else drawn.variant
    ranks = injected.ranks or drawn.ranks
    stops = FAULTS[injected.cause].straggler_type is None
    return drawn.model_copy(
        update={
            "variant": variant,
            "strength": sample_strength(rng, injected.cause, variant),
            "ranks": ranks,
            "nodes": injected.nodes or tuple(sorted({rank // base.ranks_per_node for rank in ranks})),
            "first_step": injected.first,
            "last_step": None if stops else injected.last,
            "pattern": None,
            "shape": "step",
        }
    )


def _with_severity(base: Scenario, faults: tuple[Fault, ...], severity: float) -> Scenario:
    changed = tuple(fault.model_copy(update={"severity": severity}) for fault in faults)
    return base.model_copy(update={"faults": changed})


def _as_slow(scenario: Scenario, ratio: float) -> Scenario:
    """The severity whose slowdown is the capture's, or the nearest end of the range."""
    low, high = SEVERITIES
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = ratio_at(scenario, middle) < ratio
        low, high = (middle, high) if below else (low, middle)
    return _with_severity(scenario, scenario.faults, high)
