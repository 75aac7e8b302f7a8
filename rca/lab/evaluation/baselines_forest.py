"""A random forest on raw means: a classifier without peers, past or causal structure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput, MissingExtra
from rca.features.work import OWN_PHASES
from rca.lab.evaluation.answer import Aspect, MethodAnswer, NamedCause
from rca.lab.evaluation.baseline_inputs import Observed
from rca.lab.evaluation.judged_rows import HEALTHY
from rca.robust import nan_mean
from rca.sources.labels import WindowLabel
from rca.window.catalogue import channels
from rca.window.causes import CAUSES, STOP_CAUSES
from rca.window.window import Window

N_TREES = 200
#: Ranks kept of each window for fitting, faulty ones first.
RANKS_KEPT = 16
PHASES = (*OWN_PHASES, "wait", "transfer")
COLUMNS = (*PHASES, "time", *sorted(channels()))
ASPECTS: frozenset[Aspect] = frozenset({"ranks", "type", "causes", "confidence"})
#: The trees work in single precision.
LARGEST = 1e30


@dataclass(frozen=True)
class ForestExample:
    """Rows of one labelled window.

    Attributes
    ----------
    rows : ndarray of shape (n_kept, len(COLUMNS))
    targets : tuple of str
        Per row the cause its rank is blamed for, or "healthy".
    """

    rows: FloatArray
    targets: tuple[str, ...]


def raw_means(observed: Observed) -> FloatArray:
    """Mean of every phase and channel over the whole window, rank by rank.

    Returns
    -------
    ndarray of shape (n_ranks, len(COLUMNS))
        Seconds for phases, the channel's unit for channels; NaN where not measured.
    """
    held = {"time": observed.time, **observed.phases, **observed.channels}
    out = np.full((observed.stage.size, len(COLUMNS)), np.nan)
    for column, name in enumerate(COLUMNS):
        if name in held:
            out[:, column] = nan_mean(held[name], axis=1)
    clipped: FloatArray = np.clip(out, -LARGEST, LARGEST)
    return clipped


def forest_example(window: Window, label: WindowLabel) -> ForestExample:
    """Rows and targets of one labelled window, a bounded number of ranks of it."""
    rows = raw_means(Observed.from_window(window))
    blamed = {rank: cause.cause for cause in reversed(label.causes) for rank in cause.ranks}
    order = sorted(range(rows.shape[0]), key=lambda rank: (rank not in blamed, rank))[:RANKS_KEPT]
    return ForestExample(rows[order], tuple(blamed.get(rank, HEALTHY) for rank in order))


@dataclass(frozen=True)
class Forest:
    """A fitted forest.

    Attributes
    ----------
    n_windows : int
        Windows it was fitted on.
    """

    model: Any
    n_windows: int

    @classmethod
    def fit(cls, examples: Iterable[ForestExample], seed: int = 0) -> Forest:
        """Fit on labelled windows, which must not be evaluated later.

        Raises
        ------
        MissingExtra
            Without scikit-learn.
        InvalidInput
            If all windows have the same label.

        References
        ----------
        Breiman, "Random forests", Machine Learning 45 (2001), as scikit-learn implements it.
        """
        try:
            from sklearn.ensemble import RandomForestClassifier
        except ImportError as error:
            raise MissingExtra(
                "the random forest needs scikit-learn", hint="pip install 'straggler-rca[train]'"
            ) from error
        found = list(examples)
        targets = [target for each in found for target in each.targets]
        if len(set(targets)) < 2:
            raise InvalidInput("the random forest needs windows with and without faults to learn from")
        rows = np.concatenate([each.rows for each in found])
        model = RandomForestClassifier(
            N_TREES, class_weight="balanced", min_samples_leaf=2, random_state=seed
        ).fit(rows, targets)
        return cls(model, len(found))

    def __call__(self, observed: Observed) -> MethodAnswer:
        """Blame every rank with a cause as its likeliest class."""
        return answer_of(list(self.model.classes_), self.model.predict_proba(raw_means(observed)))


def answer_of(classes: list[str], probability: FloatArray) -> MethodAnswer:
    """Class probabilities of every rank -> one answer for the window.

    Parameters
    ----------
    probability : ndarray of shape (n_ranks, n_classes)

    Notes
    -----
    Ranks with the same likeliest cause are one group, the most probable group first. The other causes of the
    first group follow by probability. The job has stopped if most blamed ranks have a cause of a stop.
    """
    likeliest = [classes[column] for column in probability.argmax(axis=1)]
    healthy = probability[:, classes.index(HEALTHY)] if HEALTHY in classes else np.zeros(len(likeliest))
    groups: dict[str, list[int]] = {}
    for rank, name in enumerate(likeliest):
        if name != HEALTHY:
            groups.setdefault(name, []).append(rank)
    if not groups:
        return MethodAnswer(HEALTHY, confidence=float(healthy.min()), aspects=ASPECTS)
    mean = {name: probability[ranks, classes.index(name)].mean() for name, ranks in groups.items()}
    surest = sorted(groups, key=lambda name: (-mean[name], name))
    first = groups[surest[0]]
    others = probability[first].mean(axis=0)
    rest = [classes[column] for column in np.argsort(-others, kind="stable")]
    named = [(name, groups[name]) for name in surest]
    named += [(name, first) for name in rest if name not in {HEALTHY, surest[0]}]
    stops = Counter(name in STOP_CAUSES for name in likeliest if name != HEALTHY)
    kind = CAUSES[surest[0]].type if surest[0] in CAUSES else None
    return MethodAnswer(
        mode="fail_stop" if stops[True] > stops[False] else "fail_slow",
        ranks=frozenset(rank for ranks in groups.values() for rank in ranks),
        causes=tuple(NamedCause(name, frozenset(ranks)) for name, ranks in named),
        straggler_type=None if kind == "fail_stop" else kind,
        confidence=float(1.0 - healthy.min()),
        aspects=ASPECTS,
    )
