"""Grouped folds of one head's rows: what comes from one scenario or incident is never on both sides."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.training.heads import Target

#: Every so many of the groups that a fold learns from calibrate: about the share that they are in a training.
CALIBRATES = 6


def grouped_folds(target: Target, n_folds: int, salt: str) -> Iterator[tuple[Target, BoolArray]]:
    """Targets whose part ``test`` is one fold each; the other rows' groups train and calibrate.

    Groups are dealt out class by class: a rare class has to be in every part of every fold.

    Parameters
    ----------
    target : Target
        Its own parts do not matter.
    n_folds : int
    salt : str
        Another salt deals the groups anew: inner folds must not follow outer ones.

    Yields
    ------
    target : Target
    scored : ndarray of shape (n_rows,), bool
        Rows of the fold.
    """
    names, first, row = np.unique(target.group, return_index=True, return_inverse=True)
    place = _places(names.tolist(), [target.labels[position] for position in first], salt)[row]
    calibrates = (place // n_folds) % CALIBRATES == 0
    for number in range(n_folds):
        scored: BoolArray = place % n_folds == number
        part = np.where(scored, "test", np.where(calibrates, "calibration", "train"))
        yield replace(target, part=part), scored


def _places(names: list[str], labels: list[str], salt: str) -> IntArray:
    """Place of each group among those of its class, in an order that has nothing to do with its name."""
    found = np.empty(len(names), dtype=np.int64)
    taken: Counter[str] = Counter()
    for group in sorted(
        range(len(names)), key=lambda each: hashlib.sha256(f"{salt}/{names[each]}".encode()).digest()
    ):
        found[group] = taken[labels[group]]
        taken[labels[group]] += 1
    return found


def rows_of(target: Target, kept: BoolArray) -> Target:
    """The target with some of its rows only."""
    return replace(
        target,
        rows=target.rows[kept],
        labels=tuple(np.array(target.labels)[kept].tolist()),
        part=target.part[kept],
        weight=target.weight[kept],
        group=target.group[kept],
    )
