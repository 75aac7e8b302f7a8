"""Draws of the healthy variation of jobs, including signals that look like faults."""

from __future__ import annotations

import math
from typing import TypedDict, get_args

import numpy as np

from rca.lab.simulation.faults import GC_PAUSE_SPREAD
from rca.lab.simulation.healthy_job import (
    Benign,
    Burst,
    Counted,
    GcPauses,
    HarmlessSignal,
    LongStall,
    SlowStepPhase,
)
from rca.lab.simulation.sampling_job import CALM_QUEUE, log_uniform
from rca.lab.simulation.scenario import SimulationScenario

SLOW_STEP_PHASES = get_args(SlowStepPhase)
HARMLESS_KINDS = get_args(HarmlessSignal.model_fields["kind"].annotation)
#: Only kernel noise below it may last for many steps.
MAX_LASTING_NOISE = 0.012
#: Share of jobs with garbage collector pauses, and share of these with pauses in every step.
GC_SHARE, GC_EVERY_STEP_SHARE = 0.35, 0.45
#: Longest pause of an occasional collection, in usual steps. For pauses in every step: share of a step that
#: the slowest rank's pauses take, and spread of lasting factors between ranks.
MAX_GC_PAUSE, EVERY_STEP_GC_COST, GC_UNEVENNESS = 0.3, (1e-3, 0.04), (0.02, 0.6)
#: Share of jobs with a change of work from some step on, and the largest factor.
CHANGING_SHARE, MAX_CHANGE = 0.06, 3.0
CHANGE_COUNTED: tuple[Counted, ...] = ("nothing", "samples", "lengths")
#: Random stream of these draws, apart from the scenario's other draws.
_WORK_STREAM = 18
#: Share of jobs with single long steps, and the longest, in usual steps.
EVENTFUL_SHARE, MAX_EVENT = 0.15, 100.0


def sample_benign(
    rng: np.random.Generator, scenario: SimulationScenario, *, lengths_reported: bool
) -> Benign:
    """Draw the healthy variation; where a job reports its sequence lengths, they mostly vary."""
    testbed = scenario.dialect == "cpu_testbed"
    warm = scenario.first_step_number == 0
    every = int(log_uniform(rng, 4, 120)) if rng.random() < 0.25 else 0
    place: SlowStepPhase = SLOW_STEP_PHASES[int(rng.choice(3, p=[0.4, 0.3, 0.3]))]
    # A healthy job spends up to a few per cent of its time on checkpoints, and any share on evaluation.
    share = log_uniform(rng, 0.003, 0.045) if place == "checkpoint" else log_uniform(rng, 0.005, 0.8)
    shifted = rng.random() < 0.06
    kernels = log_uniform(rng, 0.0007, 0.06) if testbed else log_uniform(rng, 0.002, 0.04)
    late = sample_late_batches(rng, scenario) if warm and rng.random() < 0.25 else (0, 0.0)
    return Benign(
        rank_offset=log_uniform(rng, 0.0001, 0.016) if testbed else log_uniform(rng, 0.001, 0.012),
        copy_offset=log_uniform(rng, 0.004, 0.1) if testbed else log_uniform(rng, 0.001, 0.03),
        loading_noise=rng.uniform(0.3, 1.2),
        gap_noise=rng.uniform(0.1, 0.9),
        # Kernel times vary little: single stalls of hosts cause most of the variation between steps.
        noise=kernels,
        # Large lasting deviations are not noise.
        noise_memory=rng.uniform(0.0, 0.95 if kernels < MAX_LASTING_NOISE else 0.7),
        backward_calm=log_uniform(rng, 0.08, 0.8) if testbed else log_uniform(rng, 0.4, 1.6),
        common_noise=max(0.0, rng.uniform(-0.6, 0.35)) ** 2 if testbed else rng.beta(1.2, 0.6),
        copy_noise=log_uniform(rng, 0.03, 0.3) if testbed else log_uniform(rng, 0.02, 0.15),
        optimizer_noise=log_uniform(rng, 0.002, 0.05),
        p2p_noise=log_uniform(rng, 0.05, 1.5),
        transfer_noise=log_uniform(rng, 0.04, 0.5) if testbed else log_uniform(rng, 0.008, 0.15),
        transfer_ends=log_uniform(rng, 0.004, 0.08) if testbed else log_uniform(rng, 0.001, 0.03),
        settling=log_uniform(rng, 0.02, 0.5) if warm and rng.random() < 0.3 else 0.0,
        hiccup_probability=_hiccups(rng, scenario),
        hiccup_scale=log_uniform(rng, 0.02, 0.2) if testbed else rng.uniform(0.05, 0.5),
        hiccup_spread=rng.uniform(0.0, 1.0),
        hiccup_backward=log_uniform(rng, 0.02, 0.35),
        queue_spread=log_uniform(rng, 0.02, 0.3),
        bursts=sample_bursts(rng, scenario) if rng.random() < (0.25 if testbed else 0.12) else (),
        gc_pauses=_gc_pauses(rng, scenario) if rng.random() < GC_SHARE else None,
        slow_batches=late[0],
        slow_batch_factor=late[1],
        drift=log_uniform(rng, 0.001, 0.05) if rng.random() < 0.5 else 0.0,
        warmup_steps=int(rng.choice([1, 1, 1, 2, 3])) if warm else 0,
        warmup_factor=log_uniform(rng, 1.1, 15),
        slow_step_every=every,
        slow_step_factor=1 + every * share,
        slow_step_phase=place,
        slow_step_spread=log_uniform(rng, 0.005, 0.4),
        slow_step_alone=bool(place == "checkpoint" and rng.random() < 0.3),
        sequence_jitter=_jitter(rng, scenario, lengths_reported=lengths_reported),
        **_change_of_work(scenario, _change_of_compute(rng, scenario) if shifted else {}),
        harmless=_harmless(rng, scenario),
        events=sample_events(rng, scenario) if rng.random() < EVENTFUL_SHARE else (),
    )


