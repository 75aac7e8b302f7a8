"""A window unlike those learned from is flagged, and what is unlike is named."""

from __future__ import annotations

import numpy as np
import pytest

from rca.classify.out_of_distribution import SHAPE, Familiarity, JobShape, Ranges
from rca.features import WINDOW_FEATURES

N = len(WINDOW_FEATURES)
RANKS = WINDOW_FEATURES.index("log2_ranks")
USUAL = np.full(N, 0.5)


def familiarity(distance_limit: float = 3.0) -> Familiarity:
    """Every feature from 0 to 1, a job's shape around the middle."""
    shape = JobShape(np.full(len(SHAPE), 0.5), np.ones(len(SHAPE)), np.eye(len(SHAPE)))
    # Noise and variation are compared by their logarithms.
    shape.centre[[SHAPE.index("step_noise"), SHAPE.index("step_variation")]] = np.log(0.5)
    return Familiarity(Ranges(np.zeros(N), np.ones(N)), shape, distance_limit)


def changed(name: str, value: float) -> np.ndarray:
    window = USUAL.copy()
    window[WINDOW_FEATURES.index(name)] = value
    return window


def test_a_usual_window_is_familiar() -> None:
    found = familiarity().judge(USUAL)
    assert not found.out_of_distribution
    assert (found.outside, found.distance) == ((), 0.0)


def test_a_feature_outside_is_named_with_its_range_and_distance() -> None:
    found = familiarity().judge(changed("steps_since_progress", 3.0))
    assert not found.out_of_distribution
    (outside,) = found.outside
    assert (outside.feature, outside.value, outside.low, outside.high) == (
        "steps_since_progress",
        3.0,
        0.0,
        1.0,
    )
    assert outside.beyond == pytest.approx(2.0)


def test_the_farthest_comes_first_on_either_side() -> None:
    window = changed("steps_since_progress", 3.0)
    window[WINDOW_FEATURES.index("step_time_trend")] = -9.0
    assert [each.feature for each in familiarity().judge(window).outside] == [
        "step_time_trend",
        "steps_since_progress",
    ]


def test_a_strange_job_is_flagged_although_every_number_is_in_range() -> None:
    found = familiarity(distance_limit=0.4).judge(changed("log2_ranks", 1.0))
    assert found.outside == ()
    assert found.out_of_distribution
    assert found.oddest[0] == "log2_ranks"


def test_what_is_not_measured_is_not_strange() -> None:
    found = familiarity().judge(np.full(N, np.nan))
    assert not found.out_of_distribution
    assert found.outside == ()


def test_a_feature_no_training_window_had_cannot_be_outside() -> None:
    known = familiarity()
    known.ranges.high[RANKS] = np.nan
    assert known.judge(changed("log2_ranks", 99.0)).outside == ()


def test_rounding_is_not_novelty_but_a_second_value_is() -> None:
    known = familiarity()
    assert known.judge(changed("steps_since_progress", 1.0 + 1e-9)).outside == ()
    known.ranges.high[WINDOW_FEATURES.index("pipeline_stages")] = 0.0
    found = known.judge(changed("pipeline_stages", 1.0))
    assert found.outside[0].beyond == np.inf


DOCUMENT = {
    "ranges": {"steps_since_progress": [0.0, 2.0]},
    "shape": {
        "features": list(SHAPE),
        "centre": [0.0] * len(SHAPE),
        "spread": [1.0] * len(SHAPE),
        "whitening": np.eye(len(SHAPE)).tolist(),
    },
    "limits": {"distance": 4.0},
}


def test_it_is_read_from_its_document() -> None:
    found = Familiarity.load(DOCUMENT)
    assert found.ranges.high[WINDOW_FEATURES.index("steps_since_progress")] == 2.0
    assert np.isnan(found.ranges.high[RANKS])
    assert found.distance_limit == 4.0


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": {"phase_of_moon": [0, 1]}},
        {"shape": DOCUMENT["shape"] | {"features": ["log2_ranks"]}},
        {"shape": DOCUMENT["shape"] | {"whitening": [[1.0]]}},
    ],
)
def test_a_document_of_another_shape_is_refused(change) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Familiarity.load(DOCUMENT | change)
