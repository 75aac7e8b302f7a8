"""Simulated windows and their features, made once for several modules."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import pytest

from rca.commands import worker_options
from rca.lab.evaluation import simulated
from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.training import bundle_comparison, promotion_gate
from rca.lab.training.feature_cache import FeatureCache


@pytest.fixture(scope="session")
def shared_features(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    """Windows of the same seed have the same features in every corpus, so a module finds those of another."""
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own in that of the run.
    return FeatureCache((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "features")


simulated_once = cache(simulated.simulated_window)
judged_rows = simulated._Judges.rows
_judged: dict[tuple[str, tuple[str, ...], int], list[JudgedRow]] = {}


def judged_once(self: simulated._Judges, seed: int) -> list[list[JudgedRow]]:
    """What each bundle answers, which most comparisons share."""
    found = []
    for bundle in self.bundles:
        key = bundle.model.sha256, self.signals, seed
        if key not in _judged:
            [_judged[key]] = judged_rows(replace(self, bundles=(bundle,)), seed)
        found.append(_judged[key])
    return found


@pytest.fixture
def comparisons_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare bundles in this process, on windows that are simulated and answered once."""
    monkeypatch.setattr(worker_options, "usable_cores", lambda: 1)
    monkeypatch.setattr(simulated, "simulated_window", simulated_once)
    monkeypatch.setattr(simulated._Judges, "rows", judged_once)
    monkeypatch.setattr(bundle_comparison, "simulated_window", simulated_once)
    monkeypatch.setattr(bundle_comparison, "LATENCY_WINDOWS", 3)
    # Three timings on a busy machine are no evidence; what the gate makes of them is tested elsewhere.
    monkeypatch.setattr(promotion_gate, "LATENCY_SLACK", 10.0)
