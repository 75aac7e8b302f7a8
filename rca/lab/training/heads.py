"""Fit the classifier's heads: LightGBM with early stopping, calibrated on groups it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.classifier import HEADS
from rca.classify.head import Calibration
from rca.lab.simulation.faults import FIRST_CAUSES
from rca.lab.training.corpus import Corpus, straggler_type
from rca.lab.training.distributed_heads import (
    SAMPLE_ROWS,
    Distribution,
    grow,
    is_distributed,
    refuse_earlier,
    sample_of,
)
from rca.lab.training.earlier_trees import EarlierTrees
from rca.lab.training.settings import Settings
from rca.window.causes import SLOW_CAUSES, STOP_CAUSES, STRAGGLER_TYPES, UNKNOWN
from rca.workers import HERE, Workers, counted

if TYPE_CHECKING:
    from lightgbm import Booster

#: Shared by all heads. Trees are small and regularised, because real jobs differ from simulated ones.
PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.1,
    "num_leaves": 15,
    # Shapley values of a tree cost the square of its depth: half of their time for the same log loss.
    "max_depth": 5,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 127,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 2,
}
MAX_ROUNDS = 1000
PATIENCE = 40

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Target:
    """Rows, classes and origin of one head's training data.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
    labels : tuple of str
        One of `classes` per row.
    part : ndarray of shape (n_rows,), str
    weight : ndarray of shape (n_rows,)
        Rows of one window share its weight, however many they are.
    group : ndarray of shape (n_rows,), str
        Rows of one group are not independent.
    """

    rows: FloatArray
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    part: np.ndarray[tuple[int], np.dtype[np.str_]]
    weight: FloatArray
    group: np.ndarray[tuple[int], np.dtype[np.str_]]


@dataclass(frozen=True)
class FittedHead:
    """The part of a bundle for one head; `distribution` if its trees grew on a cluster."""

    name: str
    features: tuple[str, ...]
    classes: tuple[str, ...]
    text: str
    calibration: Calibration
    rounds: int
    priors: dict[str, float]
    distribution: Distribution | None = None

    def entry(self) -> dict[str, Any]:
        """The head's part of ``heads.json``."""
        return {
            "features": list(self.features),
            "classes": list(self.classes),
            "calibration": {"scale": self.calibration.scale, "shift": list(self.calibration.shift)},
            "rounds": self.rounds,
            "priors": self.priors,
        }


def targets(corpus: Corpus, earlier: EarlierTrees | None = None) -> dict[str, Target]:
    """Training data of every head; head ``cause`` keeps the classes of an earlier bundle."""
    owner_mode = np.array(corpus.mode)[corpus.owner]
    cause = np.array(corpus.rank_cause)
    stop = owner_mode == "fail_stop"
    scope = np.array(corpus.scope)
    # Neither a fault of the whole job nor a label without ranks shows what distinguishes a rank.
    single = (owner_mode == "healthy") | ((owner_mode == "fail_slow") & (scope[corpus.owner] == "some"))
    slow = (owner_mode == "fail_slow") & corpus.faulty & np.isin(cause, (*SLOW_CAUSES, UNKNOWN))
    flag = np.where(corpus.faulty, "yes", "no")
    stopped = np.where(_stopped(corpus), "yes", "no")
    mode = np.array(corpus.mode)
    everything = np.ones(mode.size, dtype=bool)

    def windows(keep: BoolArray, labels: Sequence[str], classes: tuple[str, ...]) -> Target:
        part, group = np.array(corpus.part)[keep], np.array(corpus.group)[keep]
        kept = tuple(np.array(labels)[keep])
        return Target(corpus.window[keep], kept, classes, part, corpus.weight[keep], group)

    def ranks(keep: BoolArray, labels: Sequence[str], classes: tuple[str, ...]) -> Target:
        owner = corpus.owner[keep]
        part, group = np.array(corpus.part)[owner], np.array(corpus.group)[owner]
        kept = tuple(np.array(labels)[keep])
        return Target(corpus.rank[keep], kept, classes, part, _shared(owner, corpus.weight), group)

    # Unknown causes have no type.
    types = ["" if name in ("", UNKNOWN) else straggler_type(name) for name in cause]
    return {
        "mode": windows(everything, corpus.mode, ("healthy", "fail_slow", "fail_stop")),
        "straggler": ranks(single, flag.tolist(), ("no", "yes")),
        "scope": windows((mode == "fail_slow") & (scope != ""), corpus.scope, ("some", "job")),
        "stopper": ranks(stop, stopped.tolist(), ("no", "yes")),
        "type": ranks(slow & (cause != UNKNOWN), types, STRAGGLER_TYPES),
        "cause": ranks(slow, cause.tolist(), _cause_classes(corpus, earlier)),
        "stop_cause": windows(
            (mode == "fail_stop") & np.isin(corpus.cause, STOP_CAUSES), corpus.cause, STOP_CAUSES
        ),
    }


