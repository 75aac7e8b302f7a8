"""All windows that folds are cut from, with the facts that they are cut by: features computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rca.arrays import IntArray
from rca.evaluation.rows import severity_band
from rca.features import WINDOW_FEATURES
from rca.processes import mapped
from rca.simulation.sampling import sample_scenario
from rca.telemetry.labels import CollectionEntry, Label
from rca.training.corpus import Corpus, stack
from rca.training.feature_cache import FeatureCache
from rca.training.held_out import named
from rca.training.incidents import learned_incidents, varied_incidents
from rca.training.simulated import scenario_seeds, simulated_examples
from rca.training.split import scenario_group

Progress = Callable[[str, int, int], None]

#: A cause of the catalogue and the band of its severity.
Cell = tuple[str, str]
#: Sampling a scenario takes milliseconds: fewer at once would mostly start workers.
CHUNK = 64


@dataclass(frozen=True)
class Origin:
    """One scenario or capture: what all of its examples come from.

    Attributes
    ----------
    id : str
        Of the window, as judged rows name it.
    mode : str
        As labelled.
    cells : frozenset of Cell
        Of everything that was done to the job, felt or not.
    world_size : int
    scenario, model : str
        What a campaign's manifest calls them; empty where it does not say, and for simulated scenarios.
    seed : int or None
        Of a simulated scenario.
    entry : CollectionEntry or None
        Of a captured window.
    """

    id: str
    mode: str
    cells: frozenset[Cell]
    world_size: int
    scenario: str = ""
    model: str = ""
    seed: int | None = None
    entry: CollectionEntry | None = None

    @property
    def real(self) -> bool:
        """Captured, not simulated."""
        return self.entry is not None


@dataclass(frozen=True)
class Pool:
    """Stacked examples and where each comes from.

    Attributes
    ----------
    corpus : Corpus
    origins : tuple of Origin
    origin : ndarray of shape (n_windows,), int
        Position in `origins` of each of the corpus's windows.
    """

    corpus: Corpus
    origins: tuple[Origin, ...]
    origin: IntArray

    @property
    def world_size(self) -> IntArray:
        """Ranks of each window, shape (n_windows,): variants of a capture may have fewer than it."""
        ranks = self.corpus.window[:, WINDOW_FEATURES.index("log2_ranks")]
        return np.round(2.0**ranks).astype(np.int64)


def build_pool(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    variants: int,
    processes: int,
    cache: FeatureCache | None,
    progress: Progress,
) -> Pool:
    """Simulated scenarios and captures with their facts; features come from the cache where it has them.

    Parameters
    ----------
    variants : int
        Of each capture, see `rca.training.incidents.varied`.
    """
    # Folds decide what is learned from, so a manifest's own split does not.
    captures = {
        name: learned_incidents(folder, every_part=True) for name, folder in named(collections).items()
    }
    examples = []
    for each in simulated_examples(n_windows, seed, processes=processes, cache=cache):
        examples.append(each)
        progress("simulating and extracting features", len(examples), n_windows)
    origins = list(_simulated([each.mode for each in examples], scenario_seeds(n_windows, seed), processes))
    counts = [1] * n_windows
    for name, found in captures.items():
        batches = varied_incidents(found, seed, processes=processes, variants=variants, cache=cache)
        for done, (incident, batch) in enumerate(zip(found, batches, strict=True), start=1):
            origins.append(_captured(name, incident.entry))
            examples += batch
            counts.append(len(batch))
            progress("varying real windows", done, len(found))
    return Pool(stack(examples), tuple(origins), np.repeat(np.arange(len(origins)), counts))


def _simulated(modes: Sequence[str], seeds: Sequence[int], processes: int) -> Iterator[Origin]:
    facts = mapped(scenario_facts, seeds, processes, chunk=CHUNK)
    for mode, seed, (cells, size) in zip(modes, seeds, facts, strict=True):
        yield Origin(scenario_group(seed), mode, cells, size, seed=seed)


def scenario_facts(seed: int) -> tuple[frozenset[Cell], int]:
    """What was done in the simulated scenario of a seed, and how many ranks it has."""
    scenario = sample_scenario(np.random.default_rng(seed))
    cells = frozenset((fault.cause, severity_band(fault.severity)) for fault in scenario.faults)
    return cells, scenario.parallelism.world_size


def _captured(collection: str, entry: CollectionEntry) -> Origin:
    label, told = entry.read_label(), entry.summary
    return Origin(
        id=entry.id,
        mode=label.failure_mode,
        cells=_cells(label),
        world_size=int(told.get("world_size") or entry.read_window().job.world_size),
        scenario=f"{collection}/{told.get('group', entry.id)}",
        model=str(told.get("model", "")),
        entry=entry,
    )


def _cells(label: Label) -> frozenset[Cell]:
    severities = [(each.cause, np.nan if each.severity is None else each.severity) for each in label.causes]
    return frozenset((cause, severity_band(severity)) for cause, severity in severities)
