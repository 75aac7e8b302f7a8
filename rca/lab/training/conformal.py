"""Floors of the prediction sets, from validation windows that no head was fitted or calibrated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.beliefs import combine, pooled
from rca.classify.head import Head
from rca.classify.shared_parts import without_single_node_link
from rca.features import WINDOW_FEATURES
from rca.lab.training.corpus import Corpus
from rca.lab.training.split import mask

#: Share of new windows whose set contains the true class.
LEVEL = 0.9
#: A class with fewer held-out groups has the floor of all classes together: its own would depend on a single
#: window.
MIN_GROUPS = 20.0


def fit_sets(corpus: Corpus, heads: Mapping[str, Head], level: float = LEVEL) -> dict[str, Any]:
    """The member ``sets`` of ``heads.json``.

    Parameters
    ----------
    heads : mapping of str to Head
        Fitted and calibrated on other parts of the corpus.
    """
    held = mask(corpus.part, "validation")
    modes = np.array(corpus.mode)
    stopped = held & (modes == "fail_stop")
    return {
        "level": level,
        "floors": {
            "mode": _of_windows(corpus, heads["mode"], held, corpus.mode, level),
            "cause": _of_causes(corpus, heads, held & (modes == "fail_slow"), level),
            "stop_cause": _of_windows(corpus, heads["stop_cause"], stopped, corpus.cause, level),
        },
    }


def _of_windows(
    corpus: Corpus, head: Head, held: BoolArray, truth: Sequence[str], level: float
) -> dict[str, float]:
    chances = head.probabilities(corpus.window[held])
    groups = np.array(corpus.group)[held]
    return floors(chances, np.array(truth)[held], head.classes, corpus.weight[held], groups, level)


def _of_causes(corpus: Corpus, heads: Mapping[str, Head], held: BoolArray, level: float) -> dict[str, float]:
    """One row per window and cause: probabilities of all causes on the ranks that have it."""
    rows = np.flatnonzero(held[corpus.owner] & corpus.faulty)
    types, causes = (heads[name].probabilities(corpus.rank[rows]) for name in ("type", "cause"))
    names = np.array(corpus.rank_cause)[rows]
    owner = corpus.owner[rows]
    keys = sorted(set(zip(owner.tolist(), names.tolist(), strict=True)))
    chances = np.array(
        [
            _probabilities(corpus, heads, window, types[members], causes[members])
            for window, name in keys
            for members in [(owner == window) & (names == name)]
        ]
    ).reshape(len(keys), len(heads["cause"].classes))
    windows = np.array([window for window, _ in keys], dtype=np.int64)
    truth = np.array([name for _, name in keys])
    groups = np.array(corpus.group)[windows]
    return floors(chances, truth, heads["cause"].classes, corpus.weight[windows], groups, level)


def _probabilities(
    corpus: Corpus, heads: Mapping[str, Head], window: int, types: FloatArray, causes: FloatArray
) -> list[float]:
    """Probability of every cause of the head, combined over ranks as in a diagnosis."""
    kinds = dict(zip(heads["type"].classes, pooled(types).tolist(), strict=True))
    named = dict(zip(heads["cause"].classes, pooled(causes).tolist(), strict=True))
    combined = combine(kinds, named)
    several_nodes = corpus.window[window, WINDOW_FEATURES.index("log2_nodes")] > 0
    if corpus.scope[window] == "job" and several_nodes:
        combined = without_single_node_link(combined)
    return [combined[name] for name in heads["cause"].classes]


def floors(
    chances: FloatArray,
    truth: np.ndarray[tuple[int], np.dtype[np.str_]],
    classes: Sequence[str],
    weights: FloatArray,
    groups: np.ndarray[tuple[int], np.dtype[np.str_]],
    level: float,
) -> dict[str, float]:
    """Smallest probability at which each class stays plausible.

    Parameters
    ----------
    chances : ndarray of shape (n_rows, n_classes)
    truth : ndarray of shape (n_rows,), str
        True class per row.
    weights : ndarray of shape (n_rows,)
    groups : ndarray of shape (n_rows,), str
        Rows of one group are not independent.
    """
    column = np.array([classes.index(name) for name in truth], dtype=np.int64)
    scores = -chances[np.arange(truth.size), column]
    together = _floor(scores, weights, groups, level)
    found = {}
    for index, name in enumerate(classes):
        own = column == index
        enough = effective_groups(weights[own], groups[own]) >= MIN_GROUPS
        found[name] = _floor(scores[own], weights[own], groups[own], level) if enough else together
    return found


def _floor(
    scores: FloatArray, weights: FloatArray, groups: np.ndarray[tuple[int], np.dtype[np.str_]], level: float
) -> float:
    return max(-held_out_quantile(scores, weights, groups, level), 0.0)


def held_out_quantile(
    scores: FloatArray, weights: FloatArray, groups: np.ndarray[tuple[int], np.dtype[np.str_]], level: float
) -> float:
    """Smallest score that a new window stays at or below with probability `level`.

    This is the conformal quantile: one more group with an unknown score is added to the held-out weight. It
    is exact for rows of equal weight in groups of their own. With several rows per group or unequal weights
    it is an approximation by Kish's effective number of groups.

    Returns
    -------
    float
        Infinite if the groups are too few for the level.

    References
    ----------
    Lee, Barber, Willett, "Distribution-free inference with hierarchical data" (2023), for groups.
    """
    if scores.size == 0:
        return float("inf")
    order = np.argsort(scores, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    wanted = level * (1.0 + 1.0 / effective_groups(weights, groups))
    # Sums of many weights have rounding errors in the last digits.
    reached = np.flatnonzero(share >= wanted - 1e-9)
    return float(scores[order[reached[0]]]) if reached.size else float("inf")


def effective_groups(weights: FloatArray, groups: np.ndarray[tuple[int], np.dtype[np.str_]]) -> float:
    """Kish's effective number of groups; 0 without groups."""
    if weights.size == 0:
        return 0.0
    _, index = np.unique(groups, return_inverse=True)
    summed = np.bincount(index, weights)
    return float(summed.sum() ** 2 / (summed * summed).sum())
