"""The observed gain of actions, their outcome, and the correction of later predictions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.recovery.outcomes import PRIOR_INCIDENTS, Correction, correction, judged, observed_gain
from tests.for_each import for_each

SECONDS = st.floats(-1.0, 1.0)
GAINS = st.dictionaries(
    st.text(max_size=4), st.lists(st.tuples(SECONDS, st.floats(0.001, 1.0)), max_size=3), max_size=12
)


def test_the_gain_is_the_fall_of_the_loss_with_its_interval() -> None:
    gain = observed_gain([0.10, 0.12, 0.11], [0.01, 0.03, 0.02])
    assert gain is not None
    assert gain.seconds == pytest.approx(0.09)
    # Student's t with 4 degrees of freedom, 90 %: 2.132 times 0.01 times the root of 2/3.
    assert gain.interval == pytest.approx((0.09 - 0.01741, 0.09 + 0.01741), abs=1e-5)
    assert (gain.before, gain.after) == pytest.approx((0.11, 0.02))


@pytest.mark.parametrize(("before", "after"), [([], [0.1, 0.1]), ([0.1, 0.1], []), ([0.1], [0.1])])
def test_too_few_windows_show_nothing(before: list[float], after: list[float]) -> None:
    assert observed_gain(before, after) is None


def test_unknown_losses_are_refused() -> None:
    with pytest.raises(InvalidInput):
        observed_gain([float("nan"), 0.1], [0.1])


@settings(max_examples=100, deadline=None)
@given(losses=st.lists(SECONDS, min_size=4, max_size=10), base=SECONDS)
def test_a_loss_that_stays_in_all_windows_does_not_change_the_gain(losses: list[float], base: float) -> None:
    """So the noise that every window loses is no gain and no loss."""
    plain = observed_gain(losses[:2], losses[2:])
    shifted = observed_gain([each + base for each in losses[:2]], [each + base for each in losses[2:]])
    assert plain is not None
    assert shifted is not None
    assert shifted.seconds == pytest.approx(plain.seconds, abs=1e-9)
    assert shifted.interval == pytest.approx(plain.interval, abs=1e-9)
    assert plain.interval[0] <= plain.seconds <= plain.interval[1]


@for_each(
    ("before", "after", "predicted", "outcome"),
    [
        ([0.10, 0.11, 0.10], [0.00, 0.01, 0.00], 0.1, "helped"),
        ([0.10, 0.11, 0.10], [0.10, 0.11, 0.10], 0.1, "did_not_help"),
        ([0.10, 0.11, 0.10], [0.20, 0.21, 0.20], 0.1, "did_not_help"),
        ([0.10, 0.20, 0.05], [0.10, 0.00, 0.12], 0.1, "unclear"),
        # Surely some gain, but hardly any of what was expected.
        ([0.1001, 0.1, 0.1002], [0.0991, 0.099, 0.0991], 0.1, "did_not_help"),
        # Without a prediction, the loss before is what could be gained.
        ([0.10, 0.11, 0.10], [0.00, 0.01, 0.00], None, "helped"),
        ([0.10, 0.11, 0.10], [0.10, 0.11, 0.10], None, "did_not_help"),
    ],
)
def test_outcomes(before: list[float], after: list[float], predicted: float | None, outcome: str) -> None:
    gain = observed_gain(before, after)
    assert gain is not None
    assert judged(gain, predicted) == outcome


@settings(max_examples=200, deadline=None)
@given(gains=GAINS)
def test_the_factor_lies_between_one_and_the_median_and_moves_little_at_first(
    gains: dict[str, list[tuple[float, float]]],
) -> None:
    found = correction(gains)
    assert found.n == sum(bool(uses) for uses in gains.values())
    middle = 1.0 if found.median is None else found.median
    assert 0.0 <= middle <= 2.0
    assert min(middle, 1.0) - 1e-12 <= found.factor <= max(middle, 1.0) + 1e-12
    assert abs(found.factor - 1.0) <= found.n / (PRIOR_INCIDENTS + found.n) + 1e-12
    assert correction(dict(reversed(gains.items()))) == found


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 200), ratio=st.floats(0.0, 2.0), predicted=st.floats(0.001, 1.0))
def test_many_incidents_with_one_ratio_give_that_ratio(n: int, ratio: float, predicted: float) -> None:
    found = correction({str(place): [(ratio * predicted, predicted)] for place in range(n)})
    expected = (PRIOR_INCIDENTS + n * ratio) / (PRIOR_INCIDENTS + n)
    assert found.factor == pytest.approx(expected)


def test_many_uses_in_one_incident_count_as_one() -> None:
    assert correction({"a": [(0.0, 0.1)] * 50}).factor == pytest.approx(0.8)


def test_uses_without_a_prediction_do_not_count() -> None:
    assert correction({"a": [(0.1, 0.0)], "b": [(0.1, -0.1)]}) == Correction(0, None, 1.0)
