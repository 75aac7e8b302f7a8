"""Random variation of a healthy job, drawn once per scenario so that counterfactuals share it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.lab.simulation.compute_work import microbatches_apart, work_over_time
from rca.lab.simulation.healthy_job import LongStall
from rca.lab.simulation.scenario import SimulationScenario

# Steps in which a starting job settles.
SETTLING_STEPS = 10.0


@dataclass(frozen=True)
class Noise:
    """Factors on the healthy phases, and extra seconds.

    Attributes
    ----------
    forward, backward, copy, loading, batch, optimizer, transfer_rank : ndarray of shape (n_ranks, n_steps)
        Factors with mean near one; `batch` applies to loader workers.
    transfer, gather : ndarray of shape (n_steps,)
        Factors common to all members of a collective: exchanging gradients, gathering parameters.
    sends : ndarray of shape (n_steps, n_microbatches, n_data)
        Factors on transfers between stages.
    job : ndarray of shape (n_steps,)
        Factor on the compute of all ranks: drift, and a lasting change of the job.
    hiccup, event, warmup : ndarray of shape (n_ranks, n_steps), seconds
        Many short stalls while waiting for a core, a few long ones in I/O, and the first steps' warm-up.
    stall_draw : ndarray of shape (n_ranks, n_steps), in [0, 1)
        Selects the phase of a host's stalls.
    slow_step, compilation : ndarray of shape (n_ranks, n_steps), seconds
        Checkpoints or evaluations of a healthy job, and its few compilations.
    gap : ndarray of shape (5, n_ranks, n_steps) or (1, 1, 1)
        Factors with mean one on the launch gaps of five phases.
    gc_draw : ndarray of shape (n_ranks, n_steps), in [0, 1)
        Selects the phase of a garbage collector pause.
    lengths : ndarray of shape (n_steps, n_microbatches, n_data)
        Standard normals from which sequence lengths follow.
    place : ndarray of shape (n_steps, n_data), int
        The microbatch of a stall.
    """

    forward: FloatArray
    backward: FloatArray
    copy: FloatArray
    loading: FloatArray
    batch: FloatArray
    optimizer: FloatArray
    transfer_rank: FloatArray
    transfer: FloatArray
    gather: FloatArray
    sends: FloatArray
    job: FloatArray
    hiccup: FloatArray
    event: FloatArray
    stall_draw: FloatArray
    warmup: FloatArray
    slow_step: FloatArray
    compilation: FloatArray
    gap: FloatArray
    gc_draw: FloatArray
    lengths: FloatArray
    place: IntArray


def draw_noise(scenario: SimulationScenario) -> Noise:
    """Noise of one scenario; depends on its seed and benign settings, never on its faults."""
    rng = np.random.default_rng([scenario.seed, 0])
    benign = scenario.benign
    shape = (scenario.world_size, scenario.n_steps)
    apart = microbatches_apart(scenario)
    forward, backward = _kernels(rng, scenario)
    lasting = rng.normal(0, benign.copy_offset, (shape[0], 1))
    return Noise(
        forward=forward,
        backward=backward,
        copy=_settling(scenario) * np.exp(lasting + rng.normal(0, benign.copy_noise, shape)),
        loading=np.exp(rng.normal(0, benign.loading_noise, shape)),
        batch=np.exp(rng.normal(0, 0.1, shape)),
        optimizer=np.exp(rng.normal(0, benign.optimizer_noise, shape)),
        transfer_rank=_ends(rng, benign.transfer_ends, shape),
        transfer=_settling(scenario) * np.exp(rng.normal(0, benign.transfer_noise, shape[1])),
        # Parameters to gather exist already, so late gradients do not delay the gathering.
        gather=np.exp(rng.normal(0, 0.3 * benign.transfer_noise, shape[1])),
        sends=_sends(rng, scenario, apart),
        job=_job_factor(rng, scenario),
        hiccup=_hiccups(rng, scenario),
        event=_stalls(scenario, scenario.benign.events),
        compilation=_stalls(scenario, scenario.benign.compilations),
        stall_draw=rng.random(shape),
        warmup=_warmup(rng, scenario),
        slow_step=_slow_steps(rng, scenario),
        gap=_gaps(rng, shape, benign.gap_noise),
        gc_draw=rng.random(shape),
        lengths=rng.standard_normal((scenario.n_steps, apart, scenario.replicas)),
        place=rng.integers(0, apart, (scenario.n_steps, scenario.replicas)),
    )


def _kernels(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[FloatArray, FloatArray]:
    """Factors on forward and backward: lasting differences of ranks, and what varies from step to step."""
    benign, shape = scenario.benign, (scenario.world_size, scenario.n_steps)
    lasting = rng.normal(0, benign.rank_offset, (shape[0], 1))
    forward, backward = (_autoregressive(rng, shape, 1.0, benign.noise_memory) for _ in range(2))
    if benign.common_noise:
        # The backward keeps its variance, but takes this share of it from the forward's.
        backward = np.sqrt(benign.common_noise) * forward + np.sqrt(1 - benign.common_noise) * backward
    spread = benign.noise * benign.backward_calm
    # Where the backward varies less from step to step, ranks differ less in it as well.
    calmer = min(1.0, benign.backward_calm)
    return np.exp(lasting + benign.noise * forward), np.exp(calmer * lasting + spread * backward)


def _ends(rng: np.random.Generator, sigma: float, shape: tuple[int, int]) -> FloatArray:
    """Factors on a collective's length as each rank sees it: some ranks always leave last."""
    return np.exp(rng.normal(0, 0.6 * sigma, (shape[0], 1)) + rng.normal(0, sigma, shape))


