"""A cause whose own signals are measured and normal is not named; what was not measured excludes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.contradiction import KEPT, contradicted, is_contradicted
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


@pytest.mark.parametrize("cause", DECIDING)
def test_normal_signals_contradict_and_moved_or_missing_ones_do_not(slow, cause: str) -> None:
    mechanisms = baseline().mechanisms
    normal = dict.fromkeys(DECIDING[cause], 0.05)
    assert is_contradicted(cause, [5], measured(slow, normal), mechanisms)
    assert not is_contradicted(cause, [5], measured(slow, normal | {DECIDING[cause][0]: 6.0}), mechanisms)
    normal.pop(DECIDING[cause][0])
    assert not is_contradicted(cause, [5], measured(slow, normal), mechanisms)


def test_deciding_resources_are_the_causes_own() -> None:
    assert all(set(names) <= set(CAUSES[cause].resources) for cause, names in DECIDING.items())


def test_what_a_contradicted_cause_loses_nobody_gains(slow) -> None:
    suspect = Suspect(Component("rank", (5,), 0.9), {}, {}, {"gpu_throttling": 0.8, "gpu_contention": 0.15})
    found = contradicted(suspect, measured(slow, {"gpu_clock": 0.0}), baseline().mechanisms)
    assert found.causes["gpu_contention"] == 0.15
    assert found.causes["gpu_throttling"] == pytest.approx(0.8 * KEPT)
    assert list(found.causes) == ["gpu_throttling", "gpu_contention"]
