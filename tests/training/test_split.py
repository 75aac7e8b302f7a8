"""Train, calibration, validation and test never share a scenario."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.lab.training.split import SHARES, mask, part_of, scenario_group, seeds_of


def test_the_split_never_moves() -> None:
    """These lines are a contract: a bundle's test scores would otherwise be about windows it has seen."""
    held_out = {number: part_of(f"simulation-{number}") for number in range(30)}
    assert {number: part for number, part in held_out.items() if part != "train"} == {
        8: "calibration",
        13: "test",
        15: "calibration",
        19: "test",
        21: "test",
        22: "calibration",
        23: "test",
        25: "calibration",
        26: "validation",
    }


def test_the_first_seeds_of_a_part_are_always_the_same() -> None:
    """The gate's frozen test set is made of them."""
    assert seeds_of("test", 4) == [13, 19, 21, 23]
    assert {part_of(scenario_group(seed)) for seed in seeds_of("train", 50)} == {"train"}


@given(st.lists(st.text(max_size=8), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_a_group_belongs_to_one_part_whatever_surrounds_it(groups: list[str], random) -> None:
    shuffled = random.sample(groups, len(groups))
    parts = list(SHARES)
    assigned, again = [part_of(group) for group in groups], [part_of(group) for group in shuffled]
    masks = np.array([mask(assigned, part) for part in parts])
    assert (masks.sum(axis=0) == 1).all()
    for part in parts:
        kept = {group for group, held in zip(groups, mask(assigned, part), strict=True) if held}
        assert kept == {group for group, held in zip(shuffled, mask(again, part), strict=True) if held}


def test_the_shares_are_about_what_they_say() -> None:
    counts = Counter(part_of(f"group {number}") for number in range(20_000))
    for part, share in SHARES.items():
        assert abs(counts[part] / 20_000 - share) < 0.01
    assert sum(SHARES.values()) == pytest.approx(1.0)
