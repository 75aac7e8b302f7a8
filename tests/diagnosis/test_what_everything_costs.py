"""What was lost, before anybody says by what: transfers that flap, ranks that two share, time in no phase."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from rca.arrays import FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.excess import Excess, each_their_own, ideal_work, transfer_excess
from rca.diagnosis.pricing import price
from rca.features import FeatureSet, extract
from rca.features.temporal import Segment
from rca.telemetry.window import Window
from rca.whatif.coarse import PhaseReplay

STEPS, QUIET, SLOW = 60, 0.2, 0.5
#: Three steps of five, not in turns.
FLAPS = np.random.default_rng(5).random(STEPS) < 0.6
STRETCH = Segment(20, 29, 0.1, 20.0, False)


def lost(transfer: FloatArray, segment: Segment | None = None, *, flaps: bool = True) -> FloatArray:
    """Seconds of transfer above the quiet level, of a job with steps of a second."""
    held = segment or Segment.everything(STEPS)
    work = SimpleNamespace(transfer=np.tile(transfer, (4, 1)), step_reference=1.0)
    features = SimpleNamespace(work=work, comparison=SimpleNamespace(segment=held))
    return transfer_excess(cast("FeatureSet", features), flaps=flaps)


def around(level: FloatArray, jitter: float) -> FloatArray:
    noise = np.random.default_rng(3).normal(0.0, jitter, STEPS)
    found: FloatArray = level + np.abs(noise)
    return found


@pytest.mark.parametrize("share", [0.2, 0.6, 0.8])
def test_a_link_that_flaps_costs_its_slow_steps_though_there_is_no_stretch(share: float) -> None:
    flaps = np.random.default_rng(6).random(STEPS) < share
    found = lost(around(np.where(flaps, SLOW, QUIET), 0.005))
    assert found[flaps] == pytest.approx(SLOW - QUIET, abs=0.02)
    assert not found[~flaps].any()


@pytest.mark.parametrize("every", [2, 4, 10])
def test_who_exchanges_in_every_so_many_steps_loses_nothing(every: int) -> None:
    turns = np.arange(STEPS) % every == 0
    for slow in (turns, ~turns):
        assert not lost(around(np.where(slow, SLOW, QUIET), 0.005)).any()


@pytest.mark.parametrize("turn", [(0, 1), (2, 5)], ids=["two of ten", "uneven"])
def test_nor_who_does_so_beside_a_slow_stretch(turn: tuple[int, int]) -> None:
    transfer = around(np.where(np.isin(np.arange(STEPS) % 10, turn), SLOW, QUIET), 0.005)
    transfer[20:30] = SLOW
    assert not np.delete(lost(transfer, STRETCH), np.arange(20, 30)).any()


def test_what_lasts_for_some_steps_is_no_turn() -> None:
    lasting = np.arange(STEPS) % 30 < 12
    found = lost(around(np.where(lasting, SLOW, QUIET), 0.005))
    assert found[lasting] == pytest.approx(SLOW - QUIET, abs=0.02)


def test_nothing_flaps_unless_a_link_is_suspected() -> None:
    assert not lost(around(np.where(FLAPS, SLOW, QUIET), 0.005), flaps=False).any()


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
    return Excess(ranks, total, each, np.zeros(shape))


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
    told = each_their_own([both[place] for place in order])
    ideal, serial = ideal_work(own, own, cast("FeatureSet", features), told)
    assert ideal == pytest.approx(np.repeat([0.8, 0.8, needed, needed], 5).reshape(4, 5))
    assert serial is not None
    assert serial[0] == pytest.approx(0.8)
    assert serial[2] == pytest.approx(1.0 - max(0.2, stage.get("checkpoint", 0.0)))


def priced_for(cause: str, window: Window, features: FeatureSet) -> dict[str, float]:
    """Seconds per step of every cause of rank 5, of which one is nearly certain."""
    suspect = Suspect(Component("rank", (5,), 1.0), {}, {}, {cause: 0.95})
    mechanisms = baseline().mechanisms
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    busy = BusyEvidence.from_features(features, mechanisms)
    found = price(features, [suspect], busy, mechanisms, replay)
    costs = zip(found.causes, found.attribution.seconds, strict=True)
    return {priced.removal.cause: cost for priced, cost in costs if cost > 1e-3}


@pytest.mark.parametrize(("generates", "told"), [(0.3, True), (0.0, False)], ids=["much", "nothing"])
def test_a_job_that_spends_much_in_no_phase_computes_there(make_window, generates: float, told: bool) -> None:
    """Rank 5 is late in no phase, and its device is shared: where all that computes is timed, not by that."""
    window = make_window(late={5: 0.05}, steps=slice(20, None), phase="untimed_seconds")
    whole = window.steps.column("step_seconds").to_numpy() + generates
    place = window.steps.schema.names.index("step_seconds")
    steps = window.steps.set_column(place, window.steps.schema.field(place), [whole])
    features = extract(replace(window, steps=steps))
    assert features.comparison.excess[5, 20:].mean() == pytest.approx(0.05, rel=0.1)
    seconds = priced_for("gpu_contention", window, features)
    assert (seconds.get("gpu_contention", 0.0) > 0.02) == told


def test_what_the_others_waited_for_is_no_time_that_a_job_usually_spends_untimed(make_window) -> None:
    """Rank 5 copies untimed for long, and the others wait in the forward: all that computes is timed."""
    window = make_window(late={5: 0.03}, steps=slice(8, None), phase="copies", transfer=0.0005)
    wait = window.steps.column("communication_wait_seconds").to_numpy()
    steps = window.steps.drop_columns(["communication_wait_seconds", "communication_transfer_seconds"])
    place = steps.schema.names.index("forward_seconds")
    longer = steps.column("forward_seconds").to_numpy() + wait
    features = extract(replace(window, steps=steps.set_column(place, steps.schema.field(place), [longer])))
    assert features.comparison.excess[5, 8:].mean() == pytest.approx(0.03, rel=0.1)
    assert "gpu_contention" not in priced_for("gpu_contention", window, features)


def test_ranks_without_timers_do_not_compute_untimed(make_window) -> None:
    """Five of eight report whole steps only: that says nothing of what the others leave untimed."""
    window = make_window(late={5: 0.05}, steps=slice(20, None), phase="untimed_seconds")
    blind = np.isin(window.steps.column("rank").to_numpy(), [0, 1, 2, 3, 4])
    steps = window.steps
    for place, name in enumerate(steps.schema.names):
        if name.endswith("_seconds") and name != "step_seconds":
            held = np.where(blind, np.nan, steps.column(name).to_numpy())
            steps = steps.set_column(place, steps.schema.field(place), [pa.array(held, from_pandas=True)])
    features = extract(replace(window, steps=steps))
    assert "gpu_contention" not in priced_for("gpu_contention", window, features)
