"""Domain-randomised scenarios: jobs, machines, telemetry, and faults with ranks, steps and severity."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rca.lab.simulation.faults import FAULTS, FIRST_CAUSES
from rca.lab.simulation.faults.kind import Reach
from rca.lab.simulation.impact import VISIBLE_SLOWDOWN, Runs, slowdown
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.sampling_benign import sample_benign
from rca.lab.simulation.sampling_job import log_uniform, sample_job
from rca.lab.simulation.sampling_telemetry import sample_telemetry
from rca.lab.simulation.scenario import Dialect, Fault, Shape, SimulationScenario
from rca.window.causes import UNKNOWN

#: Steps in which a fault acts: all, all from some step on, or some in between.
Span = Literal["whole", "rest", "middle"]
# Causes that act from the first step to the last, always or mostly; the others' spans are mixed.
ALWAYS_ON = frozenset({"stage_imbalance"})
MOSTLY_ON = frozenset({"sequence_length_imbalance", "checkpoint_stall", "runtime_gc"})

# Share of stalls that delay single batches only, and the range of `Fault.late_share`.
RARE_SHARE, RARE_BATCHES = 0.35, (0.01, 0.3)
HEALTHY_SHARE = 0.35
COMPOUND_SHARE = 0.15
NEAR_MISS_SHARE = 0.06
ATTEMPTS = 10
DIALECTS: tuple[tuple[Dialect, float], ...] = (("gpu_cluster", 0.5), ("cpu_testbed", 0.35), ("mixed", 0.15))
# Fail-stop windows are easier and need fewer examples.
CAUSE_WEIGHTS = {cause: 0.6 if FAULTS[cause].straggler_type is None else 1.0 for cause in FIRST_CAUSES}
# Unknown causes are about as frequent as any two causes together.
CAUSE_WEIGHTS[UNKNOWN] = 1.6


def sample_fault(rng: np.random.Generator, scenario: SimulationScenario, cause: str) -> Fault:
    """Draw one fault of a cause for this job."""
    kind = FAULTS[cause]
    variant = kind.variants[int(rng.integers(len(kind.variants)))]
    ranks, nodes = _affected(rng, scenario, cause, variant)
    if kind.straggler_type is None:
        first, last = _stop_step(rng, scenario), None
    else:
        span = "whole" if variant == "older" else _span(rng, cause)
        first, last = _interval(rng, scenario.n_steps, span)
    return Fault(
        cause=cause,
        variant=variant,
        ranks=ranks,
        nodes=nodes,
        severity=float(rng.uniform(0.15, 1.0)),
        strength=sample_strength(rng, cause, variant),
        curve=log_uniform(rng, *FAULTS[cause].curve),
        first_step=first,
        last_step=last,
        shape=_shape(rng, cause),
        late_share=_late_share(rng, cause, variant),
    )


def sample_strength(rng: np.random.Generator, cause: str, variant: str) -> float:
    """Draw how strongly a cause's variant slows these machines."""
    kind = FAULTS[cause]
    return log_uniform(rng, *kind.strengths.get(variant, kind.strength))


def _late_share(rng: np.random.Generator, cause: str, variant: str) -> float:
    """Draw the share of late batches: slow storage or odd samples may delay single batches of any rank."""
    may_be_rare = cause == "data_loader_stall" or (cause == "storage_degradation" and variant != "throttle")
    return log_uniform(rng, *RARE_BATCHES) if may_be_rare and rng.random() < RARE_SHARE else 1.0


