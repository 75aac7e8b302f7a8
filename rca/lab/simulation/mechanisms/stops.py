"""Mechanisms of stopped jobs: gangs, ports that flap, hangs of several kinds, ranks that vanish."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.mechanisms.parts import (
    changed,
    fault,
    on_nodes,
    on_ranks,
    whole,
    with_exporters,
)
from rca.lab.simulation.mechanisms.slow import CHRONIC_CAUSES
from rca.lab.simulation.sampling import sample_fault
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import Fault, SimulationScenario

#: Steps of silence after a hang, log-uniform.
SILENCE = (20.0, 1000.0)
#: Longest silence, seconds.
MAX_SILENCE = 3600.0


def gang(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """End one rank first; all others notice it up to a minute later, and exit with the same code."""
    crashed = _stop(rng, base, "process_crash", "gang", [int(rng.integers(base.world_size))])
    return changed(base, faults=(crashed,), telemetry={"events": True})


def flapping_port(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let a node's port go down now and then, until the job ends of it."""
    node = int(rng.integers(base.n_nodes))
    stop = _stop_step(rng, base, earliest=4)
    where = on_nodes(base, [node])
    crashed = Fault(cause="process_crash", variant="link", severity=1.0, first_step=stop, **where)
    first = int(stop * rng.uniform(0.0, 0.6))
    flaps = Fault(
        cause="nic_degradation",
        variant="flap",
        severity=rng.uniform(0.3, 1.0),
        strength=rng.uniform(0.5, 2.0),
        every=max(1, int((stop - first) / rng.uniform(2, 8))),
        seconds=log_uniform(rng, 0.5, 8.0) * base.expected_step_seconds,
        first_step=first,
        last_step=stop - 1,
        **where,
    )
    drawn = changed(base, faults=(crashed, flaps), telemetry={"events": bool(rng.random() < 0.85)})
    return with_exporters(drawn, "infiniband") if rng.random() < 0.8 else drawn


def hang_after_slowness(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let a chronically slow job hang, with up to a thousand steps of silence."""
    lengths = rng.random() < 0.35
    cause = "sequence_length_imbalance" if lengths else str(rng.choice(CHRONIC_CAUSES))
    slow = sample_fault(rng, base, cause).model_copy(update=whole(base))
    hung = _hang(rng, base, _stop_step(rng, base, earliest=4), [int(rng.integers(base.world_size))])
    return changed(base, faults=(hung, slow))


def hang_before_first_step(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Stop before any step ends: there are rows of begun steps, and what the watchdogs say."""
    hung = _hang(rng, base, 0, _apart(rng, base))
    return changed(
        base,
        faults=(hung,),
        telemetry={
            "begun_steps_reported": bool(rng.random() < 0.85),
            "events": True,
            "watchdogs": "all",
            "rows_skipped": 0,
        },
    )


def silent_hang(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let one to three ranks hang; the watchdogs of all others report it, theirs do not."""
    hung = _hang(rng, base, _stop_step(rng, base, earliest=2), _apart(rng, base))
    return changed(base, faults=(hung,), telemetry={"events": True, "watchdogs": "all"})


def vanished_rank(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """End a rank without any event: only its idle and empty device shows it, while the others spin."""
    rank = int(rng.integers(base.world_size))
    gone = _stop(rng, base, "process_crash", "vanished", [rank])
    gone = gone.model_copy(update={"silence": _silence(rng, base)})
    kept = base.telemetry.exporters
    if rng.random() < 0.7:
        kept = tuple(name for name in kept if name not in {"process", "container", "python"})
    drawn = changed(
        base,
        faults=(gone,),
        telemetry={
            "events": False,
            "forgets_dead": True,
            "exporters": kept,
            "begun_steps_reported": bool(rng.random() < 0.4),
        },
    )
    return with_exporters(drawn, "dcgm")


def _stop(
    rng: np.random.Generator, base: SimulationScenario, cause: str, variant: str, ranks: list[int]
) -> Fault:
    first = _stop_step(rng, base, earliest=2)
    return fault(base, cause, variant=variant, **on_ranks(base, ranks), first_step=first, last_step=None)


def _hang(rng: np.random.Generator, base: SimulationScenario, step: int, ranks: list[int]) -> Fault:
    variant = str(rng.choice(["stopped", "deadlock", "deadlock"]))
    return fault(
        base,
        "hang",
        variant=variant,
        **on_ranks(base, ranks),
        first_step=step,
        last_step=None,
        silence=_silence(rng, base),
    )


def _silence(rng: np.random.Generator, base: SimulationScenario) -> float:
    return min(log_uniform(rng, *SILENCE), MAX_SILENCE / base.expected_step_seconds)


def _stop_step(rng: np.random.Generator, base: SimulationScenario, earliest: int) -> int:
    return int(
        np.clip(base.n_steps * rng.uniform(0.15, 0.98), min(earliest, base.n_steps - 1), base.n_steps - 1)
    )


def _apart(rng: np.random.Generator, base: SimulationScenario) -> list[int]:
    """Draw one to three ranks, mostly on different nodes, and fewer than half of all."""
    count = min(int(rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])), max(1, (base.world_size - 1) // 2))
    return [int(rank) for rank in rng.choice(base.world_size, count, replace=False)]
