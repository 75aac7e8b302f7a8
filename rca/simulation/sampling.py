"""Domain-randomised scenarios: other machines, other sizes, other blind spots in every draw."""

from __future__ import annotations

import numpy as np

from rca.simulation.engine import slowdown
from rca.simulation.faults import FAULTS
from rca.simulation.label import VISIBLE_SLOWDOWN
from rca.simulation.noise import draw_noise
from rca.simulation.sampling_benign import sample_benign
from rca.simulation.sampling_faults import sample_fault
from rca.simulation.sampling_job import sample_job
from rca.simulation.sampling_telemetry import sample_telemetry
from rca.simulation.scenario import Dialect, Fault, Scenario
from rca.telemetry.causes import UNKNOWN

HEALTHY_SHARE = 0.35
COMPOUND_SHARE = 0.15
NEAR_MISS_SHARE = 0.06
ATTEMPTS = 10
DIALECTS: tuple[tuple[Dialect, float], ...] = (("gpu_cluster", 0.5), ("cpu_testbed", 0.35), ("mixed", 0.15))
# Fail-stop windows are easier and need fewer examples.
CAUSE_WEIGHTS = {cause: 0.6 if kind.straggler_type is None else 1.0 for cause, kind in FAULTS.items()}
# What nobody thought of is about as frequent as any two causes together.
CAUSE_WEIGHTS[UNKNOWN] = 1.6


def sample_scenario(
    rng: np.random.Generator, *, cause: str | None = None, dialect: Dialect | None = None
) -> Scenario:
    """Draw a scenario.

    Parameters
    ----------
    rng : numpy.random.Generator
    cause : str, optional
        ``healthy`` or a catalogue id that the scenario must contain; by default about a third is healthy and
        the rest spreads over all causes, some with two at once.
    dialect : {"gpu_cluster", "cpu_testbed", "mixed"}, optional

    Notes
    -----
    Faults are redrawn until they cost at least 5 % of a step, except for a few near misses on purpose.
    """
    if cause is not None and cause != "healthy" and cause not in FAULTS:
        raise ValueError(f"unknown cause {cause!r}; expected 'healthy' or one of {sorted(FAULTS)}")
    if cause is None:
        cause = "healthy" if rng.random() < HEALTHY_SHARE else _pick_cause(rng)
    if dialect is None:
        dialect = _pick_dialect(rng, cause)
    base = _base(rng, dialect, cause)
    if cause == "healthy":
        return base
    near_miss = rng.random() < NEAR_MISS_SHARE
    scenario, noise = base, draw_noise(base)
    for _ in range(ATTEMPTS):
        scenario = _revalidated(base, faults=_faults(rng, base, cause))
        fail_stop = FAULTS[scenario.faults[0].cause].straggler_type is None
        if near_miss or fail_stop or slowdown(scenario, noise) - 1 >= VISIBLE_SLOWDOWN:
            break
    return scenario


def _pick_dialect(rng: np.random.Generator, cause: str) -> Dialect:
    names, weights = zip(*DIALECTS, strict=True)
    dialect: Dialect = names[int(rng.choice(len(names), p=weights))]
    # The testbed's nodes have no links inside them.
    return "mixed" if cause == "nvlink_degradation" and dialect == "cpu_testbed" else dialect


def _base(rng: np.random.Generator, dialect: Dialect, cause: str) -> Scenario:
    job = sample_job(rng, dialect, cause)
    draft = Scenario(seed=int(rng.integers(0, 2**31)), dialect=dialect, **job)
    telemetry = sample_telemetry(rng, draft, cause)
    benign = sample_benign(rng, draft, lengths_told=telemetry.load_columns)
    return _revalidated(draft, benign=benign, telemetry=telemetry)


def _faults(rng: np.random.Generator, base: Scenario, cause: str) -> tuple[Fault, ...]:
    first = sample_fault(rng, base, cause)
    if rng.random() >= COMPOUND_SHARE:
        return (first,)
    others = [other for other in FAULTS if other != cause and FAULTS[other].straggler_type is not None]
    fitting = [other for other in others if FAULTS[other].reach != "stage" or base.parallelism.pipeline > 1]
    return (first, sample_fault(rng, base, fitting[int(rng.integers(len(fitting)))]))


def _pick_cause(rng: np.random.Generator) -> str:
    causes = list(FAULTS)
    weights = np.array([CAUSE_WEIGHTS[name] for name in causes])
    return causes[int(rng.choice(len(causes), p=weights / weights.sum()))]


def _revalidated(scenario: Scenario, **changes: object) -> Scenario:
    return Scenario.model_validate(scenario.model_copy(update=changes).model_dump())
