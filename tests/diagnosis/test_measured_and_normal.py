"""A cause whose own signals are measured and normal is not named; what was not measured excludes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.contradiction import KEPT, contradicted, is_contradicted, most_unlike
from rca.features import extract
from rca.features.evidence import RESOURCES, resource_names
from rca.telemetry.causes import CAUSES, DECIDING


@pytest.fixture(scope="module")
def slow(make_window):
    return extract(make_window(late={5: 0.05}, steps=slice(20, None)))


def measured(features, scores: dict[str, float]):
    """The features with these scores on all ranks, and everything else not measured."""
    held = np.full((8, len(RESOURCES)), np.nan)
    for name, score in scores.items():
        held[:, resource_names().index(name)] = score
    evidence = replace(features.evidence, versus_peers=held, versus_past=held, versus_sound=held)
    return replace(features, evidence=evidence)


def busy(features) -> BusyEvidence:
    return BusyEvidence.from_features(features, baseline().mechanisms)


@pytest.mark.parametrize("cause", DECIDING)
def test_normal_signals_contradict_and_moved_or_missing_ones_do_not(slow, cause: str) -> None:
    def normal_on(scores: dict[str, float]) -> bool:
        features = measured(slow, scores)
        return is_contradicted(cause, most_unlike([5], features, busy(features)))

    normal = dict.fromkeys(DECIDING[cause], 0.05)
    assert normal_on(normal)
    assert not normal_on(normal | {DECIDING[cause][0]: 6.0})
    normal.pop(DECIDING[cause][0])
    assert not normal_on(normal)


def test_deciding_resources_are_the_causes_own() -> None:
    assert all(set(names) <= set(CAUSES[cause].resources) for cause, names in DECIDING.items())


def test_what_a_contradicted_cause_loses_nobody_gains(slow) -> None:
    suspect = Suspect(Component("rank", (5,), 0.9), {}, {}, {"gpu_throttling": 0.8, "gpu_contention": 0.15})
    features = measured(slow, {"gpu_clock": 0.0})
    found = contradicted(suspect, features, busy(features))
    assert found.causes["gpu_contention"] == 0.15
    assert found.causes["gpu_throttling"] == pytest.approx(0.8 * KEPT)
    assert list(found.causes) == ["gpu_throttling", "gpu_contention"]
