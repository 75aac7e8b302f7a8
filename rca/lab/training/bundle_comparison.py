"""Two bundles on the same frozen test windows: their answers, and the time that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from rca.diagnosis import Bundle, diagnose
from rca.diagnosis.bundle import baseline
from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.evaluation.run import EvaluationPlan, evaluate_entries
from rca.lab.evaluation.simulated import evaluate_simulated
from rca.lab.simulation.corpus import simulated_window
from rca.lab.training.digests import joint_digest, window_digest
from rca.lab.training.held_out import SIMULATED
from rca.lab.training.incidents import incidents
from rca.lab.training.promotion_gate import Latency, Pair
from rca.lab.training.split import seeds_of
from rca.sources.labels import CollectionEntry, read_collection
from rca.window.window import Window
from rca.workers import HERE, Workers

Progress = Callable[[str, int, int], None]

#: Enough to distinguish a false-alarm rate of 1 % from one of 2 %.
TEST_WINDOWS = 2000
LATENCY_WINDOWS = 40
#: The shortest of so many runs counts: other processes on the machine only add time.
LATENCY_REPEATS = 3


@dataclass(frozen=True)
class Trial:
    """Answers of two versions to the same windows.

    Attributes
    ----------
    windows : dict of str to int
        Number of windows of each source.
    digest : str
        Identity of the whole test set.
    left_out : int
        Real test windows that one of the versions has learned from.
    """

    sources: dict[str, Pair]
    windows: dict[str, int]
    latency: Latency
    digest: str
    left_out: int


def run_trial(
    champion: Path | None,
    challenger: Path,
    *,
    collections: Mapping[str, Path],
    learned: Set[str] = frozenset(),
    n_windows: int = TEST_WINDOWS,
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> Trial:
    """Diagnose the frozen scenarios and the test part of each collection with both bundles.

    Parameters
    ----------
    champion : Path or None
        Bundle folder; None is the shipped bundle.
    learned : set of str
        Digests of windows that either version has learned from; they are left out.
    n_windows : int
        Simulated scenarios.
    workers : Workers
        Without influence on the answers; latency is measured in a single process.
    """
    # These scenarios are in no corpus: the split depends on the scenario only.
    seeds = seeds_of("test", n_windows)
    one, other = evaluate_simulated(
        seeds,
        [champion, challenger],
        workers=workers,
        progress=lambda done, total: progress("both versions on frozen scenarios", done, total),
    )
    sources = {SIMULATED: _pair(one, other)}
    identities = [f"simulation-{seed}" for seed in seeds]
    left_out = 0
    for name, folder in collections.items():
        held, dropped = _test_entries(folder, learned)
        left_out += dropped
        identities += list(held)
        if held:
            sources[name] = _on_collection(list(held.values()), champion, challenger, workers, progress)
    return Trial(
        sources=sources,
        windows={name: len(pair.champion) for name, pair in sources.items()},
        latency=_latency(champion, challenger, seeds[:LATENCY_WINDOWS], progress),
        digest=joint_digest(identities),
        left_out=left_out,
    )


def _pair(champion: list[JudgedRow], challenger: list[JudgedRow]) -> Pair:
    return Pair([row.judged for row in champion], [row.judged for row in challenger])


def _test_entries(folder: Path, learned: Set[str]) -> tuple[dict[str, CollectionEntry], int]:
    """Test windows by digest, and the number of those left out because a version has learned from them."""
    every = [each.entry for each in incidents(read_collection(folder)) if each.part == "test"]
    by_digest = {window_digest(entry.path): entry for entry in every}
    held = {digest: entry for digest, entry in by_digest.items() if digest not in learned}
    return held, len(by_digest) - len(held)


def _on_collection(
    entries: list[CollectionEntry],
    champion: Path | None,
    challenger: Path,
    workers: Workers,
    progress: Progress,
) -> Pair:
    rows = [
        evaluate_entries(
            entries,
            EvaluationPlan(bundle=bundle),
            workers=workers,
            progress=lambda done, total: progress("both versions on real windows", done, total),
        ).product_rows
        for bundle in (champion, challenger)
    ]
    return _pair(*rows)


def _latency(champion: Path | None, challenger: Path, seeds: list[int], progress: Progress) -> Latency:
    """Seconds per diagnosis; both versions take turns on each window, so other load affects both."""
    bundles = (baseline() if champion is None else Bundle.load(champion), Bundle.load(challenger))
    taken = []
    for done, seed in enumerate(seeds, start=1):
        window, _ = simulated_window(seed)
        runs = [[_timed(window, bundle) for bundle in bundles] for _ in range(LATENCY_REPEATS)]
        taken.append(np.min(runs, axis=0))
        progress("timing both versions", done, len(seeds))
    columns = np.array(taken).reshape(-1, 2).T
    return Latency(champion=columns[0], challenger=columns[1])


def _timed(window: Window, bundle: Bundle) -> float:
    begin = perf_counter()
    diagnose(window, bundle=bundle)
    return perf_counter() - begin
