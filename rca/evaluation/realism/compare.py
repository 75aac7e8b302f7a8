"""Measures a real collection and simulated twins of its captures, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TypeVar

import numpy as np

from rca.errors import InvalidInput
from rca.evaluation.realism.capture_plan import CapturePlan, is_comparable, plan_of
from rca.evaluation.realism.discriminator import Discriminated, discriminate
from rca.evaluation.realism.effects import Effect, effects
from rca.evaluation.realism.measure import Measured, measured
from rca.evaluation.realism.twins import twin
from rca.simulation import simulate
from rca.telemetry.labels import Label, read_collection
from rca.telemetry.window import Window
from rca.workers import HERE, Workers

Report = Callable[[str, int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")

TWINS_PER_CAPTURE = 4


@dataclass(frozen=True)
class Realism:
    """Result of the comparison.

    Attributes
    ----------
    real, simulated : tuple of Measured
    left_out : tuple of str
        Captures with an injected fault that their label does not name because it had no visible effect.
    effects : list of Effect
    discriminated : Discriminated
    seed : int
    """

    real: tuple[Measured, ...]
    simulated: tuple[Measured, ...]
    left_out: tuple[str, ...]
    effects: list[Effect]
    discriminated: Discriminated
    seed: int


def compare(
    path: str | PathLike[str],
    *,
    n_windows: int | None = None,
    seed: int = 0,
    workers: Workers = HERE,
    report: Report = lambda phase, done, total: None,
) -> Realism:
    """Compare a labelled collection of real captures with simulated twins of them.

    Parameters
    ----------
    path : path
        Folder with ``manifest.json``.
    n_windows : int, optional
        Simulated windows, spread evenly over the captures; four per capture by default.
    seed : int
        Of the simulated windows and the intervals.
    workers : Workers
        Without influence on the result.
    report : callable
        Takes a phase, the number of finished items and the number of all items.

    Raises
    ------
    InvalidInput
        If the collection has no capture to compare.
    """
    entries = list(read_collection(path))
    kept = [entry for entry in entries if is_comparable(entry.read_label())]
    if not kept:
        raise InvalidInput(f"{path}: no capture has a label that names everything that was injected")
    # Read here, because workers have no files of this machine.
    captures = ((entry.id, entry.read_window(), entry.read_label()) for entry in kept)
    read = _each(_read, captures, len(kept), workers, "reading captures", report)
    twins = _twins_of([plan for plan, _ in read], n_windows, seed)
    real = [measurement for _, measurement in read]
    simulated = _each(_simulated, twins, len(twins), workers, "simulating twins", report)
    report("comparing", 0, 0)
    return Realism(
        real=tuple(real),
        simulated=tuple(simulated),
        left_out=tuple(sorted({entry.id for entry in entries} - {entry.id for entry in kept})),
        effects=effects(real, simulated, np.random.default_rng(seed)),
        discriminated=discriminate(real, simulated, seed),
        seed=seed,
    )


def _twins_of(
    plans: Sequence[CapturePlan], n_windows: int | None, seed: int
) -> list[tuple[CapturePlan, int]]:
    """The plan and the seed of each simulated window."""
    total = TWINS_PER_CAPTURE * len(plans) if n_windows is None else n_windows
    children = np.random.SeedSequence(seed).spawn(total)
    seeds = [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
    return [(plans[index % len(plans)], one) for index, one in enumerate(seeds)]


def _read(capture: tuple[str, Window, Label]) -> tuple[CapturePlan, Measured]:
    name, window, label = capture
    plan = plan_of(name, window, label)
    found = measured(window, plan)
    return replace(plan, ratio=found.ratio), found


def _simulated(planned: tuple[CapturePlan, int]) -> Measured:
    plan, seed = planned
    return measured(simulate(twin(plan, seed)).window, plan)


def _each(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    n_items: int,
    workers: Workers,
    phase: str,
    report: Report,
) -> list[Result]:
    found = []
    for result in workers.map(work, items, chunk=4):
        found.append(result)
        report(phase, len(found), n_items)
    return found
