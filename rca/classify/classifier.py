"""The learned part of a diagnosis: failure mode, straggling ranks, type and a prior over causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.beliefs import at_least, combine, ordered, pooled, types_of
from rca.classify.components import Component, ComponentCause, is_whole_stage, merge_suspects
from rca.classify.decision_table import LIKELIER_THAN_NOT, POINTED_TO, STOPPED
from rca.classify.head import Head
from rca.classify.link_evidence import (
    LINK_CAUSES,
    Ports,
    between_machines,
    residual_collectives,
    through_ports,
    transfer_is_timed,
)
from rca.classify.operator_inputs import ratios, reweighted, with_history
from rca.classify.preconditions import (
    alarm_thresholds,
    can_show_health,
    has_stopped,
    in_a_cycle,
    long_enough,
    shows_slowness,
    silent_enough,
    single_events,
)
from rca.classify.shared_parts import reaching, through_switches
from rca.classify.stop_origin import refine_stop_cause
from rca.classify.suspects import Suspicion, job_is_suspect, most_probable
from rca.classify.uncertainty import Doubt
from rca.errors import BundleError
from rca.features import RANK_FEATURES, VERSION, WINDOW_FEATURES, FeatureSet
from rca.features.extract import without_steps
from rca.features.former_names import COMPATIBLE_VERSIONS, with_current_names
from rca.window.causes import CAUSES, UNKNOWN

#: Head -> which feature table its rows come from.
HEADS = {
    "mode": WINDOW_FEATURES,
    "scope": WINDOW_FEATURES,
    "straggler": RANK_FEATURES,
    "stopper": RANK_FEATURES,
    "type": RANK_FEATURES,
    "cause": RANK_FEATURES,
    "stop_cause": WINDOW_FEATURES,
}


@dataclass(frozen=True)
class Suspect:
    """A component with the probabilities for it.

    `steps` are those of its lateness, bool of shape (n_steps,); None for those of the slow segment.
    """

    component: Component
    types: dict[str, float]
    causes: dict[str, float]
    steps: BoolArray | None = field(default=None, compare=False)

    @property
    def by_link(self) -> bool:
        """Whether its likeliest cause is a link's fault."""
        return next(iter(self.causes), None) in LINK_CAUSES


