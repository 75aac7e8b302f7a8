"""Numbers as a page shows them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rca.probability import probability
from rca.runbook import numbers
from tests.for_each import for_each


@for_each(
    ("value", "shown"),
    [
        (0.0, "0 s"),
        (0.000042, "42 µs"),
        (0.0321, "32.1 ms"),
        (-0.0321, "-32.1 ms"),
        (1.5, "1.5 s"),
        (119.0, "119 s"),
        (600.0, "10 min"),
        (36000.0, "10 h"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
        (None, "unknown"),
    ],
)
def test_seconds_are_scaled_to_one_readable_unit(value: float | None, shown: str) -> None:
    assert numbers.seconds(value) == shown


def test_only_a_loss_gets_a_plus_sign() -> None:
    assert [numbers.seconds(value, signed=True) for value in (0.01, 0.0, -0.01)] == [
        "+10 ms",
        "0 s",
        "-10 ms",
    ]


def test_both_ends_of_an_interval_share_a_unit() -> None:
    assert numbers.seconds_interval((0.0005, 0.036)) == "0.5 to 36 ms"
    assert numbers.seconds_interval((math.nan, 0.1)) == "unknown"


def test_rounding_never_invents_certainty() -> None:
    assert probability(0.9999) == ">0.99"
    assert probability(0.0001) == probability(0.0) == "<0.01"
    assert probability(1.0) == "1.00"
    assert numbers.percent(0.001) == "<1 %"


def test_ratio_units_are_not_printed() -> None:
    assert numbers.quantity(0.5, "ratio") == "0.5"
    assert numbers.quantity(1410.0, "MHz") == "1,410 MHz"
    assert numbers.quantity(0.002, "seconds") == "2 ms"
    assert numbers.quantity(0.9937, "s/s") == "99.4 %"


@for_each(
    ("value", "shown"),
    [
        (0.0, "0 steps"),
        (0.1111, "less than one step"),
        (1.0, "1 step"),
        (8.862, "8.9 steps"),
        (31619.0, "31,619 steps"),
    ],
)
def test_parts_of_a_step_are_not_counted_to_four_digits(value: float, shown: str) -> None:
    assert numbers.quantity(value, "steps") == shown


def test_rank_runs_are_folded() -> None:
    assert numbers.rank_list([12, *range(8)]) == "0-7,12"
    assert numbers.rank_list([]) == ""


@given(st.lists(st.integers(0, 400)))
def test_a_folded_rank_list_still_means_the_same_ranks(ranks: list[int]) -> None:
    meant: set[int] = set()
    for run in filter(None, numbers.rank_list(ranks).split(",")):
        first, _, last = run.partition("-")
        meant |= set(range(int(first), int(last or first) + 1))
    assert meant == set(ranks)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_duration_needs_an_exponent(value: float) -> None:
    assert "e" not in numbers.seconds(value).replace("unknown", "")
