"""The classifier's part of a training: heads, then what is chosen on windows that they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rca.arrays import FloatArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.training.corpus import Corpus
from rca.training.heads import FittedHead, fit_heads
from rca.training.healthy_augmentation import halves
from rca.training.settings import Settings
from rca.training.thresholds import choose_thresholds
from rca.training.uncertainty import fit_doubt


@dataclass(frozen=True)
class Learned:
    """All that a corpus teaches the classifier.

    Attributes
    ----------
    heads : dict of str to FittedHead
    thresholds : dict of str to float
    doubt : dict
        Optional members of ``heads.json``, see `rca.classify.uncertainty.Doubt`.
    """

    heads: dict[str, FittedHead]
    thresholds: dict[str, float]
    doubt: dict[str, Any]


def learn(
    corpus: Corpus,
    seed: int,
    progress: Callable[[str], None],
    settings: Settings | None = None,
    innocents: FloatArray | None = None,
) -> Learned:
    """Fit and calibrate the heads on the corpus's first two parts, choose the rest on its validation part.

    `innocents` are more healthy windows, see `rca.training.healthy_augmentation`.
    One half is fitted on; the other chooses the alarm thresholds.
    """
    taught, judging = (None, None) if innocents is None else halves(innocents)
    heads = fit_heads(corpus, seed, progress, settings, taught)
    loaded = {name: Head.load(name, head.entry(), head.text, HEADS[name]) for name, head in heads.items()}
    thresholds = choose_thresholds(corpus, loaded, judging)
    return Learned(heads, thresholds, fit_doubt(corpus, loaded, thresholds))