@dataclass(frozen=True)
class Classification:
    """Failure mode with calibrated probabilities, and the suspected components.

    `decided` is False where no failure mode is probable enough to act on. `events` are the columns of single
    long steps that alone made the job look slow. `left_out` counts suspects beyond the most probable
    ones. `alarm` is the probability of a fault from which the job would have been called faulty.
    """

    mode: str
    probability: dict[str, float]
    decided: bool
    suspects: list[Suspect]
    alarm: float
    events: tuple[int, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Classifier:
    """All heads of a bundle, the thresholds chosen for them on validation windows, and its known limits."""

    heads: dict[str, Head]
    thresholds: dict[str, float]
    doubt: Doubt

    @classmethod
    def load(cls, document: dict[str, Any], texts: dict[str, str]) -> Classifier:
        """Build from ``heads.json`` and one LightGBM text per head."""
        if document["feature_version"] not in COMPATIBLE_VERSIONS:
            raise BundleError(
                f"the bundle was trained on feature table {document['feature_version']}, this is {VERSION}",
                hint="retrain with `rca train`, or install the version of straggler-rca that made the bundle",
            )
        if document["feature_version"] != VERSION:
            document = with_current_names(document)
        missing = sorted(set(HEADS) - set(document["heads"]))
        if missing:
            raise BundleError(f"the bundle lacks heads: {', '.join(missing)}")
        heads = {
            name: Head.load(name, document["heads"][name], texts[name], features)
            for name, features in HEADS.items()
        }
        thresholds = {name: float(value) for name, value in document["thresholds"].items()}
        return cls(heads, thresholds, Doubt.load(document))

    def classify(
        self,
        features: FeatureSet,
        priors: Mapping[str, float] | None = None,
        node_odds: Mapping[str, float] | None = None,
        *,
        max_alarm: float = 1.0,
    ) -> Classification:
        """Decide the failure mode and, unless healthy, find the suspects.

        Parameters
        ----------
        priors : mapping of cause to float, optional
            Shares of the slow causes on this cluster, from `rca.classify.operator_inputs.checked_priors`.
        node_odds : mapping of node to float, optional
            What history says of nodes, from `rca.classify.operator_inputs.checked_node_odds`.
        max_alarm : float
            Probability of a fault from which the job is faulty at the latest.
        """
        probability = self._mode_probability(features)
        if has_stopped(features):
            probability = at_least(probability, "fail_stop", STOPPED)
        alarm = min(self.alarm(features), max_alarm)
        mode = self._mode(probability, features, alarm)
        decided = probability[mode] >= self.thresholds["decide"] and _can_be_certain(mode, features)
        doubtful = mode == "healthy" and not decided and long_enough(features)
        if (mode == "fail_slow" or doubtful) and (alone := self._only_events(features, mode)) is not None:
            return alone
        if mode == "healthy":
            return Classification(mode, probability, decided, [], alarm)
        per_rank = self._rank_probability(features, mode)
        if node_odds:
            per_rank = with_history(per_rank, node_odds, features.topology)
        found = Suspicion(self.heads, self.thresholds["straggler"], features, per_rank)
        components = found.of_a_slow_job() if mode == "fail_slow" else found.of_a_stopped_job()
        components, left_out = most_probable(components)
        suspects = [self._suspect(component, features, mode, priors) for component in components]
        if mode == "fail_slow":
            suspects = self._arranged(suspects, features, priors)
        return Classification(mode, probability, decided, suspects, alarm, left_out=left_out)

    def _mode_probability(self, features: FeatureSet) -> dict[str, float]:
        head = self.heads["mode"]
        chances = head.probabilities(features.window[None, :])[0]
        return dict(zip(head.classes, (float(chance) for chance in chances), strict=True))

    def _only_events(self, features: FeatureSet, mode: str) -> Classification | None:
        """The answer where the job is healthy except for a few single steps; None otherwise.

        An alarm stays if the other steps are likelier faulty than healthy. Steps in a fixed cycle are planned
        work, so the job is healthy with them.
        """
        events = single_events(features)
        if events is None:
            return None
        rest = without_steps(features, events)
        probability = self._mode_probability(rest)
        likeliest = max(probability, key=lambda mode: probability[mode])
        alarm = self.alarm(rest)
        if self._mode(probability, rest, alarm) != "healthy" or (
            mode == "fail_slow" and likeliest != "healthy"
        ):
            return None
        healthy = probability["healthy"] >= self.thresholds["decide"]
        planned = healthy and in_a_cycle(features, events) and _can_be_certain("healthy", features)
        columns = tuple(np.flatnonzero(events).tolist()) if healthy and not planned else ()
        return Classification("healthy", probability, planned, [], alarm, columns)

    def _arranged(
        self, suspects: list[Suspect], features: FeatureSet, priors: Mapping[str, float] | None
    ) -> list[Suspect]:
        """Suspects of a slow job, merged where they share a cause; the job as a whole comes last."""
        if not suspects or suspects[0].component.scope == "job":
            return suspects
        whole = [suspect for suspect in suspects if suspect.component.scope == "job"]
        parts = [suspect for suspect in suspects if suspect.component.scope != "job"]
        named = named_ranks(parts)
        whole = [each for each in whole if job_is_suspect(each.causes, named, features)]
        parts = self._rearranged(_joined, parts, features, priors)
        if features.topology.parts:
            parts = self._rearranged(through_switches, parts, features, priors)
        parts = self._rearranged(_through_ports, parts, features, priors)
        return [*parts, *(whole or self._collectives(parts, features, priors))]

    def _rearranged(
        self,
        rule: Callable[[list[ComponentCause], FeatureSet], list[Component]],
        suspects: list[Suspect],
        features: FeatureSet,
        priors: Mapping[str, float] | None,
    ) -> list[Suspect]:
        """The suspects after a rule has regrouped their ranks; changed components are classified again."""
        unchanged = {suspect.component: suspect for suspect in suspects}
        suspected = [as_component_cause(suspect) for suspect in suspects]
        return [
            unchanged[component]
            if component in unchanged
            else self._suspect(component, features, "fail_slow", priors)
            for component in rule(suspected, features)
        ]

    def _collectives(
        self, suspects: list[Suspect], features: FeatureSet, priors: Mapping[str, float] | None
    ) -> list[Suspect]:
        """The links as a further suspect, where stragglers do not explain slower collectives."""
        known = [ComponentCause(each.component, _likeliest_known(each.causes)) for each in suspects]
        if not residual_collectives(known, features) or not transfer_is_timed(features):
            return []
        links = Component("job", tuple(range(features.topology.n_ranks)), POINTED_TO)
        if any(each.component.ranks == links.ranks for each in suspects):
            # The same ranks are suspects already: the link may be their fault, so it is no second one.
            return []
        found = self._suspect(links, features, "fail_slow", priors)
        causes = between_machines(found.causes)
        return [replace(found, causes=causes, types=types_of(causes))] if causes else []

    def _mode(self, probability: dict[str, float], features: FeatureSet, alarm: float) -> str:
        """Faulty only above the alarm threshold, slow only over enough steps, stopped only after a moment.

        A rank that lost its peer within a step shows a stop by itself.
        """
        if has_stopped(features):
            return "fail_stop"
        suspicion = 1.0 - probability["healthy"]
        if suspicion < alarm:
            return "healthy"
        fault = max(("fail_slow", "fail_stop"), key=lambda mode: probability[mode])
        if fault == "fail_slow":
            shown = bool(shows_slowness(np.array(features.work.steps.size), np.array(suspicion)))
        else:
            shown = silent_enough(features)
        return fault if shown else "healthy"

    def alarm(self, features: FeatureSet) -> float:
        """Probability of a fault from which the job is called faulty."""
        whole = acts_on_all(self.heads["scope"], features.window[None, :])[0]
        return float(alarm_thresholds(self.thresholds, features.window, whole))

    def _rank_probability(self, features: FeatureSet, mode: str) -> FloatArray:
        head = self.heads["straggler" if mode == "fail_slow" else "stopper"]
        result: FloatArray = head.probabilities(features.rank)[:, 1]
        return result

    def _suspect(
        self, component: Component, features: FeatureSet, mode: str, priors: Mapping[str, float] | None
    ) -> Suspect:
        if mode == "fail_stop":
            head = self.heads["stop_cause"]
            chances = head.probabilities(features.window[None, :])[0]
            causes = dict(zip(head.classes, (float(chance) for chance in chances), strict=True))
            return Suspect(component, {}, ordered(refine_stop_cause(component, causes, features)))
        rows = features.rank[list(component.ranks[:64])]
        types = self._pooled("type", rows)
        causes = combine(types, self._pooled("cause", rows))
        if priors is not None:
            causes = ordered(reweighted(causes, ratios(priors, self.heads["cause"].priors)))
            types = types_of(causes)
        component, causes = reaching(component, causes, features)
        causes = ordered(causes)
        if next(iter(causes)) == "stage_imbalance" and is_whole_stage(component, features.topology):
            # A stage that fills exactly one node: the job's layout is the fault, not the machine.
            component = replace(component, scope="stage")
        return Suspect(component, types, causes)

    def _pooled(self, head: str, rows: FloatArray) -> dict[str, float]:
        """Probabilities of a component: the geometric mean over its ranks."""
        model = self.heads[head]
        return dict(zip(model.classes, pooled(model.probabilities(rows)).tolist(), strict=True))


def acts_on_all(scope: Head, windows: FloatArray) -> BoolArray:
    """Whether a fault would act on the job as a whole, rather than on some ranks.

    Parameters
    ----------
    scope : Head
        ``scope`` of a bundle.
    windows : ndarray of shape (n, n_window_features)

    Returns
    -------
    ndarray of shape (n,), bool
    """
    result: BoolArray = scope.probabilities(windows)[:, scope.classes.index("job")] >= LIKELIER_THAN_NOT
    return result


def named_ranks(suspects: Iterable[Suspect]) -> list[int]:
    """Every rank that any suspect names, once, ascending."""
    return sorted({rank for suspect in suspects for rank in suspect.component.ranks})


def as_component_cause(suspect: Suspect) -> ComponentCause:
    """The suspect and the likeliest of its causes."""
    cause = next(iter(suspect.causes))
    likeliest = max(suspect.types, key=lambda name: suspect.types[name], default=None)
    return ComponentCause(suspect.component, cause, likeliest if cause == UNKNOWN else None)


def _likeliest_known(causes: Mapping[str, float]) -> str:
    """The first cause of the catalogue: the effect of an unknown cause on other ranks is unknown."""
    return next((cause for cause in causes if cause in CAUSES), UNKNOWN)


def _joined(suspects: list[ComponentCause], features: FeatureSet) -> list[Component]:
    return merge_suspects(suspects, features.topology)


def _through_ports(suspects: list[ComponentCause], features: FeatureSet) -> list[Component]:
    return through_ports(suspects, Ports.from_features(features), features.topology)


def _can_be_certain(mode: str, features: FeatureSet) -> bool:
    """Without a finished step there is no step time to compare, so only a stop is certain."""
    timed = bool(np.isfinite(features.work.step_reference))
    return mode == "fail_stop" or (timed and (mode == "fail_slow" or can_show_health(features)))
