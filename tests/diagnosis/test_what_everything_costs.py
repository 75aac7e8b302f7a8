"""What was lost, before anybody says by what: transfers that flap, ranks that two share, time in no phase."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.excess import Excess, ideal_work, transfer_excess
from rca.diagnosis.pricing import price
from rca.features import FeatureSet, extract
from rca.features.temporal import Segment
from rca.whatif.coarse import PhaseReplay

STEPS, QUIET, SLOW = 60, 0.2, 0.5
#: Three steps of five.
FLAPS = np.arange(STEPS) % 5 < 3
STRETCH = Segment(20, 29, 0.1, 20.0, False)


def lost(transfer: FloatArray, segment: Segment | None = None) -> FloatArray:
    """Seconds of transfer above the quiet level, of a job with steps of a second."""
    held = segment or Segment.everything(STEPS)
    work = SimpleNamespace(transfer=np.tile(transfer, (4, 1)), step_reference=1.0)
    features = SimpleNamespace(work=work, comparison=SimpleNamespace(segment=held))
    return transfer_excess(cast("FeatureSet", features))


def around(level: FloatArray, jitter: float) -> FloatArray:
    noise = np.random.default_rng(3).normal(0.0, jitter, STEPS)
    found: FloatArray = level + np.abs(noise)
    return found


@pytest.mark.parametrize("share", [0.2, 0.6, 0.8])
def test_a_link_that_flaps_costs_its_slow_steps_though_there_is_no_stretch(share: float) -> None:
    flaps = np.arange(STEPS) % 5 < 5 * share
    found = lost(around(np.where(flaps, SLOW, QUIET), 0.005))
    assert found[flaps] == pytest.approx(SLOW - QUIET, abs=0.02)
    assert not found[~flaps].any()


def test_slow_steps_beside_the_stretch_are_the_links_too() -> None:
    transfer = around(np.where(FLAPS, SLOW, QUIET), 0.005)
    transfer[40:] = QUIET
    found = lost(transfer, STRETCH)
    assert found[:40][FLAPS[:40]] == pytest.approx(SLOW - QUIET, abs=0.05)
    assert not found[40:].any()


@pytest.mark.parametrize(
    "transfer",
    [around(np.full(STEPS, QUIET), 0.0), around(np.full(STEPS, QUIET), 0.1), np.full(STEPS, np.nan)],
    ids=["even", "restless", "not measured"],
)
def test_without_two_kinds_of_steps_nothing_is_lost(transfer: FloatArray) -> None:
    assert not lost(transfer).any()


def test_of_restless_transfers_only_the_stretch_counts() -> None:
    transfer = around(np.full(STEPS, QUIET), 0.2)
    transfer[20:30] += 0.3
    found = lost(transfer, STRETCH)
    assert found[20:30].mean() == pytest.approx(0.3, abs=0.1)
    assert not np.delete(found, np.arange(20, 30)).any()


def excess(ranks: tuple[int, ...], **parts: float) -> Excess:
    shape = len(ranks), 5
    each = {name: np.full(shape, seconds) for name, seconds in parts.items()}
    total = sum(each.values(), np.zeros(shape))
    return Excess(ranks, total, each, np.zeros(shape), np.zeros(shape))


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize(
    ("stage", "needed"), [({"forward": 0.3}, 0.5), ({"checkpoint": 0.3}, 0.7)], ids=["apart", "the same"]
)
def test_who_shares_ranks_with_the_job_needs_less_without_either(
    order: list[int], stage: dict[str, float], needed: float
) -> None:
    """Everybody writes checkpoints, and ranks 2 and 3 are late: in another phase, or in the same one."""
    own = np.full((4, 5), 1.0)
    both = excess((2, 3), **stage), excess((0, 1, 2, 3), checkpoint=0.2)
    features = SimpleNamespace(comparison=SimpleNamespace(reference=own, phase_excess={}))
    ideal, serial = ideal_work(own, own, cast("FeatureSet", features), [both[place] for place in order])
    assert ideal == pytest.approx(np.repeat([0.8, 0.8, needed, needed], 5).reshape(4, 5))
    assert serial is not None
    assert serial[0] == pytest.approx(0.8)
    assert serial[2] == pytest.approx(1.0 - max(0.2, stage.get("checkpoint", 0.0)))


@pytest.mark.parametrize(("generates", "told"), [(0.3, True), (0.0, False)], ids=["much", "nothing"])
def test_a_job_that_spends_much_in_no_phase_computes_there(make_window, generates: float, told: bool) -> None:
    """Rank 5 is late in no phase, and its device is shared: where all that computes is timed, not by that."""
    window = make_window(late={5: 0.05}, steps=slice(20, None), phase="untimed_seconds")
    whole = window.steps.column("step_seconds").to_numpy() + generates
    place = window.steps.schema.names.index("step_seconds")
    steps = window.steps.set_column(place, window.steps.schema.field(place), [whole])
    features = extract(replace(window, steps=steps))
    assert features.comparison.excess[5, 20:].mean() == pytest.approx(0.05, rel=0.1)
    suspect = Suspect(Component("rank", (5,), 1.0), {}, {}, {"gpu_contention": 0.95})
    mechanisms = baseline().mechanisms
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    busy = BusyEvidence.from_features(features, mechanisms)
    found = price(features, [suspect], busy, mechanisms, replay)
    seconds = {
        priced.removal.cause: cost
        for priced, cost in zip(found.causes, found.attribution.seconds, strict=True)
    }
    assert (seconds.get("gpu_contention", 0.0) > 0.02) == told
