"""Write simulated windows as a collection folder: in parallel, resumable, deterministic by seed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rca.errors import InvalidInput
from rca.lab.simulation import simulate
from rca.lab.simulation.corpus import sampled
from rca.lab.simulation.sampling_telemetry import MANY_RANKS
from rca.lab.simulation.scenario import CorpusVersion
from rca.sources.labels import (
    MANIFEST_FILE,
    WindowLabel,
    read_collection,
    read_label,
    write_labelled,
    write_manifest,
)
from rca.window.window import Window
from rca.workers import HERE, Workers

#: Windows that a worker gets at once.
CHUNK = 8
#: Time between two updates of the manifest during the writing.
MANIFEST_SECONDS = 5.0


@dataclass(frozen=True)
class CollectionPlan:
    """All that a window of a collection depends on, besides its number.

    Attributes
    ----------
    cause, mechanism : str or None
        Cause and mechanism of every window; None is a mixture.
    version : {1, 2}
        Of the corpus.
    operations : bool
        Whether the windows are a fleet: each of a job of its own, which records its operations, unless it has
        more than `MANY_RANKS`.
    """

    folder: Path
    seed: int
    cause: str | None
    version: CorpusVersion = 1
    mechanism: str | None = None
    operations: bool = False

    @property
    def prefix(self) -> str:
        """Prefix of the names of all windows."""
        usual = "fleet" if self.operations else "mixture"
        kind = self.mechanism or self.cause or usual
        kind += "-fleet" if self.operations and kind != usual else ""
        return f"{kind}-{self.seed}-" if self.version == 1 else f"{kind}-v{self.version}-{self.seed}-"

    def name(self, number: int) -> str:
        """Name of a window, counted from 1."""
        return f"{self.prefix}{number:05d}"

    def holds(self, number: int) -> bool:
        """Whether a window exists; its folder appears whole or not at all."""
        return (self.folder / self.name(number)).exists()

    def simulated(self, number: int) -> tuple[Window, WindowLabel]:
        """Simulate a window; it depends on seed, cause and number only."""
        # The same child as of SeedSequence(seed).spawn, without spawning all before it.
        child = np.random.SeedSequence(self.seed, spawn_key=(number - 1,))
        rng = np.random.default_rng(child)
        scenario = sampled(rng, self.version, cause=self.cause, mechanism=self.mechanism)
        if self.operations and scenario.world_size <= MANY_RANKS:
            traced = scenario.telemetry.model_copy(update={"ops": True})
            scenario = scenario.model_copy(update={"telemetry": traced})
        labelled = simulate(scenario)
        window = labelled.window
        if self.operations:
            # The id shows which job of the fleet it is.
            window = replace(window, job=window.job.model_copy(update={"job_id": self.name(number)}))
        return window, WindowLabel.model_validate(labelled.label)

    def entry(self, number: int, label: WindowLabel | None = None) -> dict[str, Any]:
        """The window's line in the manifest."""
        name = self.name(number)
        known = read_label(self.folder / name) if label is None else label
        return {
            "id": name,
            "path": name,
            "failure_mode": known.failure_mode,
            "causes": [each.cause for each in known.causes],
            "seed": self.seed,
        }


def simulate_collection(
    folder: Path,
    n_windows: int,
    seed: int,
    *,
    cause: str | None = None,
    version: CorpusVersion = 1,
    mechanism: str | None = None,
    operations: bool = False,
    workers: Workers = HERE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write `n_windows` labelled windows and their manifest; existing windows are kept.

    A killed run can be repeated: windows appear whole or not at all, and the manifest lists only existing
    windows.

    Parameters
    ----------
    version : {1, 2}
        Of the corpus; 2 also has mechanisms.
    mechanism : str, optional
        The mechanism of every window, of version 2.
    operations : bool
        Whether each window is of a job of its own with operations, which `rca sweep what-if` replays.
    workers : Workers
        Without influence on any byte.
    progress : callable
        ``(done, total)`` windows, existing ones included.

    Returns
    -------
    int
        Windows in the collection.

    Raises
    ------
    InvalidInput
        If the folder holds another collection, because its manifest would be lost.
    """
    plan = CollectionPlan(folder, seed, cause, version, mechanism, operations)
    _refuse_other_collection(plan)
    folder.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(plan)
    numbers = range(1, n_windows + 1)
    # The manifest also lists existing windows beyond `n_windows`.
    there = (int(path.name.removeprefix(plan.prefix)) for path in folder.glob(f"{plan.prefix}[0-9]*"))
    entries = {number: plan.entry(number) for number in sorted(there)}
    missing = [number for number in numbers if number not in entries]
    progress(len(entries), n_windows)
    written = time.monotonic()
    try:
        for number, entry in zip(missing, _written(plan, missing, workers), strict=True):
            entries[number] = entry
            progress(len(entries), n_windows)
            if time.monotonic() - written > MANIFEST_SECONDS:
                _write_manifest(plan, entries)
                written = time.monotonic()
    finally:
        _write_manifest(plan, entries)
    return len(entries)


def _written(plan: CollectionPlan, numbers: list[int], workers: Workers) -> Iterator[dict[str, Any]]:
    """Manifest lines of windows as they are written, in order."""
    windows = workers.for_few(len(numbers)).map(plan.simulated, numbers, chunk=CHUNK)
    for number, (window, label) in zip(numbers, windows, strict=True):
        write_labelled(window, label, plan.folder / plan.name(number))
        yield plan.entry(number, label)


def _write_manifest(plan: CollectionPlan, entries: dict[int, dict[str, Any]]) -> None:
    lines = [entries[number] for number in sorted(entries)]
    write_manifest(plan.folder, lines, {"seed": plan.seed, "cause": plan.cause})


def _refuse_other_collection(plan: CollectionPlan) -> None:
    if not (plan.folder / MANIFEST_FILE).exists():
        return
    foreign = [entry.id for entry in read_collection(plan.folder) if not entry.id.startswith(plan.prefix)]
    if foreign:
        raise InvalidInput(
            f"{plan.folder}: holds another collection (window {foreign[0]!r})",
            hint="the same seed and cause resume it; other windows need another folder",
        )


def _clear_leftovers(plan: CollectionPlan) -> None:
    """Remove the half-written windows of a killed run."""
    for staged in plan.folder.glob(f".{plan.prefix}*.new"):
        shutil.rmtree(staged, ignore_errors=True)
