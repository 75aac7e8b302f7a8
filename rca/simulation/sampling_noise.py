"""Draws of everything that is not a fault: benign variation, and what telemetry shows or loses."""

from __future__ import annotations

import math
from typing import TypedDict, get_args

import numpy as np

from rca.simulation.benign import Benign, Burst, Collections, HarmlessSignal, LongStall, SlowStepPhase
from rca.simulation.everyday import PAUSES_SPREAD
from rca.simulation.sampling_job import CALM_QUEUE, log_uniform
from rca.simulation.scenario import (
    LEAST_ROWS,
    Booking,
    DeviceWait,
    Ending,
    Scenario,
    SkewedBy,
    Telemetry,
    Visibility,
)

SLOW_STEP_PHASES = get_args(SlowStepPhase)
HARMLESS_KINDS = get_args(HarmlessSignal.model_fields["kind"].annotation)
TESTBED_EXPORTERS = (
    "cpu", "pressure", "memory", "disk", "network", "tcp", "qdisc", "process", "container", "python",
)  # fmt: skip
CLUSTER_EXPORTERS = ("dcgm", "dcgm_profiling", "cpu", "pressure", "memory", "disk", "network", "infiniband")
MIXED_EXPORTERS = (*CLUSTER_EXPORTERS, "process", "container", "python")
OPTIONAL_PHASES = (
    "data_loading_seconds", "host_to_device_seconds", "optimizer_seconds", "checkpoint_seconds", "gc_seconds",
)  # fmt: skip
CORE_PHASES = (
    "forward_seconds", "backward_seconds", "communication_wait_seconds", "communication_transfer_seconds",
)  # fmt: skip
MAX_SAMPLES = 120
#: Operations are traced in this share of jobs of at most so many ranks.
TRACED_SHARE, TRACED_RANKS = 0.02, 64
#: Beyond so many ranks the ends of single operations are not kept.
MANY_RANKS = 512
#: Share of clusters' jobs whose timers see launches, because the host does not wait for its device.
LAUNCHES_ONLY = 0.12
#: Share of windows that exporters cover for longer than rows.
MARGIN_SHARE = 0.15
#: Share of jobs whose device exporters collect less often than they are scraped.
HELD_SHARE = 0.25
#: Kernels' noise below it may last for many steps.
LASTING_NOISE = 0.012
#: Share of jobs whose collector runs, and of these those where it does so in every step.
COLLECTING_SHARE, COLLECTING_ALWAYS = 0.35, 0.45
#: The longest pause of a collector that runs now and then, in usual steps. Where every step has some: shares
#: of a step that the unluckiest rank's pauses take, and how unequal they are for good.
LONGEST_COLLECTION, USUAL_COLLECTIONS, UNEVEN_COLLECTIONS = 0.3, (1e-3, 0.04), (0.02, 0.6)
#: Share of jobs with single long steps, and the longest, in usual steps.
EVENTFUL_SHARE, LONGEST_EVENT = 0.15, 100.0


