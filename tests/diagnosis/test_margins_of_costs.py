"""Which margin widens which cause's interval, and that none reaches beyond all that was lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rca
from rca.causal.attribution import Attribution, RemovedCause
from rca.causal.intervals import ANY, Margin
from rca.causal.scores import BusyEvidence
from rca.diagnosis.bundle import baseline
from rca.diagnosis.cause_pooling import PricedCause
from rca.diagnosis.pipeline import _alone, analyse
from rca.diagnosis.pricing import Pricing

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
NOTHING = {ANY: Margin()}


def answer(margins: dict[str, Margin], window: rca.Window) -> tuple[rca.Diagnosis, str]:
    """The diagnosis with these margins, and the group of its first cause."""
    shipped = baseline()
    bundle = replace(shipped, mechanisms=replace(shipped.mechanisms, margins=margins))
    diagnosis = rca.diagnose(window, bundle=bundle)
    pricing = analyse(window, bundle).pricing
    first = diagnosis.causes[0]
    named = [(each.removal.cause, list(each.removal.ranks)) for each in pricing.causes]
    return diagnosis, pricing.interval_group(named.index((first.cause, first.ranks)))


@pytest.fixture(scope="module")
def window() -> rca.Window:
    """Quiet steps before and after, a sure cause, and most of the loss is its."""
    return rca.read_window(WINDOWS / "cpu-contention-node")


def test_a_cause_takes_the_margin_of_its_group(window: rca.Window) -> None:
    plain, group = answer(NOTHING, window)
    assert group == "past-sure-most"
    mine, _ = answer({ANY: Margin(), group: Margin(0.5, 0.25)}, window)
    low, high = plain.causes[0].interval
    lost = plain.slowdown.interval[1]
    assert high < lost
    assert mine.causes[0].interval == pytest.approx((0.5 * low, high + 0.25 * (lost - high)))
    others, _ = answer({ANY: Margin(), "peers-sure-most": Margin(0.0, 1.0)}, window)
    assert others.causes[0].interval == pytest.approx((low, high))


def test_the_widest_margin_reaches_from_nothing_to_all_that_was_lost(window: rca.Window) -> None:
    widest, _ = answer({ANY: Margin(0.0, 1.0)}, window)
    lost = widest.slowdown.interval[1]
    assert widest.causes[0].interval == pytest.approx((0.0, lost))
    priced = [action for action in widest.actions if action.expected_seconds_per_step_saved]
    assert priced
    for action in priced:
        if action.interval is not None:
            assert 0 <= action.interval[0] <= action.expected_seconds_per_step_saved <= action.interval[1]
            assert action.interval[1] <= max(lost, action.expected_seconds_per_step_saved) * (1 + 1e-9)


def test_every_interval_of_the_shipped_windows_holds_its_cost() -> None:
    for folder in sorted(path.parent for path in WINDOWS.glob("*/label.json")):
        for cause in rca.diagnose(rca.read_window(folder)).causes:
            if cause.seconds_per_step is None or cause.interval is None:
                assert cause.stops_the_job
                continue
            low, high = cause.interval
            assert 0 <= low <= cause.seconds_per_step * (1 + 1e-9)
            assert cause.seconds_per_step <= high * (1 + 1e-9)
            assert np.isfinite(high)


def test_what_an_action_saves_is_no_more_than_was_lost() -> None:
    """Alone a cause may save more than its share, and its interval grows with it."""
    lost, share, alone = 0.018, 0.004, 0.008
    removal = RemovedCause("cpu_contention", (0,), np.zeros((1, 1)), np.zeros(1))
    priced = PricedCause(removal, (0,), 0.9, {"forward": share}, 1.0)
    attribution = Attribution(
        np.array([share]), np.array([alone]), np.array([[0.002, 0.012]]), 0.016, 0.012, (0.014, lost)
    )
    no_ranks = BusyEvidence(np.zeros((1, 0)), np.zeros((1, 0)))
    (saved,) = _alone(Pricing([priced], attribution, 0.1, no_ranks)).values()
    assert saved == (alone, (pytest.approx(0.004), lost))
