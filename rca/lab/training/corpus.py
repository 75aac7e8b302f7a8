"""Labelled windows as feature rows with targets, for every fit and evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features import FeatureSet, extract
from rca.lab.training.split import part_of
from rca.sources.labels import Part, WindowLabel, unfelt
from rca.window.causes import CAUSES
from rca.window.window import Window

#: Healthy ranks kept of each window, and faulty ranks up to the same number. The classifier corrects for it
#: (`rca.classify.components.LEARNED_AMONG`). It is not imported, so that its rules do not void the cache.
RANKS_KEPT = 8
#: A label that blames at least this share of the ranks is about the whole job.
JOB_SHARE = 0.75


@dataclass(frozen=True)
class Example:
    """Feature rows and targets of one labelled window.

    Attributes
    ----------
    window : ndarray of shape (n_window_features,)
    rank : ndarray of shape (n_kept, n_rank_features)
    faulty : ndarray of shape (n_kept,), bool
        Whether the label blames the rank.
    causes : tuple of str
        Per kept rank the cause that the label blames it for, "" for the others.
    cause : str
        The label's first one; "" if there is none.
    scope : {"", "some", "job"}
        Whether the label blames some ranks or (nearly) all of them; "" for healthy windows.
    group : str
        Scenario or incident; one group is in one part.
    part : str
        Part of the data that the group belongs to.
    real : bool
        Captured, not simulated.
    unfelt : bool
        A fault was injected that has too little effect to be called one.
    """

    window: FloatArray
    rank: FloatArray
    faulty: BoolArray
    causes: tuple[str, ...]
    mode: str
    cause: str
    scope: str
    group: str
    part: Part
    real: bool = False
    unfelt: bool = False


@dataclass(frozen=True)
class Corpus:
    """Many examples, stacked.

    Attributes
    ----------
    window : ndarray of shape (n_windows, n_window_features)
    rank : ndarray of shape (n_rows, n_rank_features)
    owner : ndarray of shape (n_rows,), int
        Row of `window` a rank row belongs to.
    weight : ndarray of shape (n_windows,)
        Weight of each window in a fit.
    """

    window: FloatArray
    rank: FloatArray
    owner: IntArray
    faulty: BoolArray
    rank_cause: tuple[str, ...]
    mode: tuple[str, ...]
    cause: tuple[str, ...]
    scope: tuple[str, ...]
    group: tuple[str, ...]
    part: tuple[Part, ...]
    real: tuple[bool, ...]
    unfelt: tuple[bool, ...]
    weight: FloatArray

    @property
    def digest(self) -> str:
        """SHA-256 over features and targets: the identity of a data set in a tracked run."""
        sha = hashlib.sha256()
        for array in (self.window, self.rank, self.owner, self.faulty, self.weight):
            sha.update(np.ascontiguousarray(array).tobytes())
        for names in (
            self.rank_cause,
            self.mode,
            self.cause,
            self.scope,
            self.group,
            self.part,
        ):
            sha.update("\0".join(names).encode())
        return sha.hexdigest()


def example(window: Window, label: WindowLabel, group: str, seed: int) -> Example:
    """Features and targets of one labelled window; which healthy ranks are kept follows from `seed`."""
    return example_from_features(extract(window), label, group, seed)


def example_from_features(features: FeatureSet, label: WindowLabel, group: str, seed: int) -> Example:
    """As `example`, for features already computed."""
    blamed: dict[int, str] = {}
    for cause in label.causes:
        for rank in cause.ranks:
            blamed.setdefault(rank, cause.cause)
    n_ranks = features.rank.shape[0]
    rng = np.random.default_rng(seed)
    faulty = np.array(sorted(blamed), dtype=np.int64)
    clean = np.setdiff1d(np.arange(n_ranks), faulty)
    kept = np.sort(np.concatenate([_some(faulty, rng), _some(clean, rng)]))
    return Example(
        window=features.window,
        rank=features.rank[kept],
        faulty=np.isin(kept, faulty),
        causes=tuple(blamed.get(int(rank), "") for rank in kept),
        mode=label.failure_mode,
        cause=label.causes[0].cause if label.causes else "",
        scope=_scope(len(blamed), n_ranks),
        group=group,
        part=part_of(group),
        unfelt=unfelt(label),
    )


def _scope(n_blamed: int, n_ranks: int) -> str:
    if n_blamed == 0:
        return ""
    return "job" if n_ranks > 1 and n_blamed >= JOB_SHARE * n_ranks else "some"


def _some(ranks: IntArray, rng: np.random.Generator) -> IntArray:
    return ranks if ranks.size <= RANKS_KEPT else rng.choice(ranks, RANKS_KEPT, replace=False)


def stack(examples: Iterable[Example]) -> Corpus:
    """Put examples into one corpus, in order, with equal weights (see `rca.lab.training.weighting`)."""
    found = list(examples)
    return Corpus(
        window=np.stack([each.window for each in found]),
        rank=np.concatenate([each.rank for each in found]),
        owner=np.repeat(np.arange(len(found)), [each.rank.shape[0] for each in found]),
        faulty=np.concatenate([each.faulty for each in found]),
        rank_cause=tuple(cause for each in found for cause in each.causes),
        mode=tuple(each.mode for each in found),
        cause=tuple(each.cause for each in found),
        scope=tuple(each.scope for each in found),
        group=tuple(each.group for each in found),
        part=tuple(each.part for each in found),
        real=tuple(each.real for each in found),
        unfelt=tuple(each.unfelt for each in found),
        weight=np.ones(len(found)),
    )


def straggler_type(cause: str) -> str:
    """Type of a catalogue cause."""
    return CAUSES[cause].type