def _affected(
    rng: np.random.Generator, scenario: SimulationScenario, cause: str, variant: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    reach, world = FAULTS[cause].reach, scenario.world_size
    if variant in {"quota", "rank_hogs", "limit"} or (variant == "throttle" and rng.random() < 0.6):
        reach = "rank"
    if cause == UNKNOWN:
        reach = _unknown_reach(rng, variant)
    if variant in {"job", "unplanned", "all"} or reach == "job":
        return tuple(range(world)), tuple(range(scenario.n_nodes))
    if reach == "stage":
        return _stage(rng, scenario), ()
    if reach == "fabric":
        # Mostly all of it; one of several switches now and then.
        return _across(rng, scenario, share=1.0 if rng.random() < 0.7 else rng.uniform(0.6, 1.0))
    if reach == "node":
        node = int(rng.integers(scenario.n_nodes))
        if cause == "storage_degradation" and variant != "throttle" and rng.random() < 0.3:
            return _across(rng, scenario, share=rng.uniform(0.3, 1.0))
        return scenario.ranks_on(node), (node,)
    rank = int(rng.integers(world))
    node = rank // scenario.ranks_per_node
    # A rack's cooling or a power budget hits all GPUs of a node.
    if cause == "gpu_throttling" and rng.random() < 0.15:
        return scenario.ranks_on(node), (node,)
    if cause == "runtime_gc" or cause == "data_loader_stall" or rng.random() < 0.9:
        return (rank,), (node,)
    return _pair(rng, scenario, rank, node, stops=FAULTS[cause].straggler_type is None)


def _unknown_reach(rng: np.random.Generator, variant: str) -> Reach:
    """Draw what an unexplained slowness hits: mostly nodes; transfers mostly slow the whole fabric."""
    if variant == "transfer":
        return "fabric" if rng.random() < 0.8 else "node"
    return "node" if rng.random() < (0.9 if variant == "older" else 0.35) else "rank"


def _pair(
    rng: np.random.Generator, scenario: SimulationScenario, rank: int, node: int, *, stops: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mates = [other for other in scenario.ranks_on(node) if other != rank]
    if stops or not mates:
        return (rank,), (node,)
    return tuple(sorted((rank, int(rng.choice(mates))))), (node,)


def _across(
    rng: np.random.Generator, scenario: SimulationScenario, *, share: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    count = min(scenario.n_nodes, max(2, round(share * scenario.n_nodes)))
    nodes = sorted(int(node) for node in rng.choice(scenario.n_nodes, count, replace=False))
    return tuple(rank for node in nodes for rank in scenario.ranks_on(node)), tuple(nodes)


def _stage(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[int, ...]:
    stages = scenario.parallelism.pipeline
    stage = stages - 1 if rng.random() < 0.75 else int(rng.integers(stages))
    per_stage = scenario.world_size // stages
    return tuple(range(stage * per_stage, (stage + 1) * per_stage))


def _span(rng: np.random.Generator, cause: str) -> Span:
    if cause in ALWAYS_ON or (cause in MOSTLY_ON and rng.random() < 0.55):
        return "whole"
    choices: tuple[Span, ...] = ("middle", "rest", "whole")
    return choices[int(rng.choice(3, p=[0.45, 0.3, 0.25]))]


def _interval(rng: np.random.Generator, n_steps: int, span: Span) -> tuple[int, int]:
    if span == "whole":
        return 0, n_steps - 1
    if span == "rest":
        return max(1, int(n_steps * rng.uniform(0.12, 0.75))), n_steps - 1
    first = max(1, int(n_steps * rng.uniform(0.08, 0.7)))
    length = max(3, int(n_steps * rng.uniform(0.08, 0.6)))
    return first, max(first, min(first + length - 1, n_steps - 3))


def _stop_step(rng: np.random.Generator, scenario: SimulationScenario) -> int:
    return max(2, int(scenario.n_steps * rng.uniform(0.15, 0.98))) if scenario.n_steps > 3 else 1


def _shape(rng: np.random.Generator, cause: str) -> Shape:
    if cause in {"checkpoint_stall", "sequence_length_imbalance", "stage_imbalance"}:
        return "step"
    choices: tuple[Shape, ...] = ("step", "ramp", "intermittent")
    return choices[int(rng.choice(3, p=[0.75, 0.13, 0.12]))]


def sample_scenario(
    rng: np.random.Generator, *, cause: str | None = None, dialect: Dialect | None = None
) -> SimulationScenario:
    """Draw a scenario.

    Parameters
    ----------
    cause : str, optional
        ``healthy`` or a catalogue id that the scenario must contain. By default about a third is healthy, and
        the rest spreads over all causes, some with two at once.
    dialect : {"gpu_cluster", "cpu_testbed", "mixed"}, optional

    Notes
    -----
    Faults are redrawn until they cost at least 5 % of a step, except for a few near misses on purpose.
    """
    if cause is not None and cause != "healthy" and cause not in FIRST_CAUSES:
        raise ValueError(f"unknown cause {cause!r}; expected 'healthy' or one of {sorted(FIRST_CAUSES)}")
    if cause is None:
        cause = "healthy" if rng.random() < HEALTHY_SHARE else _pick_cause(rng)
    if dialect is None:
        dialect = _pick_dialect(rng, cause)
    base = healthy_base(rng, dialect, cause)
    if cause == "healthy":
        return base
    near_miss = rng.random() < NEAR_MISS_SHARE
    scenario, noise = base, draw_noise(base)
    healthy = Runs(base, noise)
    for _ in range(ATTEMPTS):
        scenario = _revalidated(base, faults=_faults(rng, base, cause))
        fail_stop = FAULTS[scenario.faults[0].cause].straggler_type is None
        if near_miss or fail_stop or slowdown(scenario, noise, calm=healthy.calm) - 1 >= VISIBLE_SLOWDOWN:
            break
    return scenario


def _pick_dialect(rng: np.random.Generator, cause: str) -> Dialect:
    names, weights = zip(*DIALECTS, strict=True)
    dialect: Dialect = names[int(rng.choice(len(names), p=weights))]
    # The testbed's nodes have no links inside them.
    return "mixed" if cause == "nvlink_degradation" and dialect == "cpu_testbed" else dialect


def healthy_base(rng: np.random.Generator, dialect: Dialect, cause: str) -> SimulationScenario:
    """Draw a healthy job that can suffer the cause."""
    job = sample_job(rng, dialect, cause)
    draft = SimulationScenario(seed=int(rng.integers(0, 2**31)), dialect=dialect, **job)
    telemetry = sample_telemetry(rng, draft, cause)
    benign = sample_benign(rng, draft, lengths_reported=telemetry.load_columns)
    return _revalidated(draft, benign=benign, telemetry=telemetry)


def _faults(rng: np.random.Generator, base: SimulationScenario, cause: str) -> tuple[Fault, ...]:
    first = sample_fault(rng, base, cause)
    if rng.random() >= COMPOUND_SHARE:
        return (first,)
    others = [other for other in FIRST_CAUSES if other != cause and FAULTS[other].straggler_type is not None]
    fitting = [other for other in others if FAULTS[other].reach != "stage" or base.parallelism.pipeline > 1]
    return (first, sample_fault(rng, base, fitting[int(rng.integers(len(fitting)))]))


def _pick_cause(rng: np.random.Generator) -> str:
    causes = list(FIRST_CAUSES)
    weights = np.array([CAUSE_WEIGHTS[name] for name in causes])
    return causes[int(rng.choice(len(causes), p=weights / weights.sum()))]


def _revalidated(scenario: SimulationScenario, **changes: object) -> SimulationScenario:
    return SimulationScenario.model_validate(scenario.model_copy(update=changes).model_dump())
