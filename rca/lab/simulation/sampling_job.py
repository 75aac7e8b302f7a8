"""Draws of the job: size, parallelism, number of steps, and durations of its phases."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np

from rca.lab.simulation.healthy_job import Fleet, Workload
from rca.lab.simulation.scenario import Dialect
from rca.window.causes import STOP_CAUSES
from rca.window.job import Parallelism

#: Fewest steps of a window, and the factor on the planned steps of jobs that stop.
SHORTEST, STOPPED_LONGER = 20, 1.7
#: Share of cluster jobs with 512 to 4,096 ranks, and with more.
LARGE_SHARE, HUGE_SHARE = 0.06, 0.01
#: Largest product of ranks and steps of one window, and the fewest steps that it always keeps.
MAX_CELLS, MIN_WINDOW_STEPS, MIN_WINDOW_STEPS_HUGE = 80_000, 24, 16
#: Ranks from which a job counts as huge.
HUGE = 8192
#: Share of jobs with a long queue: many loader workers, and some batches for each.
LONG_QUEUE_SHARE = 0.45
#: Share of cluster jobs on nodes of several generations, and of pipelines with several chunks per stage.
MIXED_FLEET_SHARE, INTERLEAVED_SHARE = 0.12, 0.25
#: Share of testbed jobs with pipelines; share of testbed machines with hardly shared cores; share of time in
#: run queues below which such a host counts as calm.
TESTBED_PIPELINES, CALM_HOSTS, CALM_QUEUE = 0.12, 0.3, 0.15


class SampledJob(TypedDict):
    """The part of a scenario that describes the job."""

    parallelism: Parallelism
    ranks_per_node: int
    n_steps: int
    start: float
    first_step_number: int
    workload: Workload
    fleet: Fleet


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def sample_job(rng: np.random.Generator, dialect: Dialect, cause: str) -> SampledJob:
    """Draw a job that can suffer `cause` (a stage imbalance needs stages)."""
    testbed = dialect == "cpu_testbed"
    pipelined = cause == "stage_imbalance"
    if testbed:
        parallelism, per_node = _testbed_shape(rng, pipelined=pipelined)
        workload, fleet = _testbed_workload(rng, parallelism), Fleet()
        longest = 200
    else:
        parallelism, per_node = _cluster_shape(rng, cause, pipelined=pipelined)
        workload = _cluster_workload(rng, parallelism, per_node)
        fleet = _fleet(rng, -(-parallelism.world_size // per_node))
        longest = 420
    started = rng.random() < (0.1 if testbed else 0.75)
    return {
        "parallelism": parallelism,
        "ranks_per_node": per_node,
        "n_steps": _n_steps(rng, parallelism.world_size, longest, cause),
        "start": float(rng.uniform(1.7e9, 1.8e9)),
        "first_step_number": int(rng.integers(1, 200_000)) if started else 0,
        "workload": workload,
        "fleet": fleet,
    }


def _n_steps(rng: np.random.Generator, world_size: int, longest: int, cause: str) -> int:
    """Draw the planned steps; the number of completed steps must not reveal which jobs stopped."""
    drawn = log_uniform(rng, SHORTEST, longest) * (STOPPED_LONGER if cause in STOP_CAUSES else 1.0)
    fewest = MIN_WINDOW_STEPS_HUGE if world_size >= HUGE else MIN_WINDOW_STEPS
    return min(round(drawn), max(fewest, MAX_CELLS // world_size))


def _testbed_shape(rng: np.random.Generator, *, pipelined: bool) -> tuple[Parallelism, int]:
    nodes = int(rng.choice([2, 3, 4, 4, 4, 6, 8]))
    per_node = int(rng.choice([1, 2, 2, 2, 4]))
    world = nodes * per_node
    if not pipelined and rng.random() >= TESTBED_PIPELINES:
        return Parallelism(data=world), per_node
    deep = int(rng.choice([2, 4]))
    stages = next((stages for stages in (deep, 2) if world % stages == 0 and world >= 2 * stages), 1)
    if stages == 1 and pipelined:
        return Parallelism(data=4, pipeline=2), 2
    return Parallelism(data=world // stages, pipeline=stages), per_node


def _cluster_shape(rng: np.random.Generator, cause: str, *, pipelined: bool) -> tuple[Parallelism, int]:
    needs_nodes = cause in {"nic_degradation", "network_congestion"}
    if rng.random() < 0.15 and not needs_nodes and not pipelined:
        world = int(rng.choice([2, 4, 8]))
        return Parallelism(data=world), world
    per_node = int(rng.choice([8, 8, 8, 4, 2, 16]))
    nodes = int(rng.choice([2, 2, 4, 4, 8, 8, 16, 32])) if per_node <= 8 else int(rng.choice([2, 4]))
    large = rng.random()
    if large < HUGE_SHARE:
        per_node, nodes = 8, int(rng.choice([1024, 2048]))
    elif large < HUGE_SHARE + LARGE_SHARE:
        # The largest of many ranks is an outlier by chance alone: the normal range depends on the size.
        per_node, nodes = 8, int(rng.choice([64, 128, 256, 512], p=[0.4, 0.3, 0.2, 0.1]))
    world = nodes * per_node
    tensor = int(rng.choice([1, 1, 1, 2, 4, 8]))
    tensor = tensor if per_node % tensor == 0 else 1
    deep = [2, 2, 4, 4, 8]
    pipeline = int(rng.choice(deep if pipelined else [*[1] * 10, *deep]))
    if world % (tensor * pipeline) or world // (tensor * pipeline) < 2:
        tensor, pipeline = 1, 2 if pipelined else 1
    data = world // (tensor * pipeline)
    context = 2 if data % 4 == 0 and rng.random() < 0.05 else 1
    chunks = 2 if pipeline > 1 and rng.random() < INTERLEAVED_SHARE else 1
    return Parallelism(
        data=data // context, context=context, tensor=tensor, pipeline=pipeline, virtual_pipeline=chunks
    ), per_node


def _fleet(rng: np.random.Generator, n_nodes: int) -> Fleet:
    """Draw machines of one generation, or of two that differ in compute by a few per cent."""
    cooling, shared = log_uniform(rng, 8, 60), rng.random() < 0.6
    switch = log_uniform(rng, 1 / 64, 1 / 8) if shared and n_nodes > 1 else 0.0
    if n_nodes == 1 or rng.random() >= MIXED_FLEET_SHARE:
        return Fleet(cooling_seconds=cooling, switch_share=switch)
    old = rng.random(n_nodes) < rng.uniform(0.1, 0.6)
    models, slower = rng.permutation(4)[:2], rng.uniform(0.005, 0.03)
    return Fleet(
        models=tuple(int(model) for model in np.where(old, models[0], models[1])),
        speeds=tuple(float(speed) for speed in np.where(old, 1 - slower, 1.0)),
        cooling_seconds=cooling,
        switch_share=switch,
    )


def _testbed_workload(rng: np.random.Generator, parallelism: Parallelism) -> Workload:
    """Draw phases around those of two measured testbeds; other machines are faster or slower per phase."""
    scale = log_uniform(rng, 0.5, 3.0)

    def around(seconds: float, spread: float = 0.25) -> float:
        return seconds * scale * math.exp(rng.normal(0, spread))

    return Workload(
        data_loading_seconds=scale * log_uniform(rng, 2e-5, 0.0015),
        host_to_device_seconds=around(log_uniform(rng, 0.0045, 0.014), 0.2),
        forward_seconds=around(0.0245),
        backward_seconds=around(0.046),
        transfer_seconds=around(log_uniform(rng, 0.005, 0.08), 0.2),
        optimizer_seconds=around(0.0038, 0.4),
        launch_seconds=around(log_uniform(rng, 0.003, 0.009)),
        host_coupling=rng.uniform(0.3, 1.4),
        own_coupling=rng.uniform(0.0, 0.5),
        own_port=rng.uniform(0.0, 0.3),
        calls_collector=bool(rng.random() < 0.5),
        copy_sharing=rng.uniform(0.05, 0.8),
        backward_gap_share=rng.uniform(0.05, 0.55),
        run_queue_share=rng.uniform(0.01, CALM_QUEUE)
        if rng.random() < CALM_HOSTS
        else rng.uniform(CALM_QUEUE, 0.42),
        microbatches=max(int(rng.choice([1, 1, 2, 4, 8])), parallelism.pipeline),
        p2p_seconds=scale * log_uniform(rng, 2e-4, 4e-3),
        **_input(rng, workers=1),
        gradient_bytes=log_uniform(rng, 4e5, 5e6),
        samples_per_step=int(rng.choice([8, 16, 32])),
    )


def _cluster_workload(rng: np.random.Generator, parallelism: Parallelism, per_node: int) -> Workload:
    """Draw phases with the shares of GPU jobs; exposed communication is from 2 % to 45 % of a step."""
    step = log_uniform(rng, 0.2, 30.0)
    shares = {
        "data_loading": log_uniform(rng, 0.0001, 0.04),
        "host_to_device": log_uniform(rng, 0.0005, 0.03),
        "transfer": log_uniform(rng, 0.02, 0.45),
        "optimizer": log_uniform(rng, 0.005, 0.08),
    }
    compute = 1 - sum(shares.values())
    forward = rng.uniform(0.28, 0.38) * compute
    microbatches = max(int(rng.choice([4, 8, 16, 32])), parallelism.pipeline)
    several = parallelism.world_size > per_node
    return Workload(
        data_loading_seconds=step * shares["data_loading"],
        host_to_device_seconds=step * shares["host_to_device"],
        forward_seconds=step * forward,
        backward_seconds=step * (compute - forward),
        transfer_seconds=step * shares["transfer"],
        optimizer_seconds=step * shares["optimizer"],
        launch_seconds=step * rng.uniform(0.04, 0.2),
        host_coupling=rng.uniform(0.01, 0.12),
        calls_collector=bool(rng.random() < 0.25),
        own_port=max(0.0, rng.uniform(-0.2, 0.2)),
        copy_sharing=max(0.0, rng.uniform(-0.3, 0.3)),
        run_queue_share=rng.uniform(0.0, 0.08),
        intra_node_share=rng.uniform(0.1, 0.4) if several else 0.3,
        microbatches=microbatches,
        p2p_seconds=step * forward / microbatches * log_uniform(rng, 0.003, 0.05),
        gather_share=rng.uniform(0.3, 0.5) if rng.random() < 0.3 else 0.0,
        **_input(rng, workers=4),
        gradient_bytes=step * log_uniform(rng, 5e8, 2e10),
        samples_per_step=int(rng.choice([1, 4, 8, 32])),
        layers=_layers(rng, parallelism),
        last_stage_extra=rng.uniform(-0.02, 0.08),
    )


class _Input(TypedDict):
    prefetch_steps: int
    loader_workers: int
    loader_share: float
    read_share: float
    attention_share: float
    packed: bool


def _input(rng: np.random.Generator, *, workers: int) -> _Input:
    """Draw the input pipeline: the batch queue, its workers, and the input's lengths."""
    ahead = int(rng.integers(0, 5))
    # A worker without a place in the queue would have no work.
    hands = int(rng.integers(1, min(workers, max(ahead, 1)) + 1))
    if rng.random() < LONG_QUEUE_SHARE:
        hands = int(rng.choice([2, 4, 8, 16]))
        ahead = hands * int(rng.choice([1, 2, 4], p=[0.2, 0.6, 0.2]))
    return {
        "prefetch_steps": ahead,
        "loader_workers": hands,
        "loader_share": rng.uniform(0.1, 0.65),
        "read_share": rng.uniform(0.2, 0.8),
        "attention_share": rng.uniform(0.4, 0.95),
        "packed": bool(rng.random() < 0.75),
    }


def _layers(rng: np.random.Generator, parallelism: Parallelism) -> int:
    """Draw a number of layers that divides by the stages, or a few more if stages stay nearly equal."""
    chunks = parallelism.pipeline * parallelism.virtual_pipeline
    each = int(rng.integers(4, 21))
    left = int(rng.integers(1, chunks)) if chunks > 1 and each >= 12 and rng.random() < 0.3 else 0
    return each * chunks + left
