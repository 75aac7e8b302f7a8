"""The amount of compute: sequence lengths, layers per stage, and changes of the work over time.

Lengths are log-normal, and a microbatch holds several sequences. The relative sums of lengths and of squared
lengths are drawn as log-normals with the moments of such sums (Fenton and Wilkinson's approximation). Drawing
every sequence would take longer than the rest of the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.healthy_job import Workload
from rca.lab.simulation.scenario import SimulationScenario

TOKENS_PER_SAMPLE = 8192.0
MEAN_LENGTH = 2048.0
# Contexts have a limit: standard normals above it are cut, which changes one microbatch of 160.
MAX_DEVIATIONS = 2.5
_GRID = np.linspace(0.0, 2.5, 501)


def work_over_time(scenario: SimulationScenario) -> FloatArray:
    """Compute of all ranks relative to the job's first steps, shape (n_steps,)."""
    benign, steps = scenario.benign, np.arange(scenario.n_steps)
    if benign.shift_step is None:
        return np.ones(scenario.n_steps)
    done = np.clip((steps - benign.shift_step + 1) / (benign.shift_ramp + 1), 0.0, 1.0)
    return np.asarray(1 + (benign.shift_factor - 1) * done)


def inputs_over_time(scenario: SimulationScenario) -> FloatArray:
    """Input of all ranks relative to the job's first steps, (n_steps,); ones without a change of input."""
    counted = scenario.benign.shift_counted != "nothing"
    return work_over_time(scenario) if counted else np.ones(scenario.n_steps)


@dataclass(frozen=True)
class Lengths:
    """The input of every replica, relative to the usual: shape (n_steps, n_microbatches, n_data)."""

    tokens: FloatArray
    squares: FloatArray

    def work(self, workload: Workload) -> FloatArray:
        """Compute relative to the usual: what is linear in length, and attention."""
        share = workload.attention_share
        return np.asarray((1 - share) * self.tokens + share * self.squares)


def microbatches_apart(scenario: SimulationScenario) -> int:
    """Number of microbatches with a length of their own: only a pipeline overlaps them."""
    return scenario.workload.microbatches if scenario.parallelism.pipeline > 1 else 1


def spread_for(workload: Workload, deviation: float) -> float:
    """Spread of log length at which a replica's step varies by this relative deviation."""
    return float(np.interp(deviation, _deviation_of(_sequences(workload), workload), _GRID))


@lru_cache(maxsize=256)
def _deviations(sequences: int, attention: float, *, packed: bool) -> FloatArray:
    linear = np.zeros_like(_GRID) if packed else np.sqrt(np.expm1(_GRID**2) / sequences)
    return np.asarray((1 - attention) * linear + attention * np.sqrt(np.expm1(4 * _GRID**2) / sequences))


def _deviation_of(sequences: int, workload: Workload) -> FloatArray:
    return _deviations(sequences, workload.attention_share, packed=workload.packed)


def _sequences(workload: Workload) -> int:
    return max(workload.samples_per_step, workload.microbatches)


def drawn_lengths(scenario: SimulationScenario, spread: FloatArray, standard: FloatArray) -> Lengths | None:
    """Lengths from standard normals; None where all sequences are alike.

    Parameters
    ----------
    spread : ndarray of shape (n_steps,)
    standard : ndarray of shape (n_steps, n_microbatches, n_data)
    """
    if not spread.any():
        return None
    standard = np.minimum(standard, MAX_DEVIATIONS)
    each = max(1, _sequences(scenario.workload) // standard.shape[1])
    variance = spread[:, None, None] ** 2
    squares = _lognormal(np.log1p(np.expm1(4 * variance) / each), standard)
    if scenario.workload.packed:
        return Lengths(np.ones_like(standard), squares)
    return Lengths(_lognormal(np.log1p(np.expm1(variance) / each), standard), squares)


def compute_parts(scenario: SimulationScenario, lengths: Lengths | None) -> tuple[FloatArray, FloatArray]:
    """Work of each replica's step relative to the usual, and how its microbatches share it.

    Returns
    -------
    whole : ndarray of shape (n_data, n_steps)
    parts : ndarray of shape (n_steps, n_microbatches, n_data)
        Adds up to one.
    """
    shape = (scenario.n_steps, microbatches_apart(scenario), scenario.replicas)
    if lengths is None:
        return np.ones((shape[2], shape[0])), np.full(shape, 1.0 / shape[1])
    work = lengths.work(scenario.workload)
    total = work.sum(axis=1)
    return total.T / shape[1], work / total[:, None]


def stage_work(scenario: SimulationScenario, extra: FloatArray) -> FloatArray:
    """Compute of each stage relative to an even share of whole and balanced layers, (n_stages, n_steps).

    Parameters
    ----------
    extra : ndarray of shape (n_stages, n_steps)
        Layer-equivalents beyond its own, relative to an even share.
    """
    stages, load = scenario.parallelism.pipeline, scenario.workload
    if stages == 1:
        return 1 + extra
    each, left = divmod(max(load.layers, stages), stages)
    layers = np.full(stages, each)
    # The first and the last stage hold the embedding and the logits: other stages take the remaining layers.
    layers[np.argsort(np.abs(np.arange(stages) - (stages - 1) / 2), kind="stable")[:left]] += 1
    share = layers / layers.mean()
    share[-1] += load.last_stage_extra
    return np.asarray(share[:, None] * (1 + extra))


def load_columns(scenario: SimulationScenario, lengths: Lengths | None) -> dict[str, FloatArray]:
    """Samples, tokens and squared lengths of every rank and step, as a data loader counts them."""
    samples = float(max(1, scenario.workload.samples_per_step))
    usual = TOKENS_PER_SAMPLE * samples
    shape = (scenario.world_size, scenario.n_steps)
    sizes = scenario.parallelism
    replica = np.arange(shape[0]) // sizes.tensor % scenario.replicas
    tokens, squares = np.full(shape, usual), np.full(shape, usual * MEAN_LENGTH)
    if lengths is not None:
        tokens *= lengths.tokens.mean(axis=1).T[replica]
        squares *= lengths.squares.mean(axis=1).T[replica]
    inputs, longer = inputs_over_time(scenario), scenario.benign.shift_counted == "lengths"
    tokens, squares = tokens * inputs, squares * inputs ** (2 if longer else 1)
    return {
        "samples": np.round(samples * (np.ones(shape) if longer else np.broadcast_to(inputs, shape))),
        "tokens": np.round(tokens),
        "sum_squared_sequence_length": np.round(squares),
    }


def _lognormal(variance: FloatArray, standard: FloatArray) -> FloatArray:
    """Mean one."""
    return np.asarray(np.exp(np.sqrt(variance) * standard - 0.5 * variance))
