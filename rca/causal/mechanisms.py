"""Fitted mechanisms from resource scores to phase excess, evaluated in closed form.

They are fitted with DoWhy at training (`rca.causal.fit`) as additive-noise models with non-negative linear
mechanisms, and exported as plain numbers: a diagnosis takes microseconds where DoWhy takes milliseconds, and
needs none of its imports. A test holds both equal on counterfactuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.causal.graph import PHASES, mechanism_parents
from rca.errors import BundleError
from rca.robust import FloatArray

FORMAT = 1


@dataclass(frozen=True)
class Mechanisms:
    """``excess[phase] = intercept + sum(coefficient * max(score, 0)) + noise``, relative to the usual step.

    Attributes
    ----------
    resources : tuple of str
        Columns of `coefficients`.
    coefficients : ndarray of shape (n_phases, n_resources), relative step time per unit of score
        Non-negative: a worse resource never shortens a phase. 0 where the graph has no arrow.
    intercepts, noise : ndarray of shape (n_phases,), relative
        `noise` is the standard deviation of what the mechanism leaves unexplained.
    """

    resources: tuple[str, ...]
    coefficients: FloatArray
    intercepts: FloatArray
    noise: FloatArray

    def effects(self, scores: FloatArray) -> FloatArray:
        """Part of every phase's excess that each resource accounts for.

        Parameters
        ----------
        scores : ndarray of shape (n_resources,), units
            NaN where the resource was not measured.

        Returns
        -------
        ndarray of shape (n_phases, n_resources), relative
            NaN in the columns of unmeasured resources.
        """
        return self.coefficients * np.where(np.isnan(scores), np.nan, np.maximum(scores, 0.0))

    def counterfactual(self, scores: FloatArray, excess: FloatArray, nominal: tuple[str, ...]) -> FloatArray:
        """Phase excess had the `nominal` resources been at their reference, the window's own noise kept.

        Abduction is trivial for additive noise: the noise is ``excess`` minus the mechanism, so the
        counterfactual subtracts exactly the effects of the resources that are reset.
        """
        reset = np.isin(self.resources, nominal)
        removed = np.nansum(self.effects(scores)[:, reset], axis=1)
        result: FloatArray = excess - removed
        return result

    def to_document(self) -> dict[str, Any]:
        """Plain data for ``causal.json``."""
        return {
            "format": FORMAT,
            "phases": list(PHASES),
            "resources": list(self.resources),
            "coefficients": self.coefficients.tolist(),
            "intercepts": self.intercepts.tolist(),
            "noise": self.noise.tolist(),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Mechanisms:
        """Read ``causal.json``; mechanisms that contradict the graph are refused."""
        if document.get("format") != FORMAT or tuple(document["phases"]) != PHASES:
            raise BundleError(
                f"causal.json has format {document.get('format')!r}, this version reads {FORMAT}"
            )
        mechanisms = cls(
            tuple(document["resources"]),
            np.array(document["coefficients"], dtype=float),
            np.array(document["intercepts"], dtype=float),
            np.array(document["noise"], dtype=float),
        )
        allowed = mechanism_parents()
        for row, phase in enumerate(PHASES):
            for column in np.flatnonzero(mechanisms.coefficients[row]):
                if mechanisms.resources[column] not in allowed[phase]:
                    raise BundleError(f"causal.json: {mechanisms.resources[column]} has no arrow to {phase}")
        if (mechanisms.coefficients < 0).any():
            raise BundleError("causal.json: a coefficient is negative")
        return mechanisms
