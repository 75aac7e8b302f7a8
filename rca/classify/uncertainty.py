"""What a bundle knows about the limits of its answers. Older bundles lack it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.classify.answer_distribution import AnswerShares
from rca.classify.conformal import PredictionSets
from rca.classify.out_of_distribution import Familiarity
from rca.features import RANK_FEATURES, WINDOW_FEATURES

#: Feature table -> its columns, in order.
TABLES = {"window": WINDOW_FEATURES, "rank": RANK_FEATURES}


@dataclass(frozen=True)
class Doubt:
    """Optional members of ``heads.json``; any of them may be missing.

    Attributes
    ----------
    sets : PredictionSets or None
        Which other answers are plausible.
    familiarity : Familiarity or None
        Whether a window is like the training windows.
    healthy : dict of str to ndarray of shape (n_features_of_table,)
        Median of every feature over healthy training windows, by table; NaN where it is not known.
    answers : AnswerShares or None
        Distribution of the answers to held-out windows.
    """

    sets: PredictionSets | None
    familiarity: Familiarity | None
    healthy: dict[str, FloatArray]
    answers: AnswerShares | None = None

    @classmethod
    def load(cls, document: dict[str, Any]) -> Doubt:
        """Read the members that ``heads.json`` holds.

        Raises
        ------
        KeyError, TypeError, ValueError
            A member that is there but malformed.
        """
        sets, familiarity = document.get("sets"), document.get("familiarity")
        answers = document.get("answers")
        medians = document.get("healthy", {})
        return cls(
            sets=None if sets is None else PredictionSets.load(sets),
            familiarity=None if familiarity is None else Familiarity.load(familiarity),
            healthy={table: _medians(medians.get(table, {}), names) for table, names in TABLES.items()},
            answers=None if answers is None else AnswerShares.load(answers),
        )


def _medians(found: dict[str, float], names: tuple[str, ...]) -> FloatArray:
    values = np.full(len(names), np.nan)
    for name, median in found.items():
        values[names.index(name)] = median
    return values
