"""What is likely is said: without a price if nothing tells one, and that nothing explains it as well."""

from __future__ import annotations

import pytest

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.bundle import baseline
from rca.diagnosis.causes import slow_causes
from rca.diagnosis.pricing import _charges, price
from rca.diagnosis.result import Cause
from rca.features import extract
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window import Window
from rca.window.causes import SLOW_CAUSES, UNKNOWN
from tests.for_each import for_each


def causes(window: Window, **beliefs: float) -> list[Cause]:
    """The causes of a diagnosis, were rank 5 suspected with these beliefs."""
    features, mechanisms = extract(window), baseline().mechanisms
    replay = PhaseReplay.from_arrays(features.phases.without_first(features.work.warmup), window.job)
    busy = BusyEvidence.from_features(features, mechanisms)
    suspect = Suspect(Component("rank", (5,), 1.0), {}, beliefs)
    return slow_causes(price(features, [suspect], busy, mechanisms, replay), features, [])


def test_a_likely_cause_without_a_price_is_not_dropped_for_an_unlikely_one(make_window) -> None:
    # Nobody timed checkpoints; what forward took longer is all that has a price.
    window = make_window(late={5: 0.03})
    answer = causes(window, checkpoint_stall=0.9, gpu_throttling=0.08)
    assert [cause.cause for cause in answer] == ["checkpoint_stall", "gpu_throttling"]
    assert answer[0].without_price
    assert not answer[1].without_price


def test_an_unlikely_one_without_a_price_gives_way(make_window) -> None:
    answer = causes(make_window(late={5: 0.03}), checkpoint_stall=0.3, gpu_throttling=0.68)
    assert [cause.cause for cause in answer] == ["gpu_throttling"]
    assert answer[0].seconds_per_step == pytest.approx(0.03, rel=0.1)


def test_a_likely_cause_with_a_price_keeps_it_beside_what_nothing_explains(make_window) -> None:
    answer = causes(make_window(late={5: 0.03}), gpu_throttling=0.2, gpu_contention=0.02)
    assert answer[0].cause == UNKNOWN
    assert sum(cause.seconds_per_step for cause in answer) == pytest.approx(0.03, rel=0.1)


def charged(**beliefs: float) -> dict[str, tuple[float, dict[str, float]]]:
    """What causes are charged with of a second lost in one phase."""
    weights = {cause: {"forward": belief} for cause, belief in beliefs.items()}
    everything = dict.fromkeys(SLOW_CAUSES, 0.0) | beliefs
    return _charges(everything, weights, {"forward": 1.0, "backward": 0.0})


@for_each(
    ("beliefs", "unknown"),
    [
        (dict.fromkeys(("gpu_contention", "gpu_throttling", "pcie_degradation"), 0.09), 0.73),
        ({"gpu_contention": 0.25}, 0.75),
        ({"gpu_contention": 0.4}, 0.6),
        ({"gpu_contention": 0.25, "gpu_throttling": 0.2}, 0.55),
        ({"gpu_contention": 0.5}, None),
        ({"gpu_contention": 0.55}, None),
        ({"gpu_contention": 0.3, "gpu_throttling": 0.25}, None),
    ],
    ids=[
        "certain among many",
        "certain",
        "likeliest",
        "likelier than both",
        "as likely",
        "less likely",
        "but not than both",
    ],
)
def test_nothing_explains_it_is_said_where_it_is_likeliest_and_most_is_open(
    beliefs: dict[str, float], unknown: float | None
) -> None:
    found = charged(**beliefs)
    assert found.get(UNKNOWN, (None,))[0] == (None if unknown is None else pytest.approx(unknown))
    if unknown is not None:
        assert sum(shares["forward"] for _, shares in found.values()) == pytest.approx(1.0)
        assert found[UNKNOWN][1]["forward"] > 0.5


def test_nothing_explains_what_has_no_price_either(make_window) -> None:
    columns = ("rank", "step", "start_time", "step_seconds")
    answer = causes(make_window(columns=columns), gpu_throttling=0.2)
    assert [cause.cause for cause in answer] == [UNKNOWN, "gpu_throttling"]
    assert all(cause.without_price for cause in answer)
