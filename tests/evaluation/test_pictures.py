"""The reliability diagram's bins, and the paired difference of calibration errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rca.lab.evaluation.intervals import calibration_difference
from rca.lab.evaluation.pictures import reliability, write_calibration

RNG = np.random.default_rng(0)


def test_bins_hold_every_window_with_a_confidence_once() -> None:
    confidence = np.array([0.05, 0.55, 0.58, 1.0, np.nan])
    found = reliability(confidence, np.array([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert found.n.tolist() == [1, 2, 1]
    assert found.accuracy.tolist() == [0.0, 0.5, 1.0]
    assert found.confidence == pytest.approx([0.05, 0.565, 1.0])


def test_intervals_hold_the_share_and_shrink_with_evidence() -> None:
    def width(n: int) -> float:
        found = reliability(np.full(n, 0.7), np.arange(n) < 0.7 * n)
        assert found.low[0] < 0.7 < found.high[0]
        return float(found.high[0] - found.low[0])

    assert width(10) > 2 * width(100)
    # Ten of ten do not prove certainty; known value of Wilson's interval.
    sure = reliability(np.full(10, 0.99), np.ones(10))
    assert sure.low[0] == pytest.approx(0.7225, abs=1e-3)


def test_no_confidence_at_all_has_no_bins() -> None:
    assert reliability(np.array([np.nan]), np.array([1.0])).n.size == 0


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    confidence = RNG.uniform(0.5, 1, 200)
    right = (RNG.random(200) < confidence).astype(float)
    path = tmp_path / "calibration.png"
    write_calibration({"simulated": reliability(confidence, right)}, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_better_calibrated_method_is_shown_to_be_better() -> None:
    right = (RNG.random(800) < 0.7).astype(float)
    honest, boastful = (np.full(800, 0.7), right), (np.full(800, 0.95), right)
    found = calibration_difference(boastful, honest, np.random.default_rng(1))
    assert found.low > 0.15
    assert found.value == pytest.approx(0.25, abs=0.05)
    mirrored = calibration_difference(honest, boastful, np.random.default_rng(1))
    assert mirrored.value == -found.value


def test_equal_methods_do_not_differ() -> None:
    confidence = RNG.uniform(0.4, 1, 300)
    same = (confidence, (RNG.random(300) < confidence).astype(float))
    found = calibration_difference(same, same, np.random.default_rng(1))
    assert (found.value, found.low, found.high, found.n) == (0.0, 0.0, 0.0, 300)