def _cause_classes(corpus: Corpus, earlier: EarlierTrees | None) -> tuple[str, ...]:
    """Slow causes of a corpus; those of the simulator's first version always, so its models stay the same."""
    known = {*FIRST_CAUSES, *corpus.rank_cause, *(() if earlier is None else earlier.classes["cause"])}
    return tuple(name for name in (*SLOW_CAUSES, UNKNOWN) if name in known)


def _stopped(corpus: Corpus) -> BoolArray:
    """Ranks that stopped their job, shape (n_rows,), bool; a slow rank of a stopped job did not stop it.

    If a label names no cause of a stop, as with a failed GPU memory, all its blamed ranks count.
    """
    named = corpus.faulty & np.isin(corpus.rank_cause, STOP_CAUSES)
    has_name = np.zeros(len(corpus.mode), dtype=bool)
    has_name[corpus.owner[named]] = True
    result: BoolArray = np.where(has_name[corpus.owner], named, corpus.faulty)
    return result


def with_healthy(target: Target, windows: FloatArray) -> Target:
    """The target of head ``mode`` with more healthy training windows, each of weight 1.

    Parameters
    ----------
    windows : ndarray of shape (n, n_window_features)
    """
    n = windows.shape[0]
    return replace(
        target,
        rows=np.concatenate([target.rows, windows]),
        labels=(*target.labels, *["healthy"] * n),
        part=np.concatenate([target.part, np.full(n, "train")]),
        weight=np.concatenate([target.weight, np.ones(n)]),
        group=np.concatenate([target.group, [f"healthy/{number}" for number in range(n)]]),
    )


def _shared(owner: IntArray, weight: FloatArray) -> FloatArray:
    """A window's weight divided among its rows."""
    _, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    result: FloatArray = weight[owner] / counts[inverse]
    return result


def fit_heads(
    corpus: Corpus,
    seed: int,
    progress: Progress,
    settings: Settings | None = None,
    healthy: FloatArray | None = None,
    earlier: EarlierTrees | None = None,
    workers: Workers = HERE,
) -> dict[str, FittedHead]:
    """Fit every head of the bundle, each with its own settings where some are given.

    `healthy` are more healthy windows for head ``mode``, of shape (n, n_window_features). New trees are added
    to those of the bundle `earlier`. A head that is too large for this machine is fitted on the cluster of
    `workers`, see `rca.lab.training.distributed_heads`. Progress is ``(phase, done, total)``.
    """
    fitted = {}
    wanted = targets(corpus, earlier)
    if healthy is not None:
        wanted["mode"] = with_healthy(wanted["mode"], healthy)
    for name, target in counted(wanted.items(), len(wanted), partial(progress, "fitting heads")):
        fitted[name] = fit_head(name, target, seed, (settings or {}).get(name), earlier, workers)
        shared = fitted[name].distribution
        where = "" if shared is None else f", on {shared.workers} workers"
        progress(f"head {name}: {len(target.labels):,} rows, {fitted[name].rounds} rounds{where}", 0, 0)
    return fitted


