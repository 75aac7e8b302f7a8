"""What loader workers need for a batch; the queue in the replay decides how much of it anybody waits for."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.noise import Noise
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario
from rca.simulation.work_growth import inputs_over_time


def batch_seconds(scenario: Scenario) -> float:
    """A healthy batch's time with one worker; all of it is waited for where nothing is prefetched."""
    load = scenario.workload
    if load.prefetch_steps == 0:
        return load.data_loading_seconds
    return load.loader_share * load.loader_workers * scenario.expected_step_seconds


def late_batch_seconds(scenario: Scenario, wait: FloatArray) -> FloatArray:
    """A batch's time from which, step after step, `wait` seconds are felt once the queue has run empty."""
    load = scenario.workload
    if load.prefetch_steps == 0:
        return wait + batch_seconds(scenario)
    return load.loader_workers * (scenario.expected_step_seconds + wait)


def lone_batch_seconds(scenario: Scenario, wait: FloatArray) -> FloatArray:
    """A batch's time from which, were no other late, `wait` seconds are felt: the queue covers the rest."""
    load = scenario.workload
    return np.maximum(
        wait + load.prefetch_steps * scenario.expected_step_seconds, wait + batch_seconds(scenario)
    )


def read_seconds(scenario: Scenario) -> float:
    """The part of a healthy batch's time that storage takes."""
    return scenario.workload.read_share * batch_seconds(scenario)


def service_seconds(scenario: Scenario, resources: Resources, noise: Noise) -> FloatArray:
    """Time a loader worker needs for each step's batch, shape (n_ranks, n_steps), seconds.

    A batch is made `prefetch_steps` steps before it is used, with the resources of then.
    """
    made_at = np.maximum(np.arange(scenario.n_steps) - scenario.workload.prefetch_steps, 0)
    node_of = np.arange(scenario.world_size) // scenario.ranks_per_node
    whole, read = batch_seconds(scenario) * inputs_over_time(scenario), read_seconds(scenario)
    slower = (resources.read_stretch - 1)[node_of]
    usual = noise.loading if scenario.workload.prefetch_steps == 0 else noise.batch
    return np.asarray(usual * whole + (read * slower * noise.batch + resources.batch_extra)[:, made_at])


def taking_seconds(scenario: Scenario, noise: Noise) -> FloatArray:
    """Time to take a batch that is there, shape (n_ranks, n_steps), seconds."""
    if scenario.workload.prefetch_steps == 0:
        return np.zeros(noise.loading.shape)
    return scenario.workload.data_loading_seconds * inputs_over_time(scenario) * noise.loading
