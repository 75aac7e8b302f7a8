"""Log loss of a head on rows that it has not learned, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.lab.evaluation.intervals import Estimate, bootstrap
from rca.lab.training.heads import FittedHead, Target


class Losses(NamedTuple):
    """Log loss of one head on rows that it has not learned, per group; arrays of shape (n_groups,)."""

    summed: FloatArray
    weight: FloatArray

    @property
    def mean(self) -> float:
        """Weighted mean over rows."""
        return float(self.summed.sum() / self.weight.sum())

    @classmethod
    def of(cls, parts: Sequence[Losses]) -> Losses:
        """Losses of disjoint sets of groups together."""
        summed, weight = zip(*parts, strict=True)
        return cls(np.concatenate(summed), np.concatenate(weight))

    def to_lists(self) -> list[list[float]]:
        """For JSON."""
        return [self.summed.tolist(), self.weight.tolist()]

    @classmethod
    def read(cls, lists: list[list[float]]) -> Losses:
        """From what `to_lists` gives."""
        return cls(*map(np.array, lists))


def held_out_losses(head: FittedHead, target: Target, held: BoolArray) -> Losses:
    """Log loss of a fitted head on some of its target's rows.

    Parameters
    ----------
    held : ndarray of shape (n_rows,), bool
    """
    loaded = Head.load(head.name, head.entry(), head.text, HEADS[head.name])
    codes = [target.classes.index(label) for label, kept in zip(target.labels, held, strict=True) if kept]
    chance = loaded.probabilities(target.rows[held])[np.arange(len(codes)), codes]
    loss = -np.log(np.maximum(chance, 1e-12)) * target.weight[held]
    _, group = np.unique(target.group[held], return_inverse=True)
    return Losses(*(np.bincount(group, each).astype(float) for each in (loss, target.weight[held])))


def loss_change(base: Losses, other: Losses, seed: int = 0) -> Estimate:
    """Mean rise of the log loss with its 95 % interval from drawing whole groups."""
    return bootstrap((other.summed - base.summed) / base.weight.mean(), np.random.default_rng(seed))