def fit_head(
    name: str,
    target: Target,
    seed: int,
    settings: Mapping[str, float] | None = None,
    earlier: EarlierTrees | None = None,
    workers: Workers = HERE,
) -> FittedHead:
    """Fit one head on the part ``train``; stop early and calibrate on the part ``calibration``.

    Parameters
    ----------
    name : str
        Key of `rca.classify.classifier.HEADS`.
    settings : mapping of str to float, optional
        Replace those of `PARAMETERS`.
    earlier : EarlierTrees, optional
        Trees to start from; by default there are none.
    workers : Workers
        Fit a head whose rows are too many for this machine, if they are of a cluster.

    Raises
    ------
    InvalidInput
        If such a head has earlier trees.
    """
    import lightgbm

    train, held = target.part == "train", target.part == "calibration"
    codes = np.array([target.classes.index(label) for label in target.labels])
    binary = len(target.classes) == 2
    objective = (
        {"objective": "binary"} if binary else {"objective": "multiclass", "num_class": len(target.classes)}
    )
    parameters = PARAMETERS | dict(settings or {}) | objective | {"seed": seed}
    features = list(HEADS[name])
    shared = is_distributed(int(train.sum()) * target.rows[:1].nbytes, workers)
    if shared and earlier is not None:
        refuse_earlier(name)
    learned = train.copy()
    if shared:
        learned[train] = sample_of(target.group[train], SAMPLE_ROWS, seed)
    booster = _grown_here(
        parameters,
        target,
        codes,
        (learned, held),
        None if earlier is None else earlier.booster(name, len(features), target.classes),
    )
    rounds, distribution = booster.best_iteration, None
    text = booster.model_to_string(num_iteration=rounds)
    if shared:
        rows, weight = target.rows[train], _scaled(target.weight[train])
        text, n_workers = grow(parameters, rounds, rows, codes[train], weight, workers)
        booster = lightgbm.Booster(model_str=text)
        distribution = Distribution(n_workers, int(train.sum()), int(learned.sum()), rounds)
    raw = np.asarray(booster.predict(target.rows[held], raw_score=True, num_iteration=rounds))
    raw = raw.reshape(codes[held].size, -1)
    return FittedHead(
        name=name,
        features=tuple(features),
        classes=target.classes,
        text=text,
        calibration=calibrate(raw, codes[held], len(target.classes), _scaled(target.weight[held])),
        rounds=rounds,
        priors=_shares(target, held),
        distribution=distribution,
    )


def _grown_here(
    parameters: dict[str, Any],
    target: Target,
    codes: IntArray,
    parts: tuple[BoolArray, BoolArray],
    start: Booster | None,
) -> Booster:
    """Trees of the rows of the first part; the second one ends them early."""
    import lightgbm

    learned, held = (
        lightgbm.Dataset(target.rows[part], codes[part], weight=_scaled(target.weight[part]))
        for part in parts
    )
    return lightgbm.train(
        parameters,
        learned,
        MAX_ROUNDS,
        valid_sets=[held],
        init_model=start,
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )


def _shares(target: Target, held: BoolArray) -> dict[str, float]:
    """Weighted share of each class among the rows that the probabilities were calibrated on."""
    labels, weight = np.array(target.labels)[held], target.weight[held]
    return {name: float(weight[labels == name].sum() / weight.sum()) for name in target.classes}


def _scaled(weight: FloatArray) -> FloatArray:
    """Weights with mean one, so that regularisation means the same for every head."""
    result: FloatArray = weight / weight.mean()
    return result


def calibrate(raw: FloatArray, codes: IntArray, n_classes: int, weights: FloatArray) -> Calibration:
    """Scale and per-class shift that minimise the log loss of held-out scores.

    Parameters
    ----------
    raw : ndarray of shape (n_rows, n_scores), log-odds
    codes : ndarray of shape (n_rows,), int
    weights : ndarray of shape (n_rows,)
    """
    from scipy.optimize import minimize

    rows = np.arange(codes.size)
    # A weak penalty: few held-out rows of a class must not change its shift much.
    strength = 2.0 / max(codes.size, 1)

    def loss(parameters: FloatArray) -> float:
        calibration = Calibration(float(np.exp(parameters[0])), tuple(parameters[1:]))
        chance = calibration.probabilities(raw)[rows, codes]
        penalty = strength * float(parameters @ parameters)
        return float(-(weights * np.log(np.maximum(chance, 1e-12))).mean()) + penalty

    found = minimize(loss, np.zeros(n_classes + 1), method="L-BFGS-B").x
    return Calibration(float(np.exp(found[0])), tuple(float(shift) for shift in found[1:]))
