"""Simulated twins of a capture: same job, victims, steps and slowdown; the simulator draws all else.

A twin shares with its capture what the campaign's plan decided. The rest is the simulator's model: how a
fault of that cost shows in phases and signals, and how much a healthy job varies.
"""

from __future__ import annotations

import numpy as np

from rca.evaluation.realism.capture_plan import CapturePlan, InjectedFault
from rca.simulation import FAULTS, Benign, Fault, HarmlessSignal, Scenario, Telemetry, sample_scenario
from rca.simulation.impact import Runs, slowdown
from rca.simulation.noise import draw_noise
from rca.simulation.sampling import sample_fault, sample_strength
from rca.simulation.sampling_benign import sample_benign, sample_bursts, sample_late_batches
from rca.simulation.sampling_telemetry import TESTBED_EXPORTERS

#: Range of a twin's severity; the lowest one still has an effect.
SEVERITIES = (0.02, 1.0)
#: Bisections of that range, which end within 1 % of it. One job's noise is larger.
BISECTIONS = 7
#: Smallest slowdown that a twin aims at; less cannot be distinguished from none.
LEAST_RATIO = 1.02
#: Severity where the capture's slowdown is unknown.
USUAL_SEVERITY = 0.6


def twin(plan: CapturePlan, seed: int) -> Scenario:
    """Draw one twin of a capture; the same seed gives the same twin."""
    rng = np.random.default_rng(seed)
    base = _job(plan, rng)
    if not plan.faults:
        return base
    faults = tuple(_fault(each, base, rng) for each in plan.faults)
    drawn = _with_severity(base, faults, USUAL_SEVERITY)
    if plan.stops or not np.isfinite(plan.ratio):
        return drawn
    return _as_slow(drawn, max(plan.ratio, LEAST_RATIO))


def ratio_at(scenario: Scenario, severity: float, healthy: Runs | None = None) -> float:
    """Slowdown of a twin whose faults have this severity; `healthy` are runs of it that are known."""
    healthy = healthy or Runs(scenario, draw_noise(scenario))
    twin = _with_severity(scenario, scenario.faults, float(np.clip(severity, *SEVERITIES)))
    return slowdown(twin, healthy.noise, calm=healthy.calm)


def _reshaped(scenario: Scenario, **changes: object) -> Scenario:
    """The scenario with another shape. Its nodes become equal: a fleet drawn for other nodes does not fit."""
    document = scenario.model_copy(update=changes).model_dump()
    document.pop("fleet", None)
    return Scenario.model_validate(document)


def _job(plan: CapturePlan, rng: np.random.Generator) -> Scenario:
    drawn = sample_scenario(rng, cause="healthy", dialect="cpu_testbed")
    base = _reshaped(
        drawn,
        parallelism=plan.parallelism,
        ranks_per_node=plan.ranks_per_node,
        n_steps=plan.n_steps,
        first_step_number=0,
        benign=Benign(),
        telemetry=Telemetry(
            exporters=TESTBED_EXPORTERS,
            interval_seconds=plan.interval_seconds,
            states_sampled=True,
            missing_phases=plan.missing_phases,
            load_columns=plan.sequences,
            events=plan.events,
            ending="finished" if plan.finished else "complete",
        ),
    )
    return base.model_copy(update={"benign": _benign(base, plan, rng)})


def _benign(base: Scenario, plan: CapturePlan, rng: np.random.Generator) -> Benign:
    """Healthy variation with the confounders that were put into the capture, and no others."""
    loaded = "neighbour_load" in plan.benign
    drawn = sample_benign(rng, base, lengths_reported=plan.sequences)
    late = sample_late_batches(rng, base) if "slow_warm_up" in plan.benign else (0, 0.0)
    return drawn.model_copy(
        update={
            "warmup_steps": max(drawn.warmup_steps, 1),
            "bursts": sample_bursts(rng, base) if "hiccup" in plan.benign else (),
            "slow_batches": late[0],
            "slow_batch_factor": late[1],
            "slow_step_every": 0,
            "slow_step_factor": 1.0,
            # Only jobs that report their sequences have any.
            "sequence_jitter": drawn.sequence_jitter if plan.sequences else 0.0,
            "shift_step": None,
            "shift_factor": 1.0,
            "harmless": (HarmlessSignal(kind="load"),) if loaded else (),
        }
    )


def _fault(injected: InjectedFault, base: Scenario, rng: np.random.Generator) -> Fault:
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
    """Set the severity that gives this slowdown, or the nearest end of the range."""
    low, high = SEVERITIES
    healthy = Runs(scenario, draw_noise(scenario))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = ratio_at(scenario, middle, healthy) < ratio
        low, high = (middle, high) if below else (low, middle)
    return _with_severity(scenario, scenario.faults, high)
