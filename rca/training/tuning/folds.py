"""Grouped folds of one head's rows: what comes from one scenario or incident is never on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rca.training.heads import BoolArray, Target
from rca.training.split import SHARES

#: Of the rows that a fold learns from: as in a training, where validation and test are not learned from.
_CALIBRATION = SHARES["calibration"] / (SHARES["calibration"] + SHARES["train"])


def grouped_folds(target: Target, n_folds: int, salt: str) -> Iterator[tuple[Target, BoolArray]]:
    """Targets whose part ``test`` is one fold each; the other rows' groups train and calibrate.

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
    names, row = np.unique(target.group, return_inverse=True)
    fold = np.array([int(_draw(salt, name) * n_folds) for name in names])[row]
    calibrates = np.array([_draw(f"{salt}/calibration", name) < _CALIBRATION for name in names])[row]
    for number in range(n_folds):
        scored: BoolArray = fold == number
        part = np.where(scored, "test", np.where(calibrates, "calibration", "train"))
        yield replace(target, part=part), scored


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


def _draw(salt: str, name: str) -> float:
    """Number from 0 to 1 that follows from the name alone."""
    digest = hashlib.sha256(f"{salt}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
