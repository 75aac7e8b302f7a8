"""What a bundle knows about the limits of its answers, and the distribution of its answers.

Older bundles lack parts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rca.classify.conformal import PredictionSets
from rca.classify.out_of_distribution import Familiarity

#: Equal parts of the range of a probability.
CONFIDENCE_BINS = 10


@dataclass(frozen=True)
class AnswerShares:
    """Shares of a model's answers to held-out windows; each set of shares adds up to 1.

    Attributes
    ----------
    mode : dict of str to float
        By failure mode.
    confidence : tuple of float
        By the probability of the failure mode that is answered, in `CONFIDENCE_BINS` bins.
    """

    mode: dict[str, float]
    confidence: tuple[float, ...]

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> AnswerShares:
        """Build from the member ``answers`` of ``heads.json``.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is malformed.
        """
        mode = {str(name): float(share) for name, share in document["mode"].items()}
        confidence = tuple(float(share) for share in document["confidence"])
        if len(confidence) != CONFIDENCE_BINS:
            raise ValueError(f"answers: {CONFIDENCE_BINS} bins of confidence, not {len(confidence)}")
        for shares in (tuple(mode.values()), confidence):
            if min(shares, default=-1.0) < 0 or abs(sum(shares) - 1.0) > 1e-6:
                raise ValueError("answers: shares are not negative and add up to 1")
        return cls(mode, confidence)


def confidence_bin(probability: float) -> int:
    """Bin of a probability; 1 belongs to the last one."""
    return min(int(probability * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)


@dataclass(frozen=True)
class Doubt:
    """Optional members of ``heads.json``; any of them may be missing.

    Attributes
    ----------
    sets : PredictionSets or None
        Which other answers are plausible.
    familiarity : Familiarity or None
        Whether a window is like the training windows.
    answers : AnswerShares or None
        Distribution of the answers to held-out windows.
    """

    sets: PredictionSets | None
    familiarity: Familiarity | None
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
        return cls(
            sets=None if sets is None else PredictionSets.load(sets),
            familiarity=None if familiarity is None else Familiarity.load(familiarity),
            answers=None if answers is None else AnswerShares.load(answers),
        )
