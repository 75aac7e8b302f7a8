"""Fitted mechanisms from resource scores to phase excess, evaluated in closed form.

Training fits them with DoWhy (`rca.lab.training.mechanism_fit`) as additive-noise models with non-negative
linear mechanisms, and exports them as numbers. A diagnosis then takes microseconds instead of DoWhy's
milliseconds, without its imports. Tests compare both on counterfactuals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.causal.graph import IDLE_RESOURCES, PHASES, mechanism_parents
from rca.causal.intervals import Margin
from rca.errors import BundleError
from rca.features.resource_evidence import MACHINE_RESOURCES, resource_names

FORMAT = 2
#: Format 1 has one margin for both ends of an interval, with another meaning. It is ignored.
READ = (1, FORMAT)


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
        `noise` is the standard deviation of the residual.
    idle : mapping of resource to float, units per relative waiting
        Rise of a resource's signal if a healthy rank waits one usual step longer per step. Non-negative;
        resources without the arrow are absent.
    margins : mapping of interval group to Margin
        Margins of bootstrap intervals; see `rca.causal.intervals`.
    report : mapping
        Results of falsification and refutation at training.
    absent : tuple of str
        Of `resources`, those that the bundle does not have; their coefficients are 0.
    """

    resources: tuple[str, ...]
    coefficients: FloatArray
    intercepts: FloatArray
    noise: FloatArray
    idle: Mapping[str, float] = field(default_factory=dict)
    margins: Mapping[str, Margin] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def effects(self, scores: FloatArray) -> FloatArray:
        """Part of every phase's excess that each resource explains.

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

    def without_waiting(self, scores: FloatArray, waiting: FloatArray) -> FloatArray:
        """Scores less the effect of waiting, which is no evidence of a fault.

        Parameters
        ----------
        scores : ndarray of shape (n_ranks, n_resources), units
        waiting : ndarray of shape (n_ranks, n_resources), relative
            Waiting beyond that of the score's reference (or one column for all); NaN where unknown.

        Returns
        -------
        ndarray of shape (n_ranks, n_resources), units
            Never above `scores`, and positive scores stay at 0 or above.
        """
        slopes = np.array([max(self.idle.get(name, 0.0), 0.0) for name in self.resources])
        explained = slopes * np.maximum(np.nan_to_num(waiting), 0.0)
        result: FloatArray = np.where(scores > 0, np.maximum(scores - explained, 0.0), scores)
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
            "idle": dict(self.idle),
            "interval_margins": {group: margin._asdict() for group, margin in self.margins.items()},
            "report": dict(self.report),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Mechanisms:
        """Read ``causal.json``.

        Raises
        ------
        BundleError
            If the format is unknown, or the mechanisms contradict the graph.
        """
        if document.get("format") not in READ or tuple(document["phases"]) != PHASES:
            raise BundleError(
                f"causal.json has format {document.get('format')!r}, this version reads {FORMAT}",
                hint="train the bundle again with `rca train`, or use the shipped bundle",
            )
        mechanisms = cls(
            _resources(document),
            _array(document, "coefficients"),
            _array(document, "intercepts"),
            _array(document, "noise"),
            # Older bundles do not have these.
            {str(name): float(slope) for name, slope in document.get("idle", {}).items()},
            _margins(document) if document["format"] == FORMAT else {},
            document.get("report", {}),
        )
        mechanisms._check_shapes()
        mechanisms = mechanisms._with_all_resources()
        unknown = sorted(set(mechanisms.idle) - set(IDLE_RESOURCES))
        if unknown:
            raise BundleError(f"causal.json: waiting has no arrow to {', '.join(unknown)}")
        allowed = mechanism_parents()
        for row, phase in enumerate(PHASES):
            for column in np.flatnonzero(mechanisms.coefficients[row]):
                if mechanisms.resources[column] not in allowed[phase]:
                    raise BundleError(f"causal.json: {mechanisms.resources[column]} has no arrow to {phase}")
        if (mechanisms.coefficients < 0).any():
            raise BundleError("causal.json: a coefficient is negative")
        return mechanisms

    def _with_all_resources(self) -> Mechanisms:
        """The same with a column of zeros for each resource that the bundle does not have."""
        names = resource_names()
        if self.resources == names:
            return self
        coefficients = np.zeros((len(PHASES), len(names)))
        coefficients[:, [names.index(name) for name in self.resources]] = self.coefficients
        absent = tuple(name for name in names if name not in self.resources)
        return replace(self, resources=names, coefficients=coefficients, absent=absent)

    def _check_shapes(self) -> None:
        """Refuse arrays with a wrong shape, and values that are not finite."""
        phases, resources = len(PHASES), len(self.resources)
        for name, array, shape in (
            ("coefficients", self.coefficients, (phases, resources)),
            ("intercepts", self.intercepts, (phases,)),
            ("noise", self.noise, (phases,)),
        ):
            if array.shape != shape:
                raise BundleError(f"causal.json: {name} has the shape {array.shape}, expected {shape}")
            if not np.isfinite(array).all():
                raise BundleError(f"causal.json: {name} contains values that are not finite")
        if (self.noise < 0).any():
            raise BundleError("causal.json: noise is negative")


def _resources(document: dict[str, Any]) -> tuple[str, ...]:
    """The columns of the coefficients: the resources that this version measures, in order.

    Bundles of earlier feature tables have `MACHINE_RESOURCES` only.
    """
    hint = "train the bundle again with `rca train`, or use the shipped bundle"
    given, wanted = document.get("resources"), resource_names()
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BundleError("causal.json: resources is not a list of names", hint=hint)
    if tuple(given) in (wanted, MACHINE_RESOURCES):
        return tuple(given)
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    problems = [f"{', '.join(missing)} missing"] if missing else []
    problems += [f"{', '.join(extra)} not measured by this version"] if extra else []
    what = "; ".join(problems) or "their order differs, or one is repeated"
    raise BundleError(f"causal.json has other resources than this version: {what}", hint=hint)


def _array(document: dict[str, Any], name: str) -> FloatArray:
    try:
        return np.array(document[name], dtype=float)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BundleError(f"causal.json: {name} is not a table of numbers") from error


def _margins(document: dict[str, Any]) -> dict[str, Margin]:
    found = {
        str(group): Margin(float(held["below"]), float(held["above"]))
        for group, held in document.get("interval_margins", {}).items()
    }
    for group, margin in found.items():
        if not all(0.0 <= end <= 1.0 for end in margin):
            raise BundleError(
                f"causal.json: the margins of {group} are {margin}, expected shares from 0 to 1"
            )
    return found