def sample_benign(rng: np.random.Generator, scenario: Scenario, *, lengths_told: bool) -> Benign:
    """Healthy variation; where a job reports its sequences' lengths, they do vary."""
    testbed = scenario.dialect == "cpu_testbed"
    warm = scenario.first_step_number == 0
    calm = testbed and scenario.workload.run_queue_share < CALM_QUEUE
    every = int(log_uniform(rng, 4, 120)) if rng.random() < 0.25 else 0
    place: SlowStepPhase = SLOW_STEP_PHASES[int(rng.choice(3, p=[0.4, 0.3, 0.3]))]
    # A healthy job spends up to a few per cent of its time on checkpoints; on evaluation whatever one likes.
    share = log_uniform(rng, 0.003, 0.045) if place == "checkpoint" else log_uniform(rng, 0.005, 0.8)
    shifted = rng.random() < 0.06
    kernels = log_uniform(rng, 0.0007, 0.06) if testbed else log_uniform(rng, 0.002, 0.04)
    late = sample_late_batches(rng, scenario) if warm and rng.random() < 0.25 else (0, 0.0)
    return Benign(
        rank_offset=log_uniform(rng, 0.0001, 0.016) if testbed else log_uniform(rng, 0.001, 0.012),
        copy_offset=log_uniform(rng, 0.004, 0.1) if testbed else log_uniform(rng, 0.001, 0.03),
        loading_noise=rng.uniform(0.3, 1.2),
        gap_noise=rng.uniform(0.1, 0.9),
        # Kernels themselves are even; what makes steps restless are mostly single stalls of their hosts.
        noise=kernels,
        # What lasts and is large is no noise any more.
        noise_memory=rng.uniform(0.0, 0.95 if kernels < LASTING_NOISE else 0.7),
        backward_calm=log_uniform(rng, 0.08, 0.8) if testbed else log_uniform(rng, 0.4, 1.6),
        common_noise=max(0.0, rng.uniform(-0.6, 0.35)) ** 2 if testbed else rng.beta(1.2, 0.6),
        copy_noise=log_uniform(rng, 0.03, 0.3) if testbed else log_uniform(rng, 0.02, 0.15),
        optimizer_noise=log_uniform(rng, 0.002, 0.05),
        p2p_noise=log_uniform(rng, 0.05, 1.5),
        transfer_noise=log_uniform(rng, 0.04, 0.5) if testbed else log_uniform(rng, 0.008, 0.15),
        transfer_ends=log_uniform(rng, 0.004, 0.08) if testbed else log_uniform(rng, 0.001, 0.03),
        settling=log_uniform(rng, 0.02, 0.5) if warm and rng.random() < 0.3 else 0.0,
        hiccup_probability=_hiccups(rng, testbed=testbed, calm=calm),
        hiccup_scale=log_uniform(rng, 0.02, 0.2) if testbed else rng.uniform(0.05, 0.5),
        hiccup_spread=rng.uniform(0.0, 1.0),
        hiccup_backward=log_uniform(rng, 0.02, 0.35),
        queue_spread=log_uniform(rng, 0.02, 0.3),
        bursts=sample_bursts(rng, scenario) if rng.random() < (0.25 if testbed else 0.12) else (),
        collections=_collections(rng, scenario) if rng.random() < COLLECTING_SHARE else None,
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
        sequence_jitter=_jitter(rng, scenario, lengths_told=lengths_told),
        shift_step=int(rng.integers(1, scenario.n_steps)) if shifted else None,
        shift_factor=rng.uniform(1.05, 1.6) if shifted else 1.0,
        harmless=_harmless(rng, scenario),
        events=sample_events(rng, scenario) if rng.random() < EVENTFUL_SHARE else (),
    )


def _collections(rng: np.random.Generator, scenario: Scenario) -> Collections:
    """Pauses that cost a few tenths of a per cent; who does not collect together pays for everybody's.

    Small ones in every step are mostly part of everybody's step; a step waits for the unluckiest rank.
    """
    if rng.random() < COLLECTING_ALWAYS:
        uneven = log_uniform(rng, *UNEVEN_COLLECTIONS)
        worst = math.exp(math.hypot(uneven, PAUSES_SPREAD) * math.sqrt(2 * math.log(scenario.world_size + 1)))
        seconds = log_uniform(rng, *USUAL_COLLECTIONS) / worst * scenario.expected_step_seconds
        return Collections(every=1, seconds=seconds, together=False, uneven=uneven)
    together, every = bool(rng.random() < 0.5), int(log_uniform(rng, 4, 120))
    share = min(log_uniform(rng, 1e-4, 8e-3), LONGEST_COLLECTION / every)
    if not together:
        share = min(share, 0.02 / scenario.world_size)
    return Collections(every=every, seconds=share * every * scenario.expected_step_seconds, together=together)


def _hiccups(rng: np.random.Generator, *, testbed: bool, calm: bool) -> float:
    """How often a rank is late for a moment; ranks that share cores are, often and a little."""
    if not testbed:
        return log_uniform(rng, 1e-4, 4e-3)
    return log_uniform(rng, 5e-4, 0.03) if calm else log_uniform(rng, 0.02, 0.25)


def _jitter(rng: np.random.Generator, scenario: Scenario, *, lengths_told: bool) -> float:
    """How unequal healthy replicas' input is: pipelined models are mostly language models."""
    usual = 0.6 if scenario.parallelism.pipeline > 1 else 0.2
    return log_uniform(rng, 0.002, 0.035) if rng.random() < (0.95 if lengths_told else usual) else 0.0


