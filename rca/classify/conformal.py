"""Prediction sets: every class that held-out windows do not rule out, at a stated level of confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Questions that have prediction sets. Their classes: failure modes, causes of slowness, causes of a stop.
QUESTIONS = ("mode", "cause", "stop_cause")


@dataclass(frozen=True)
class PredictionSets:
    """Per question and class, the smallest probability at which the class stays plausible.

    Split conformal prediction, conditional on the class where it has enough held-out windows. Of new windows
    that are exchangeable with those, at least a share of `level` have their class in the set. There is no
    guarantee for jobs unlike the training jobs.

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic learning in a random world" (2005), chapter 4: Mondrian
    conformal prediction.

    Attributes
    ----------
    level : float
        Between 0 and 1.
    floors : dict of str to dict of str to float
        Question -> class -> floor. A class without a floor is never ruled out.
    """

    level: float
    floors: dict[str, dict[str, float]]

    @classmethod
    def load(cls, document: dict[str, Any]) -> PredictionSets:
        """Build from the member ``sets`` of ``heads.json``.

        Raises
        ------
        ValueError
            A level or a floor that is no probability.
        """
        level = float(document["level"])
        floors = {
            question: {str(name): float(floor) for name, floor in document["floors"][question].items()}
            for question in QUESTIONS
        }
        numbers = [level, *(floor for classes in floors.values() for floor in classes.values())]
        if not all(0.0 <= number <= 1.0 for number in numbers):
            raise ValueError("prediction sets: a level or floor outside 0 to 1")
        return cls(level, floors)

    def plausible(self, question: str, chances: Mapping[str, float], answered: str | None) -> list[str]:
        """Classes that are not ruled out, the most probable first.

        Parameters
        ----------
        question : str
            One of `QUESTIONS`.
        chances : mapping of class to probability
        answered : str or None
            The answer's class. It and the most probable class are never ruled out, so a set is not empty and
            does not contradict its answer.

        Notes
        -----
        Where the model is right more often than `level`, floors alone would rule out likely classes. So a
        class with a probability of at least ``1 - level`` stays as well. All three exceptions only add
        classes, so they only raise the coverage.
        """
        floors, likely = self.floors[question], 1.0 - self.level
        ordered = sorted(chances, key=lambda name: (-chances[name], name))
        return [
            name
            for position, name in enumerate(ordered)
            if position == 0 or name == answered or chances[name] >= min(floors.get(name, 0.0), likely)
        ]
