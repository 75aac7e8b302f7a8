"""The classifier's part of a training: heads, then thresholds and limits chosen on windows not fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rca.arrays import FloatArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.lab.training.corpus import Corpus
from rca.lab.training.earlier_trees import EarlierTrees
from rca.lab.training.heads import FittedHead, Progress, fit_heads
from rca.lab.training.healthy_augmentation import halves
from rca.lab.training.settings import Settings
from rca.lab.training.thresholds import choose_thresholds
from rca.lab.training.uncertainty import fit_doubt
from rca.workers import HERE, Workers


@dataclass(frozen=True)
class Learned:
    """The classifier's part of a bundle.

    Attributes
    ----------
    doubt : dict
        Optional members of ``heads.json``, see `rca.classify.uncertainty.Doubt`.
    """

    heads: dict[str, FittedHead]
    thresholds: dict[str, float]
    doubt: dict[str, Any]


def learn(
    corpus: Corpus,
    seed: int,
    progress: Progress,
    settings: Settings | None = None,
    more_healthy: FloatArray | None = None,
    earlier: EarlierTrees | None = None,
    workers: Workers = HERE,
) -> Learned:
    """Fit and calibrate the heads, and choose thresholds and limits on the validation part.

    One half of the healthy windows `more_healthy` (`rca.lab.training.healthy_augmentation`) is fitted on, the
    other half chooses the alarm thresholds. `earlier` has the trees to start from. `workers` fit large heads.
    """
    fitted_on, judging = (None, None) if more_healthy is None else halves(more_healthy)
    heads = fit_heads(corpus, seed, progress, settings, fitted_on, earlier, workers)
    loaded = {name: Head.load(name, head.entry(), head.text, HEADS[name]) for name, head in heads.items()}
    thresholds = choose_thresholds(corpus, loaded, judging)
    return Learned(heads, thresholds, fit_doubt(corpus, loaded, thresholds))