def _settling(scenario: SimulationScenario) -> FloatArray:
    """Factors on the first steps, in which caches and TCP windows fill, (n_steps,)."""
    fading = np.exp(-np.arange(scenario.n_steps) / SETTLING_STEPS)
    return np.asarray(1 + scenario.benign.settling * fading)


def _hiccups(rng: np.random.Generator, scenario: SimulationScenario) -> FloatArray:
    """Seconds of single stalls, (n_ranks, n_steps); some hosts have more of them than others."""
    benign, shape = scenario.benign, (scenario.world_size, scenario.n_steps)
    often = np.exp(rng.normal(-0.5 * benign.hiccup_spread**2, benign.hiccup_spread, (shape[0], 1)))
    hit = rng.random(shape) < benign.hiccup_probability * often
    # Pareto tail: most hiccups are small, a few are several times the scale.
    length = benign.hiccup_scale * np.minimum(rng.pareto(2.5, shape), 6.0)
    return np.where(hit, scenario.workload.step_seconds * length, 0.0)


def _stalls(scenario: SimulationScenario, events: tuple[LongStall, ...]) -> FloatArray:
    """Seconds of the job's few long stalls of a kind."""
    seconds = np.zeros((scenario.world_size, scenario.n_steps))
    for event in events:
        seconds[list(event.ranks), event.step] += event.length * scenario.workload.step_seconds
    return seconds


def _sends(rng: np.random.Generator, scenario: SimulationScenario, apart: int) -> FloatArray:
    sigma, shape = scenario.benign.p2p_noise, (scenario.n_steps, apart, scenario.replicas)
    if sigma == 0 or scenario.parallelism.pipeline == 1:
        return np.ones(shape)
    return np.asarray(np.exp(rng.normal(-0.5 * sigma * sigma, sigma, shape)))


def _gaps(rng: np.random.Generator, shape: tuple[int, int], sigma: float) -> FloatArray:
    if sigma == 0:
        return np.ones((1, 1, 1))
    return np.asarray(np.exp(rng.normal(-0.5 * sigma * sigma, sigma, (5, *shape))))


def _autoregressive(
    rng: np.random.Generator, shape: tuple[int, int], sigma: float, memory: float
) -> FloatArray:
    """First-order autoregressive noise along steps with stationary deviation `sigma`."""
    drawn = rng.normal(0, sigma, shape)
    if memory > 0:
        fresh = np.sqrt(1 - memory * memory)
        for column in range(1, shape[1]):
            drawn[:, column] = memory * drawn[:, column - 1] + fresh * drawn[:, column]
    return np.asarray(drawn)


def _job_factor(rng: np.random.Generator, scenario: SimulationScenario) -> FloatArray:
    steps = np.arange(scenario.n_steps)
    phase, periods = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 2.0)
    drift = scenario.benign.drift * np.sin(phase + 2 * np.pi * periods * steps / scenario.n_steps)
    return np.asarray((1 + drift) * work_over_time(scenario))


def _warmup(rng: np.random.Generator, scenario: SimulationScenario) -> FloatArray:
    """Extra seconds of the first steps, (n_ranks, n_steps): they compile, allocate and connect."""
    benign = scenario.benign
    seconds = np.zeros((scenario.world_size, scenario.n_steps))
    for step in range(min(benign.warmup_steps, scenario.n_steps)):
        extra = scenario.workload.step_seconds * (benign.warmup_factor - 1) / 3.0**step
        seconds[:, step] = extra * np.exp(rng.normal(-0.08, 0.4, scenario.world_size))
    return seconds


def _slow_steps(rng: np.random.Generator, scenario: SimulationScenario) -> FloatArray:
    benign, shape = scenario.benign, (scenario.world_size, scenario.n_steps)
    if not benign.slow_step_every:
        return np.zeros(shape)
    due = np.arange(scenario.n_steps) % benign.slow_step_every == benign.slow_step_every // 2
    extra = scenario.workload.step_seconds * (benign.slow_step_factor - 1)
    common = due * extra * np.exp(rng.normal(0, 0.1, scenario.n_steps))
    seconds = common * np.exp(rng.normal(0, benign.slow_step_spread, shape))
    if benign.slow_step_alone:
        seconds[1:] = 0.0
    return np.asarray(seconds)
