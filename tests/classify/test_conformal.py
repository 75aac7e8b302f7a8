"""What a prediction set holds, given its floors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.classify.conformal import PredictionSets

MODES = ("healthy", "fail_slow", "fail_stop")
DOCUMENT = {"level": 0.9, "floors": {"mode": {"healthy": 0.3}, "cause": {}, "stop_cause": {}}}
probability = st.floats(0, 1)


def sets(**floors: float) -> PredictionSets:
    """Floors alone: at level 0 no class is kept for being likely."""
    return PredictionSets(0.0, {"mode": floors})


def test_a_class_likelier_than_one_minus_the_level_stays_with_any_floor() -> None:
    chances = {"healthy": 0.85, "fail_slow": 0.12, "fail_stop": 0.03}
    wanted = PredictionSets(0.9, {"mode": dict.fromkeys(MODES, 0.6)})
    assert wanted.plausible("mode", chances, None) == ["healthy", "fail_slow"]


def test_a_class_stays_in_the_set_from_its_own_floor_on() -> None:
    chances = {"healthy": 0.6, "fail_slow": 0.3, "fail_stop": 0.1}
    wanted = sets(healthy=0.5, fail_slow=0.3, fail_stop=0.11)
    assert wanted.plausible("mode", chances, "healthy") == ["healthy", "fail_slow"]


def test_a_class_without_a_floor_is_never_ruled_out() -> None:
    assert sets(healthy=0.5).plausible("mode", {"healthy": 1.0, "fail_stop": 0.0}, None) == [
        "healthy",
        "fail_stop",
    ]


@given(*[probability] * 6, st.sampled_from(MODES))
def test_a_set_holds_the_answer_and_the_likeliest_and_is_ordered(a, b, c, x, y, z, answered: str) -> None:
    chances = dict(zip(MODES, (a, b, c), strict=True))
    found = sets(**dict(zip(MODES, (x, y, z), strict=True))).plausible("mode", chances, answered)
    assert {answered, max(chances, key=chances.__getitem__)} & set(found)
    assert answered in found
    assert [chances[name] for name in found] == sorted((chances[name] for name in found), reverse=True)


@given(*[probability] * 6, st.floats(0, 1))
def test_a_lower_floor_never_takes_a_class_away(a, b, c, x, y, z, factor: float) -> None:
    chances, high = dict(zip(MODES, (a, b, c), strict=True)), dict(zip(MODES, (x, y, z), strict=True))
    low = {name: factor * floor for name, floor in high.items()}
    assert set(sets(**high).plausible("mode", chances, None)) <= set(
        sets(**low).plausible("mode", chances, None)
    )


def test_it_is_read_from_its_document() -> None:
    found = PredictionSets.load(DOCUMENT)
    assert found.level == 0.9
    assert found.floors["mode"] == {"healthy": 0.3}


@pytest.mark.parametrize(
    "change", [{"level": 1.5}, {"floors": DOCUMENT["floors"] | {"mode": {"healthy": -1}}}]
)
def test_numbers_that_are_no_probability_are_refused(change) -> None:
    with pytest.raises(ValueError, match="outside 0 to 1"):
        PredictionSets.load(DOCUMENT | change)
