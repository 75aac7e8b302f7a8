"""Measure a real collection and simulated twins of its captures, and compare them in every way there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.evaluation.realism.discriminator import Discriminated, discriminate
from rca.evaluation.realism.effects import Effect, effects, severity_effects
from rca.evaluation.realism.features import FeatureDistance, feature_distances
from rca.evaluation.realism.measure import Measured, measured
from rca.evaluation.realism.subject import Subject, is_comparable, subject_of
from rca.evaluation.realism.traces import TraceComparison, compare_traces
from rca.evaluation.realism.twin import ratio_at, twin
from rca.processes import mapped
from rca.simulation import simulate
from rca.telemetry.labels import CollectionEntry, read_collection

Report = Callable[[str, int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")

TWINS_PER_CAPTURE = 4
#: Simulated jobs per trace and cause, as a share of the simulated windows.
TRACE_SHARE = 0.05
FEWEST_TRACE_WINDOWS = 10


@dataclass(frozen=True)
class Realism:
    """Everything compared.

    Attributes
    ----------
    real, simulated : tuple of Measured
    left_out : tuple of str
        Captures in which something was done that their label does not name, because nobody could see it.
    effects, at_severity : list of Effect
        Symptoms at the captures' own slowdown; slowdowns at the labelled severity.
    """

    real: tuple[Measured, ...]
    simulated: tuple[Measured, ...]
    left_out: tuple[str, ...]
    effects: list[Effect]
    at_severity: list[Effect]
    features: list[FeatureDistance]
    discriminated: Discriminated
    traces: list[TraceComparison]
    seed: int


def compare(
    path: str | PathLike[str],
    *,
    traces: Path | None = None,
    n_windows: int | None = None,
    seed: int = 0,
    processes: int = 1,
    report: Report = lambda phase, done, total: None,
) -> Realism:
    """Compare a labelled collection of real captures with simulated twins of them.

    Parameters
    ----------
    path : path
        Folder with ``manifest.json``.
    traces : Path, optional
        Folder of operation traces of real GPU jobs.
    n_windows : int, optional
        Simulated windows, spread evenly over the captures; four per capture if not given.
    processes : int
        Workers; without influence on the result.

    Raises
    ------
    InvalidInput
        If the collection holds no capture to compare.
    """
    entries = list(read_collection(path))
    kept = [entry for entry in entries if is_comparable(entry.read_label())]
    if not kept:
        raise InvalidInput(f"{path}: holds no capture whose label tells everything that was done")
    told = _each(_read, kept, processes, "reading captures", report)
    subjects, real = [subject for subject, _ in told], [one for _, one in told]
    made = list(_each(_simulated, _plan(subjects, n_windows, seed), processes, "simulating twins", report))
    simulated = [one for one, _ in made]
    rng = np.random.default_rng(seed)
    report("comparing", 0, 0)
    jobs = max(FEWEST_TRACE_WINDOWS, round(TRACE_SHARE * len(simulated)))
    return Realism(
        real=tuple(real),
        simulated=tuple(simulated),
        left_out=tuple(sorted({entry.id for entry in entries} - {entry.id for entry in kept})),
        effects=effects(real, simulated, rng),
        at_severity=severity_effects(real, _at_label(made), rng),
        features=feature_distances(real, simulated),
        discriminated=discriminate(real, simulated, seed),
        traces=[]
        if traces is None
        else compare_traces(
            traces, jobs, seed, lambda done, total: report("simulating traced jobs", done, total)
        ),
        seed=seed,
    )


def _plan(subjects: Sequence[Subject], n_windows: int | None, seed: int) -> list[tuple[Subject, int]]:
    """Which capture each simulated window is a twin of, with its seed."""
    total = TWINS_PER_CAPTURE * len(subjects) if n_windows is None else n_windows
    children = np.random.SeedSequence(seed).spawn(total)
    seeds = [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
    return [(subjects[index % len(subjects)], one) for index, one in enumerate(seeds)]


def _read(entry: CollectionEntry) -> tuple[Subject, Measured]:
    window, label = entry.read_window(), entry.read_label()
    subject = subject_of(entry.id, window, label)
    found = measured(window, subject)
    return replace(subject, ratio=found.ratio), found


def _simulated(planned: tuple[Subject, int]) -> tuple[Measured, float]:
    """A twin, measured, and its slowdown had it the severity that its capture is labelled with."""
    subject, seed = planned
    scenario = twin(subject, seed)
    told = np.isfinite(subject.severity) and np.isfinite(subject.ratio) and not subject.stops
    ratio = ratio_at(scenario, subject.severity) if told else float("nan")
    return measured(simulate(scenario).window, subject), ratio


def _at_label(made: Sequence[tuple[Measured, float]]) -> dict[str, FloatArray]:
    found: dict[str, list[float]] = {}
    for one, ratio in made:
        if np.isfinite(ratio):
            found.setdefault(one.group, []).append(ratio)
    return {group: np.array(ratios) for group, ratios in found.items()}


def _each(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int, phase: str, report: Report
) -> list[Result]:
    found = []
    for result in mapped(work, items, processes, chunk=4):
        found.append(result)
        report(phase, len(found), len(items))
    return found
