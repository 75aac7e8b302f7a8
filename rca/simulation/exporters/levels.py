"""Constants that differ between machines, and mean nothing: how much a kernel counts when all is well."""

from __future__ import annotations

import zlib

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.finished_run import World


def level(world: World, name: str, low: float, high: float) -> float:
    """Draw one constant of a job's machines, log-uniform; the same name gives the same one."""
    rng = np.random.default_rng([world.scenario.seed, 4, zlib.crc32(name.encode())])
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def uneven(world: World, name: str, low: float, high: float, n: int) -> FloatArray:
    """Lasting factors by which n machines of a job differ, (n, 1): log-normal, their spread log-uniform."""
    rng = np.random.default_rng([world.scenario.seed, 13, zlib.crc32(name.encode())])
    return np.asarray(np.exp(rng.normal(0, level(world, f"uneven {name}", low, high), (n, 1))))


def is_so(world: World, name: str, probability: float) -> bool:
    """Whether a job's machines have a property that this share of all have."""
    rng = np.random.default_rng([world.scenario.seed, 5, zlib.crc32(name.encode())])
    return bool(rng.random() < probability)
