"""GPU models of the simulated fleets, as their exporters see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.scenario import Scenario


@dataclass(frozen=True)
class GpuModel:
    """Top SM clock (MHz), power limit (W), framebuffer (GiB), degrees it usually runs above others."""

    clock_mhz: float
    power_watts: float
    memory_gib: float
    warmer: float


MODELS: tuple[GpuModel, ...] = (
    GpuModel(1980.0, 700.0, 80.0, 0.0),
    GpuModel(1410.0, 400.0, 80.0, -3.0),
    GpuModel(1980.0, 700.0, 141.0, 2.0),
    GpuModel(1755.0, 300.0, 40.0, -2.0),
)


def of_ranks(scenario: Scenario, attribute: str) -> FloatArray:
    """One attribute of every rank's GPU model, shape (n_ranks, 1); without a listed fleet all are alike."""
    nodes = scenario.fleet.models or (scenario.seed,) * scenario.n_nodes
    by_node = np.array([getattr(MODELS[model % len(MODELS)], attribute) for model in nodes])
    return np.asarray(by_node[np.arange(scenario.world_size) // scenario.ranks_per_node, None])