class _Change(TypedDict, total=False):
    shift_step: int
    shift_factor: float
    shift_ramp: int
    shift_counted: Counted


def _change_of_compute(rng: np.random.Generator, scenario: SimulationScenario) -> _Change:
    """Draw a sudden change of the compute, for example of a part of the model; the input stays the same."""
    return {"shift_step": int(rng.integers(1, scenario.n_steps)), "shift_factor": rng.uniform(1.05, 1.6)}


def _change_of_work(scenario: SimulationScenario, instead_of: _Change) -> _Change:
    """Draw a sudden or gradual change of batches or sequences, from a separate random stream."""
    rng = np.random.default_rng([scenario.seed, _WORK_STREAM])
    if rng.random() >= CHANGING_SHARE:
        return instead_of
    counted: Counted = CHANGE_COUNTED[int(rng.choice(3, p=[0.2, 0.5, 0.3]))]
    factor, slowly = log_uniform(rng, 1.08, MAX_CHANGE), rng.random() < 0.4
    return {
        "shift_step": int(rng.integers(0 if slowly else 1, scenario.n_steps)),
        "shift_factor": factor if rng.random() < 0.75 else 1.0 / factor,
        "shift_ramp": int(log_uniform(rng, 2, 2 * scenario.n_steps)) if slowly else 0,
        "shift_counted": counted,
    }


def _gc_pauses(rng: np.random.Generator, scenario: SimulationScenario) -> GcPauses:
    """Draw pauses that cost a few tenths of a per cent of a step.

    Where ranks do not collect together, the job waits for the pauses of every rank. A step with small pauses
    on all ranks waits for the longest one.
    """
    if rng.random() < GC_EVERY_STEP_SHARE:
        uneven = log_uniform(rng, *GC_UNEVENNESS)
        worst = math.exp(
            math.hypot(uneven, GC_PAUSE_SPREAD) * math.sqrt(2 * math.log(scenario.world_size + 1))
        )
        seconds = log_uniform(rng, *EVERY_STEP_GC_COST) / worst * scenario.expected_step_seconds
        return GcPauses(every=1, seconds=seconds, together=False, uneven=uneven)
    together, every = bool(rng.random() < 0.5), int(log_uniform(rng, 4, 120))
    share = min(log_uniform(rng, 1e-4, 8e-3), MAX_GC_PAUSE / every)
    if not together:
        share = min(share, 0.02 / scenario.world_size)
    return GcPauses(every=every, seconds=share * every * scenario.expected_step_seconds, together=together)


def _hiccups(rng: np.random.Generator, scenario: SimulationScenario) -> float:
    """Draw how often a rank stalls for a moment; ranks that share cores stall often and briefly."""
    if scenario.dialect != "cpu_testbed":
        return log_uniform(rng, 1e-4, 4e-3)
    calm = scenario.workload.run_queue_share < CALM_QUEUE
    return log_uniform(rng, 5e-4, 0.03) if calm else log_uniform(rng, 0.02, 0.25)


def _jitter(rng: np.random.Generator, scenario: SimulationScenario, *, lengths_reported: bool) -> float:
    """Draw how unequal healthy replicas' input is; pipelined models are mostly language models."""
    usual = 0.6 if scenario.parallelism.pipeline > 1 else 0.2
    return log_uniform(rng, 0.002, 0.035) if rng.random() < (0.95 if lengths_reported else usual) else 0.0


def sample_bursts(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[Burst, ...]:
    """Draw one or two short bursts of a neighbour."""
    longest = max(1, min(5, scenario.n_steps // 20))
    return tuple(
        Burst(
            node=int(rng.integers(scenario.n_nodes)),
            first_step=int(rng.integers(scenario.n_steps)),
            steps=int(rng.integers(1, longest + 1)),
            level=rng.uniform(0.45, 0.9),
        )
        for _ in range(int(rng.integers(1, 3)))
    )


def sample_events(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[LongStall, ...]:
    """Draw one or two single long steps, heavy-tailed: of one rank mostly, or of a node or all ranks."""
    world = scenario.world_size
    found = []
    for _ in range(int(rng.choice([1, 2], p=[0.75, 0.25]))):
        rank = int(rng.integers(world))
        reach = rng.random()
        mates = scenario.ranks_on(rank // scenario.ranks_per_node) if reach > 0.7 else (rank,)
        ranks = tuple(range(world)) if reach > 0.9 else tuple(mates)
        length = min(0.5 * (1 + float(rng.pareto(0.8))), MAX_EVENT)
        found.append(LongStall(ranks=ranks, step=int(rng.integers(scenario.n_steps)), length=length))
    return tuple(found)


def sample_late_batches(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[int, float]:
    """Draw the number of late batches of a starting job, and the delay of each in steps."""
    return int(rng.integers(1, max(2, min(10, scenario.n_steps // 6)))), log_uniform(rng, 0.1, 1.5)


def _harmless(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[HarmlessSignal, ...]:
    count = int(rng.choice([0, 1, 2], p=[0.6, 0.3, 0.1]))
    return tuple(
        HarmlessSignal(kind=str(rng.choice(HARMLESS_KINDS)), rank=int(rng.integers(scenario.world_size)))
        for _ in range(count)
    )
