"""One scenario per seed: the same window to training, to a test, and to a baseline's fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from rca.processes import mapped
from rca.simulation.engine import simulate
from rca.simulation.sampling import sample_scenario
from rca.telemetry.labels import Label
from rca.telemetry.window import Window

Result = TypeVar("Result")

#: Scenarios handed to a worker at once.
CHUNK = 16


def simulated_window(seed: int) -> tuple[Window, Label]:
    """The window of a seed's scenario, and its label."""
    labelled = simulate(sample_scenario(np.random.default_rng(seed)))
    return labelled.window, Label.model_validate(labelled.label)


def for_each_scenario(
    work: Callable[[int], Result], seeds: Iterable[int], *, processes: int
) -> Iterator[Result]:
    """`work` of every seed, in order; `processes` has no influence on the results."""
    return mapped(work, seeds, processes, chunk=CHUNK)
