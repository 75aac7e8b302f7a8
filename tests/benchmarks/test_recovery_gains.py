"""The arithmetic of the table of predicted and measured gains, and the gain that a capture shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rca
from benchmarks.recovery_gains import (
    GainRow,
    PromisedGain,
    captured_gain,
    difference,
    ends,
    prediction,
    step_seconds,
    summary,
)
from rca.recovery.option import Gain, option
from rca.recovery.remedies import REMEDIES
from rca.sources.labels import LabelledCause, read_label

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
REMEDY = {each.name: each for each in REMEDIES}


def row(measured: float, predicted: float | None, low: float = 0.0, high: float = 1.0) -> GainRow:
    interval = None if predicted is None else (low, high)
    held = PromisedGain(predicted, interval, "" if predicted is not None else "names another cause")
    return GainRow("f", "a", "job", held, measured, (measured - 0.01, measured + 0.01), 0.2)


def test_errors_are_relative_to_the_measured_gain() -> None:
    figures = summary([row(0.10, 0.11), row(0.10, 0.08), row(0.05, 0.10), row(0.10, None)])
    assert (figures["rows"], figures["predicted"]) == (4, 3)
    assert figures["error"][0] == pytest.approx(0.2)
    assert figures["bias"] == pytest.approx(0.1)
    assert figures["within_aim"] == pytest.approx(1 / 3)


def test_an_interval_holds_if_the_measured_gain_is_inside() -> None:
    inside, beside = row(0.10, 0.12, 0.09, 0.14), row(0.10, 0.12, 0.105, 0.14)
    apart = row(0.10, 0.12, 0.115, 0.14)
    assert [each.covered for each in (inside, beside, apart)] == [True, False, False]
    assert [each.overlap for each in (inside, beside, apart)] == [True, True, False]
    assert summary([inside, beside, apart])["covered"] == pytest.approx(1 / 3)


def test_a_table_without_predictions_has_no_error() -> None:
    figures = summary([row(0.1, None)])
    assert np.isnan(figures["error"][0])
    assert np.isnan(figures["covered"])


def test_the_gain_of_a_removal_is_the_share_of_slow_steps_times_what_they_lose() -> None:
    step = np.arange(60.0)
    seconds = np.where((step >= 20) & (step <= 39), 0.3, 0.1)
    true = LabelledCause(cause="cpu_contention", first_step=20, last_step=39)
    gain = captured_gain(step, seconds, true)
    assert gain is not None
    assert gain[0] == pytest.approx(0.2 / 3)
    assert gain[1] == pytest.approx((0.2 / 3, 0.2 / 3))
    assert captured_gain(step, seconds, LabelledCause(cause="cpu_contention", first_step=2)) is None


def test_the_interval_of_a_difference_holds_the_true_one() -> None:
    rng = np.random.default_rng(3)
    value, (low, high) = difference(rng.normal(0.3, 0.02, 200), rng.normal(0.1, 0.02, 200))
    assert low < value < high
    assert low < 0.2 < high
    assert high - low < 0.02


def test_an_action_ends_a_fault_only_where_it_is() -> None:
    true = LabelledCause(cause="nic_degradation", ranks=(2, 3), nodes=("node-1",))
    drain = option(
        REMEDY["drain_node"],
        Gain(0.1, (0.0, 0.2), "attribution"),
        chance=1.0,
        ranks=[2, 3],
        nodes=["node-1"],
        risk="",
        instruction="",
    )
    assert ends(drain, true)
    assert not ends(drain.model_copy(update={"ranks": [4]}), true)
    assert not ends(drain.model_copy(update={"action": "evict_other_process"}), true)
    isolate = drain.model_copy(update={"action": "isolate_suspects", "nodes": ["node-0", "node-1"]})
    assert ends(isolate, true)
    assert not ends(isolate.model_copy(update={"nodes": ["node-0"]}), true)


@pytest.fixture(scope="module")
def slow_dataset() -> tuple[rca.Window, rca.Plan, LabelledCause]:
    window = rca.read_window(WINDOWS / "slow-dataset")
    (true,) = read_label(WINDOWS / "slow-dataset").causes
    return window, rca.plan(rca.diagnose(window), window), true


def test_a_real_capture_has_a_prediction_near_its_measured_gain(slow_dataset) -> None:
    window, plan, true = slow_dataset
    gain = captured_gain(*step_seconds(window), true)
    held = prediction(plan, "add_loader_workers", true)
    assert gain is not None
    assert held.seconds is not None
    assert held.seconds == pytest.approx(gain[0], rel=0.15)


def test_an_action_that_is_not_offered_has_the_reason(slow_dataset) -> None:
    _, plan, _ = slow_dataset
    true = LabelledCause(cause="nic_degradation", ranks=(2, 3))
    assert prediction(plan, "drain_node", true) == PromisedGain(None, None, "names data_loader_stall")
