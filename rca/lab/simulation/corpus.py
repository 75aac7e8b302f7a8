"""Simulated windows by seed, one or many; the number of workers does not change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np

from rca.lab.simulation.engine import LabelledWindow, simulate
from rca.lab.simulation.mechanisms import sample_second
from rca.lab.simulation.mechanisms.parts import changed
from rca.lab.simulation.sampling import sample_scenario
from rca.lab.simulation.scenario import CorpusVersion, SimulationScenario
from rca.sources.labels import WindowLabel
from rca.window.window import Window
from rca.workers import HERE, Workers

Result = TypeVar("Result")

#: Version that trainings learn from and are tested on.
TRAINED_VERSION: CorpusVersion = 2
#: Scenarios that a worker receives at once.
SCENARIOS_PER_TASK = 16


def sampled(
    rng: np.random.Generator,
    version: CorpusVersion,
    *,
    cause: str | None = None,
    mechanism: str | None = None,
) -> SimulationScenario:
    """Draw a scenario of a version of the corpus.

    Parameters
    ----------
    version : {1, 2}
        Version 2 also has the mechanisms of `rca.lab.simulation.mechanisms`.
    cause : str, optional
        ``healthy`` or a catalogue id; by default a mixture.
    mechanism : str, optional
        Of version 2; by default a mixture.

    Raises
    ------
    ValueError
        If the version does not have the cause, or the mechanism.
    """
    if version == 2:
        return sample_second(rng, cause=cause, mechanism=mechanism)
    if mechanism is not None:
        raise ValueError(f"version 1 of the corpus has no mechanism {mechanism!r}; take version 2")
    return sample_scenario(rng, cause=cause)


def simulated_window(
    seed: int, version: CorpusVersion = TRAINED_VERSION, *, with_steps: bool = False
) -> tuple[Window, WindowLabel]:
    """The window of a seed's scenario, and its label; `with_steps` adds the steps that a window may lack."""
    scenario = sampled(np.random.default_rng(seed), version)
    labelled = simulate_with_steps(scenario) if with_steps else simulate(scenario)
    return labelled.window, WindowLabel.model_validate(labelled.label)


def simulate_with_steps(scenario: SimulationScenario) -> LabelledWindow:
    """Simulate one window, with the steps that its telemetry may lack: features need them."""
    labelled = simulate(scenario)
    if labelled.window.steps.num_rows:
        return labelled
    return simulate(changed(scenario, telemetry={"steps_reported": True, "begun_steps_reported": True}))


def for_each_scenario(
    work: Callable[[int], Result], seeds: Iterable[int], *, workers: Workers
) -> Iterator[Result]:
    """Yield `work(seed)` for every seed, in order; `workers` do not change the results."""
    return workers.map(work, seeds, chunk=SCENARIOS_PER_TASK)


WINDOWS_PER_TASK = 8


def generate_corpus(
    n: int,
    seed: int,
    *,
    workers: Workers = HERE,
    progress: Callable[[int, int], None] | None = None,
    version: CorpusVersion = 1,
) -> Iterator[LabelledWindow]:
    """Simulate `n` domain-randomised windows.

    Parameters
    ----------
    seed : int
        Window ``i`` depends on ``(seed, i)`` alone: a larger corpus begins with the smaller one.
    workers : Workers
        Without influence on the windows.
    progress : callable, optional
        Called with (windows done, n) after each.
    version : {1, 2}
        Of the corpus.

    Yields
    ------
    LabelledWindow
        In order of ``i``.
    """
    windows = workers.map(partial(_numbered, seed, version), range(n), chunk=WINDOWS_PER_TASK)
    for done, window in enumerate(windows, start=1):
        if progress is not None:
            progress(done, n)
        yield window


def corpus_window(seed: int, index: int, version: CorpusVersion = 1) -> LabelledWindow:
    """Window `index` of the corpus with this seed."""
    return simulate(sampled(np.random.default_rng([seed, index]), version))


def _numbered(seed: int, version: CorpusVersion, index: int) -> LabelledWindow:
    return corpus_window(seed, index, version)
