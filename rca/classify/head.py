"""A head: one booster, its feature columns, its classes and the calibration of its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.booster import Booster
from rca.errors import BundleError


@dataclass(frozen=True)
class Calibration:
    """Scores to probabilities: ``softmax(scale * score + shift)``, fitted on held-out groups.

    Temperature scaling with a shift per class (Guo et al., 2017); for a binary head it is Platt scaling.
    """

    scale: float
    shift: tuple[float, ...]

    def probabilities(self, raw: FloatArray) -> FloatArray:
        """Probabilities of shape (n_rows, n_classes) from raw scores of shape (n_rows, n_scores)."""
        scores = np.column_stack([np.zeros(raw.shape[0]), raw]) if raw.shape[1] == 1 else raw
        logits = self.scale * scores + np.asarray(self.shift)
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        result: FloatArray = weights / weights.sum(axis=1, keepdims=True)
        return result


@dataclass(frozen=True)
class Head:
    """One decision: feature rows in, calibrated class probabilities out.

    `priors` are the classes' shares in the training data; empty in bundles without them.
    """

    name: str
    classes: tuple[str, ...]
    columns: IntArray
    booster: Booster
    calibration: Calibration
    priors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str, entry: dict[str, Any], text: str, features: tuple[str, ...]) -> Head:
        """Build a head from its bundle entry and LightGBM text, checking both against each other."""
        position = {feature: index for index, feature in enumerate(features)}
        unknown = [feature for feature in entry["features"] if feature not in position]
        if unknown:
            raise BundleError(f"head {name} wants features this version does not compute: {unknown[:5]}")
        booster = Booster(text)
        if booster.n_features != len(entry["features"]):
            raise BundleError(
                f"head {name}: {booster.n_features} features in the model, "
                f"{len(entry['features'])} in its entry"
            )
        classes = tuple(entry["classes"])
        if booster.n_classes != (1 if len(classes) == 2 else len(classes)):
            raise BundleError(f"head {name}: {booster.n_classes} scores for {len(classes)} classes")
        return cls(
            name=name,
            classes=classes,
            columns=np.array([position[feature] for feature in entry["features"]]),
            booster=booster,
            calibration=Calibration(
                float(entry["calibration"]["scale"]), tuple(entry["calibration"]["shift"])
            ),
            priors={str(label): float(share) for label, share in entry.get("priors", {}).items()},
        )

    def probabilities(self, rows: FloatArray) -> FloatArray:
        """Calibrated probabilities of shape (n_rows, n_classes) for full feature rows."""
        return self.calibration.probabilities(self.booster.raw(rows[:, self.columns]))
