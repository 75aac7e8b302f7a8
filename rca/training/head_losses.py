"""Log loss of a head on rows it has not seen, group by group: what heads and settings are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.evaluation.intervals import Estimate, bootstrap
from rca.training.heads import FittedHead, Target


class Losses(NamedTuple):
    """Held-out log loss of one head, per group of rows that belong together; arrays of shape (n_groups,)."""

    summed: FloatArray
    weight: FloatArray

    @property
    def mean(self) -> float:
        """Over rows, by their weight."""
        return float(self.summed.sum() / self.weight.sum())

    @classmethod
    def joined(cls, parts: Sequence[Losses]) -> Losses:
        """Of several sets of groups that have none in common."""
        summed, weight = zip(*parts, strict=True)
        return cls(np.concatenate(summed), np.concatenate(weight))


def held_out_losses(head: FittedHead, target: Target, held: BoolArray) -> Losses:
    """Log loss of a fitted head on some of its target's rows, weighted as in training.

    Parameters
    ----------
    head : FittedHead
    target : Target
    held : ndarray of shape (n_rows,), bool
    """
    loaded = Head.load(head.name, head.entry(), head.text, HEADS[head.name])
    codes = [target.classes.index(label) for label, kept in zip(target.labels, held, strict=True) if kept]
    chance = loaded.probabilities(target.rows[held])[np.arange(len(codes)), codes]
    loss = -np.log(np.maximum(chance, 1e-12)) * target.weight[held]
    _, group = np.unique(target.group[held], return_inverse=True)
    return Losses(_per_group(group, loss), _per_group(group, target.weight[held]))


def _per_group(group: IntArray, values: FloatArray) -> FloatArray:
    return np.bincount(group, values).astype(np.float64)


def change(base: Losses, other: Losses, seed: int = 0) -> Estimate:
    """Mean rise of the log loss with its 95 % interval: whole groups are drawn, both losses together."""
    scale = base.weight.mean()
    return bootstrap((other.summed - base.summed) / scale, np.random.default_rng(seed))
