"""All windows that folds are made of, with the facts that decide the folds; features are computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.features import WINDOW_FEATURES
from rca.lab.evaluation.judged_rows import severity_band
from rca.lab.simulation.corpus import TRAINED_VERSION, sampled
from rca.lab.training.corpus import Corpus, stack
from rca.lab.training.digests import files_digest
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.held_out import named
from rca.lab.training.incidents import learned_incidents, varied_incidents
from rca.lab.training.simulated import scenario_seeds, simulated_examples
from rca.lab.training.split import scenario_group
from rca.sources.labels import CollectionEntry, WindowLabel
from rca.workers import Workers

Progress = Callable[[str, int, int], None]

#: A cause of the catalogue and the band of its severity.
Cell = tuple[str, str]
#: Scenarios that a worker samples at once; one takes milliseconds.
CHUNK = 64


@dataclass(frozen=True)
class Origin:
    """One scenario or capture: the source of all its examples.

    Attributes
    ----------
    id : str
        Of the window, as in judged rows.
    mode : str
        Labelled failure mode.
    cells : frozenset of Cell
        All injected faults, with or without effect.
    scenario, cluster, model : str
        Facts of a capture: its group in the manifest, its collection, its model. "" if unknown or simulated.
    seed : int or None
        Of a simulated scenario.
    entry : CollectionEntry or None
        Of a capture.
    """

    id: str
    mode: str
    cells: frozenset[Cell]
    world_size: int
    scenario: str = ""
    cluster: str = ""
    model: str = ""
    seed: int | None = None
    entry: CollectionEntry | None = None

    @property
    def real(self) -> bool:
        """Captured, not simulated."""
        return self.entry is not None


@dataclass(frozen=True)
class Pool:
    """Stacked examples and the origin of each.

    Attributes
    ----------
    origin : ndarray of shape (n_windows,), int
        Position in `origins` of each window of the corpus.
    """

    corpus: Corpus
    origins: tuple[Origin, ...]
    origin: IntArray

    @property
    def world_size(self) -> IntArray:
        """Ranks of each window, shape (n_windows,); a variant may have fewer ranks than its capture."""
        ranks = self.corpus.window[:, WINDOW_FEATURES.index("log2_ranks")]
        return np.round(2.0**ranks).astype(np.int64)

    @property
    def simulated(self) -> BoolArray:
        """Which windows are simulated, shape (n_windows,)."""
        return ~np.array(self.corpus.real)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the examples and of the captures' files."""
        sha = hashlib.sha256(self.corpus.digest.encode())
        for each in self.origins:
            sha.update((each.id if each.entry is None else files_digest(each.entry.path)).encode() + b"\0")
        return sha.hexdigest()


def build_pool(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    variants: int,
    workers: Workers,
    cache: FeatureCache | None,
    progress: Progress,
) -> Pool:
    """Simulated scenarios and captures with their facts; the cache keeps the features.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.lab.training.run.train`.
    variants : int
        Variants of each capture, see `rca.lab.training.incidents.varied`.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.

    Raises
    ------
    SourceError, InvalidInput
        As `rca.lab.training.incidents.learned_incidents`, before anything is simulated.
    """
    captures = {
        name: learned_incidents(folder, every_part=True) for name, folder in named(collections).items()
    }
    examples = []
    for each in simulated_examples(n_windows, seed, workers=workers, cache=cache):
        examples.append(each)
        progress("simulating and extracting features", len(examples), n_windows)
    seeds = scenario_seeds(n_windows, seed)
    facts = workers.map(scenario_facts, seeds, chunk=CHUNK)
    origins = [
        Origin(scenario_group(of), each.mode, cells, size, seed=of)
        for each, of, (cells, size) in zip(examples, seeds, facts, strict=True)
    ]
    counts = [1] * len(examples)
    for name, found in captures.items():
        batches = varied_incidents(found, seed, workers=workers, variants=variants, cache=cache)
        for done, (incident, batch) in enumerate(zip(found, batches, strict=True), start=1):
            origins.append(_captured(name, incident.entry))
            # As in a training, weights go by collection.
            examples += [replace(each, group=f"{name}/{each.group}") for each in batch]
            counts.append(len(batch))
            progress("varying real windows", done, len(found))
    return Pool(stack(examples), tuple(origins), np.repeat(np.arange(len(origins)), counts))


def scenario_facts(seed: int) -> tuple[frozenset[Cell], int]:
    """Injected faults and number of ranks of the simulated scenario of a seed."""
    scenario = sampled(np.random.default_rng(seed), TRAINED_VERSION)
    cells = frozenset((fault.cause, severity_band(fault.severity)) for fault in scenario.faults)
    return cells, scenario.parallelism.world_size


def _captured(collection: str, entry: CollectionEntry) -> Origin:
    label, facts = entry.read_label(), entry.summary
    return Origin(
        id=entry.id,
        mode=label.failure_mode,
        cells=_cells(label),
        world_size=int(facts.get("world_size") or entry.read_window().job.world_size),
        scenario=f"{collection}/{facts.get('group', entry.id)}",
        cluster=collection,
        model=str(facts.get("model", "")),
        entry=entry,
    )


def _cells(label: WindowLabel) -> frozenset[Cell]:
    severities = [(each.cause, np.nan if each.severity is None else each.severity) for each in label.causes]
    return frozenset((cause, severity_band(severity)) for cause, severity in severities)
