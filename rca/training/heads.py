"""Fit the classifier's heads: LightGBM with early stopping, calibrated on groups it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.classify.classifier import HEADS
from rca.classify.heads import Calibration
from rca.robust import FloatArray
from rca.telemetry.causes import SLOW_CAUSES, STOP_CAUSES, STRAGGLER_TYPES
from rca.training.corpus import Corpus, straggler_type
from rca.training.split import mask

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]

#: Shared by all heads. Small trees and strong regularisation: the target is jobs nobody simulated.
PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.06,
    "num_leaves": 15,
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
MAX_ROUNDS = 600
PATIENCE = 40

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """Rows, classes and grouping of one head's training data."""

    rows: FloatArray
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class FittedHead:
    """What goes into the bundle for one head."""

    name: str
    features: tuple[str, ...]
    classes: tuple[str, ...]
    text: str
    calibration: Calibration
    rounds: int

    def entry(self) -> dict[str, Any]:
        """The head's part of ``heads.json``."""
        return {
            "features": list(self.features),
            "classes": list(self.classes),
            "calibration": {"scale": self.calibration.scale, "shift": list(self.calibration.shift)},
            "rounds": self.rounds,
        }


def targets(corpus: Corpus) -> dict[str, Target]:
    """Training data of every head."""
    owner_mode = np.array(corpus.mode)[corpus.owner]
    owner_group = np.array(corpus.group)[corpus.owner]
    owner_pattern = np.array(corpus.pattern)[corpus.owner]
    cause = np.array(corpus.rank_cause)
    stop = owner_mode == "fail_stop"
    # A fault of the whole job says nothing about what singles a rank out.
    single = (owner_mode != "fail_stop") & (np.array(corpus.scope)[corpus.owner] != "job")
    slow = (owner_mode == "fail_slow") & corpus.faulty
    flag = np.where(corpus.faulty, "yes", "no")
    stopped = np.array([mode == "fail_stop" for mode in corpus.mode])
    is_slow = np.array([mode == "fail_slow" for mode in corpus.mode])

    def ranks(keep: BoolArray, labels: Sequence[str], classes: tuple[str, ...]) -> Target:
        chosen = np.array(labels)[keep]
        return Target(corpus.rank[keep], tuple(chosen), classes, tuple(owner_group[keep]))

    types = [straggler_type(name) if name else "" for name in cause]
    return {
        "mode": Target(corpus.window, corpus.mode, ("healthy", "fail_slow", "fail_stop"), corpus.group),
        "straggler": ranks(single, flag.tolist(), ("no", "yes")),
        "scope": Target(
            corpus.window[is_slow],
            tuple(np.array(corpus.scope)[is_slow]),
            ("some", "job"),
            tuple(np.array(corpus.group)[is_slow]),
        ),
        "stopper": ranks(stop, flag.tolist(), ("no", "yes")),
        "type": ranks(slow, types, STRAGGLER_TYPES),
        "cause": ranks(slow, cause.tolist(), SLOW_CAUSES),
        "stop_cause": Target(
            corpus.window[stopped],
            tuple(np.array(corpus.cause)[stopped]),
            STOP_CAUSES,
            tuple(np.array(corpus.group)[stopped]),
        ),
        "pattern": ranks(slow, owner_pattern.tolist(), ("transient", "persistent", "deterministic")),
    }


def fit_heads(corpus: Corpus, seed: int, progress: Progress) -> dict[str, FittedHead]:
    """Fit every head of the bundle."""
    fitted = {}
    for name, target in targets(corpus).items():
        fitted[name] = _fit(name, target, seed)
        progress(f"head {name}: {len(target.labels):,} rows, {fitted[name].rounds} rounds")
    return fitted


def _fit(name: str, target: Target, seed: int) -> FittedHead:
    import lightgbm

    train, held = mask(target.groups, "train"), mask(target.groups, "calibration")
    codes = np.array([target.classes.index(label) for label in target.labels])
    binary = len(target.classes) == 2
    objective = (
        {"objective": "binary"} if binary else {"objective": "multiclass", "num_class": len(target.classes)}
    )
    features = list(HEADS[name])
    booster = lightgbm.train(
        PARAMETERS | objective | {"seed": seed},
        lightgbm.Dataset(target.rows[train], codes[train], weight=_weights(target.groups, train)),
        MAX_ROUNDS,
        valid_sets=[lightgbm.Dataset(target.rows[held], codes[held], weight=_weights(target.groups, held))],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    raw = np.asarray(booster.predict(target.rows[held], raw_score=True, num_iteration=booster.best_iteration))
    raw = raw.reshape(codes[held].size, -1)
    return FittedHead(
        name=name,
        features=tuple(features),
        classes=target.classes,
        text=booster.model_to_string(num_iteration=booster.best_iteration),
        calibration=calibrate(raw, codes[held], len(target.classes), _weights(target.groups, held)),
        rounds=booster.best_iteration,
    )


def _weights(groups: Sequence[str], keep: BoolArray) -> FloatArray:
    """Every window weighs the same, however many of its ranks are rows."""
    names = np.array(groups)[keep]
    _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    weights = 1.0 / counts[inverse]
    result: FloatArray = weights / weights.mean()
    return result


def calibrate(
    raw: FloatArray, codes: np.ndarray[tuple[int], np.dtype[np.int64]], n_classes: int, weights: FloatArray
) -> Calibration:
    """Scale and per-class shift that minimise the log loss of held-out scores.

    Parameters
    ----------
    raw : ndarray of shape (n_rows, n_scores), log-odds
    codes : ndarray of shape (n_rows,), int
    n_classes : int
    weights : ndarray of shape (n_rows,)
    """
    from scipy.optimize import minimize

    rows = np.arange(codes.size)
    # Few held-out rows of a class must not move its shift far: a weak pull towards zero.
    strength = 2.0 / max(codes.size, 1)

    def loss(parameters: FloatArray) -> float:
        calibration = Calibration(float(np.exp(parameters[0])), tuple(parameters[1:]))
        chance = calibration.probabilities(raw)[rows, codes]
        penalty = strength * float(parameters @ parameters)
        return float(-(weights * np.log(np.maximum(chance, 1e-12))).mean()) + penalty

    found = minimize(loss, np.zeros(n_classes + 1), method="L-BFGS-B").x
    return Calibration(float(np.exp(found[0])), tuple(float(shift) for shift in found[1:]))