def sample_bursts(rng: np.random.Generator, scenario: Scenario) -> tuple[Burst, ...]:
    """One or two short visits of a neighbour."""
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


def sample_events(rng: np.random.Generator, scenario: Scenario) -> tuple[LongStall, ...]:
    """One or two single long steps, heavy-tailed; of one rank mostly, else of a node or of everybody."""
    world = scenario.world_size
    found = []
    for _ in range(int(rng.choice([1, 2], p=[0.75, 0.25]))):
        rank = int(rng.integers(world))
        reach = rng.random()
        mates = scenario.ranks_on(rank // scenario.ranks_per_node) if reach > 0.7 else (rank,)
        ranks = tuple(range(world)) if reach > 0.9 else tuple(mates)
        length = min(0.5 * (1 + float(rng.pareto(0.8))), LONGEST_EVENT)
        found.append(LongStall(ranks=ranks, step=int(rng.integers(scenario.n_steps)), length=length))
    return tuple(found)


def sample_late_batches(rng: np.random.Generator, scenario: Scenario) -> tuple[int, float]:
    """Caches are cold when a job begins: so many batches are late, by this much of a step."""
    return int(rng.integers(1, max(2, min(10, scenario.n_steps // 6)))), log_uniform(rng, 0.1, 1.5)


def _harmless(rng: np.random.Generator, scenario: Scenario) -> tuple[HarmlessSignal, ...]:
    count = int(rng.choice([0, 1, 2], p=[0.6, 0.3, 0.1]))
    return tuple(
        HarmlessSignal(kind=str(rng.choice(HARMLESS_KINDS)), rank=int(rng.integers(scenario.world_size)))
        for _ in range(count)
    )


def sample_telemetry(rng: np.random.Generator, scenario: Scenario, cause: str) -> Telemetry:
    """Draw what is seen; of `cause` only its load columns depend, which people add when they need them."""
    testbed, single = scenario.dialect == "cpu_testbed", scenario.n_nodes == 1
    named = rng.random() >= 0.07
    length = scenario.n_steps * scenario.workload.step_seconds
    interval = 0.2 * log_uniform(rng, 0.5, 5) if testbed else log_uniform(rng, 1, 30)
    full = rng.random() < 0.55
    interval = max(min(interval, length / 4), length / MAX_SAMPLES)
    hold, lag = (0.0, 0.0) if testbed else _hold(rng, interval, length)
    return Telemetry(
        exporters=_exporters(rng, scenario),
        interval_seconds=interval,
        hold_seconds=hold,
        lag_seconds=lag,
        ops=bool(scenario.world_size <= TRACED_RANKS and rng.random() < TRACED_SHARE),
        states_sampled=bool(rng.random() < 0.5),
        forgets_dead=bool(rng.random() < 0.5),
        visibility=_visibility(rng),
        missing_phases=() if full else _missing_phases(rng),
        ranks_without_phases=_blind_ranks(rng, scenario),
        load_columns=bool(rng.random() < (0.45 if cause == "sequence_length_imbalance" else 0.12)),
        node_names=named,
        list_ranks=bool(rng.random() >= 0.04),
        missing_metrics=0.0 if full else rng.uniform(0, 0.3),
        missing_series=0.0 if full else rng.uniform(0, 0.08),
        gap_probability=0.0 if full else rng.uniform(0, 0.3),
        reset_probability=0.01 if rng.random() < 0.15 else 0.0,
        old_names=bool(rng.random() < 0.2),
        clock_skew_seconds=0.0 if testbed or single else log_uniform(rng, 1e-4, 1.0),
        events=bool(rng.random() < 0.5),
        ending=_ending(rng),
        booking=_booking(rng, scenario),
        begun_steps_reported=bool(rng.random() < 0.6),
        **_without_rows(rng, scenario),
    )


def _booking(rng: np.random.Generator, scenario: Scenario) -> Booking:
    """How the trainer times its steps; the testbed's timers see all work as it is, many others' do not."""
    if scenario.dialect == "cpu_testbed":
        return Booking(**_uneven_transfers(rng, scenario, 0.6))
    tensor, pipelined = scenario.parallelism.tensor > 1, scenario.parallelism.pipeline > 1
    shared, inside, nowhere, overlapped, launched = rng.random(5)
    launches_only = not pipelined and launched < LAUNCHES_ONLY
    places: tuple[DeviceWait, ...] = ("forward", "optimizer", "nowhere")
    return Booking(
        batch_shared=bool(tensor and shared < 0.5),
        tensor_waits_inside=bool(tensor and inside < 0.5 and not launches_only),
        bubbles_timed=not (pipelined and nowhere < 0.25 and scenario.world_size <= MANY_RANKS),
        exchange_in_backward=bool(not pipelined and overlapped < 0.1 and not launches_only),
        waits_for_device=places[rng.integers(3)] if launches_only else "every phase",
        launch_share=rng.uniform(0.1, 0.9) if launches_only else 0.3,
        **_uneven_transfers(rng, scenario, 0.15),
    )


class _UnevenTransfers(TypedDict, total=False):
    transfer_skew: float
    skewed_by: SkewedBy


def _uneven_transfers(rng: np.random.Generator, scenario: Scenario, probability: float) -> _UnevenTransfers:
    """Which part of a transfer some ranks take for waiting, and what that depends on."""
    if scenario.n_nodes == 1 or rng.random() >= probability:
        return {}
    by: SkewedBy = "node" if scenario.ranks_per_node > 1 and rng.random() < 0.4 else "ring"
    return {"transfer_skew": log_uniform(rng, 0.01, 0.5 if by == "node" else 0.15), "skewed_by": by}


def _without_rows(rng: np.random.Generator, scenario: Scenario) -> dict[str, int]:
    """Steps at both ends that have samples and no rows: mostly the same margin before and after."""
    if rng.random() >= MARGIN_SHARE or scenario.n_steps < 2 * LEAST_ROWS:
        return {}
    margin, kind = int(log_uniform(rng, 1, scenario.n_steps / 4)), rng.random()
    return {
        "rows_skipped": margin if kind < 0.8 else 0,
        "rows_behind": max(0, margin + int(rng.integers(-1, 2))) if kind < 0.5 or kind >= 0.8 else 0,
    }


def _hold(rng: np.random.Generator, interval: float, length: float) -> tuple[float, float]:
    """Seconds a device exporter keeps a value, and how old that is when it collects it."""
    if rng.random() >= HELD_SHARE:
        return 0.0, 0.0
    return min(interval * rng.uniform(1.2, 5), length / 8), min(rng.uniform(0, 2), length / 40)


def _missing_phases(rng: np.random.Generator) -> tuple[str, ...]:
    """Few trainers time everything; the compute phases and the split of communication are mostly there."""
    return _some(rng, OPTIONAL_PHASES, 0.35) + _some(rng, CORE_PHASES, 0.1)


def _exporters(rng: np.random.Generator, scenario: Scenario) -> tuple[str, ...]:
    if rng.random() < 0.12:
        return ()
    all_of = {"cpu_testbed": TESTBED_EXPORTERS, "gpu_cluster": CLUSTER_EXPORTERS, "mixed": MIXED_EXPORTERS}
    offered = all_of[scenario.dialect]
    if rng.random() < 0.5:
        return offered
    kept = _some(rng, offered, 0.7)
    return kept or offered[:1]


def _visibility(rng: np.random.Generator) -> Visibility:
    choices: tuple[Visibility, ...] = ("full", "unsplit", "minimal", "loading")
    return choices[int(rng.choice(4, p=[0.78, 0.13, 0.05, 0.04]))]


def _ending(rng: np.random.Generator) -> Ending:
    choices: tuple[Ending, ...] = ("complete", "cut", "lagging", "finished")
    return choices[int(rng.choice(4, p=[0.6, 0.2, 0.1, 0.1]))]


def _blind_ranks(rng: np.random.Generator, scenario: Scenario) -> tuple[int, ...]:
    if rng.random() >= 0.06 or scenario.world_size < 4:
        return ()
    count = int(rng.integers(1, max(2, scenario.world_size // 4)))
    return tuple(int(rank) for rank in rng.choice(scenario.world_size, count, replace=False))


def _some(rng: np.random.Generator, names: tuple[str, ...], probability: float) -> tuple[str, ...]:
    return tuple(name for name in names if rng.random() < probability)
