"""A fold tests no window that its bundle learns from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.features import WINDOW_FEATURES
from rca.lab.evaluation.judged_rows import SEVERITIES, WORLD_SIZES, size_band
from rca.lab.training.cross_validation.folds import (
    SEEN,
    SEVERITY,
    WORLD_SIZE,
    Fold,
    folds,
    scenarios_to_test,
)
from rca.lab.training.cross_validation.pool import Origin, Pool
from rca.sources.labels import CollectionEntry

N_SIMULATED, N_CAPTURES, VARIANTS = 600, 48, 3
BANDS = [name for _, name in SEVERITIES]
SIZES = (4, 16, 64, 512)


def _pool(models: tuple[str, ...] = ("mlp", "transformer")) -> Pool:
    """Simulated windows of one fault, some of two; captures of twelve scenarios, each in three variants."""
    rng = np.random.default_rng(7)
    n = N_SIMULATED + VARIANTS * N_CAPTURES
    corpus = made_up_corpus(n)
    # A capture's variants share their mode.
    mode = np.array(corpus.mode)
    mode[N_SIMULATED:] = np.repeat(np.tile(["healthy", "fail_slow", "fail_stop"], N_CAPTURES // 3), VARIANTS)
    origins = []
    for number in range(N_SIMULATED):
        cells = {(corpus.cause[number], str(rng.choice(BANDS)))} if corpus.cause[number] else set()
        if cells and number % 10 == 0:
            cells.add(("gpu_throttling", str(rng.choice(BANDS))))
        size = int(rng.choice(SIZES))
        origins.append(
            Origin(f"simulation-{number}", corpus.mode[number], frozenset(cells), size, seed=number)
        )
    origins += [
        Origin(
            f"capture-{number}",
            str(mode[N_SIMULATED + VARIANTS * number]),
            frozenset(),
            (4, 8, 16)[number % 5 % 3],
            scenario=f"mine/scenario-{number % 12}",
            cluster=("mine", "yours")[number % 2],
            model=models[number // 12 % len(models)],
            entry=CollectionEntry(f"capture-{number}", Path(), {}),
        )
        for number in range(N_CAPTURES)
    ]
    origin = np.repeat(np.arange(len(origins)), [1] * N_SIMULATED + [VARIANTS] * N_CAPTURES)
    window = corpus.window.copy()
    sizes = np.array([origins[position].world_size for position in origin], dtype=float)
    sizes[N_SIMULATED + 2 :: VARIANTS] /= 2  # the last variant of each capture lacks half of its nodes
    window[:, WINDOW_FEATURES.index("log2_ranks")] = np.log2(sizes)
    captured = np.arange(n) >= N_SIMULATED
    groups = tuple(
        f"{origins[position].scenario}/{origins[position].world_size}" if real else corpus.group[row]
        for row, (position, real) in enumerate(zip(origin, captured, strict=True))
    )
    corpus = replace(
        corpus, window=window, mode=tuple(mode.tolist()), group=groups, real=tuple(captured.tolist())
    )
    return Pool(corpus, tuple(origins), origin)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return _pool()


@pytest.fixture(scope="module")
def every(pool: Pool) -> list[Fold]:
    return folds(pool, 4)


def _of(every: list[Fold], split: str) -> list[Fold]:
    found = [each for each in every if each.split == split]
    assert found
    return found


def test_no_fold_tests_a_window_it_learns_from(pool: Pool, every: list[Fold]) -> None:
    assert all(each.tested for each in every)
    for each in every:
        assert not np.isin(pool.origin[each.learned], each.tested).any(), each.split


def test_a_cause_at_a_held_out_severity_is_not_learned_even_as_second_fault(
    pool: Pool, every: list[Fold]
) -> None:
    for each in _of(every, SEVERITY):
        tested = {cell for position in each.tested for cell in pool.origins[position].cells}
        learned = [pool.origins[position].cells for position in pool.origin[each.learned]]
        assert not any(cells & tested for cells in learned)
        assert any(len(cells) == 2 for cells in learned), "windows of two other faults are learned from"


def test_the_same_cause_is_learned_at_other_severities(pool: Pool, every: list[Fold]) -> None:
    for each in _of(every, SEVERITY):
        learned = {
            cause for position in pool.origin[each.learned] for cause, _ in pool.origins[position].cells
        }
        assert {cause for position in each.tested for cause, _ in pool.origins[position].cells} <= learned


def test_every_cell_is_tested_once_and_at_most_as_often_as_wanted(pool: Pool, every: list[Fold]) -> None:
    tested = [position for each in _of(every, SEVERITY) for position in each.tested]
    assert len(tested) == len(set(tested))
    cells = Counter(next(iter(pool.origins[position].cells)) for position in tested)
    single = {next(iter(each.cells)) for each in pool.origins if len(each.cells) == 1}
    assert set(cells) == single
    assert max(cells.values()) == 4


def test_the_baseline_tests_the_same_windows(pool: Pool, every: list[Fold]) -> None:
    seen = [position for each in _of(every, SEEN) for position in each.tested]
    assert sorted(seen) == scenarios_to_test(pool, 4)
    for split in (SEVERITY, WORLD_SIZE):
        assert {position for each in _of(every, split) for position in each.tested} <= set(seen)


def test_no_job_of_a_held_out_size_is_learned_from(pool: Pool, every: list[Fold]) -> None:
    found = _of(every, WORLD_SIZE)
    assert [each.held_out for each in found] == [name for _, name in WORLD_SIZES]
    for each in found:
        assert each.held_out not in {size_band(size) for size in pool.world_size[each.learned].tolist()}
        assert {size_band(pool.origins[position].world_size) for position in each.tested} == {each.held_out}


def test_captures_are_learned_from_only_where_other_captures_are_tested(
    pool: Pool, every: list[Fold]
) -> None:
    real = np.array(pool.corpus.real)
    for each in every:
        assert (~real)[each.learned].any()
        assert real[each.learned].any() == each.split.startswith("captures of other"), each.split


@pytest.mark.parametrize("fact", ["scenario", "cluster", "model"])
def test_a_held_out_fact_of_captures_is_not_learned(pool: Pool, every: list[Fold], fact: str) -> None:
    tested: list[int] = []
    for each in _of(every, f"captures of other {fact}s"):
        learned = {getattr(pool.origins[position], fact) for position in pool.origin[each.learned]}
        assert not learned & {getattr(pool.origins[position], fact) for position in each.tested}
        tested += each.tested
    assert sorted(tested) == list(range(N_SIMULATED, N_SIMULATED + N_CAPTURES))


def test_one_model_alone_cannot_be_held_out() -> None:
    splits = {each.split for each in folds(_pool(models=("mlp",)), 1)}
    assert "captures of other models" not in splits
    assert "captures of other scenarios" in splits


def test_without_captures_there_are_only_simulated_splits(pool: Pool) -> None:
    simulated = replace(pool, origins=pool.origins[:N_SIMULATED])
    assert {each.split for each in folds(simulated, 1)} == {SEEN, SEVERITY, WORLD_SIZE}


def test_captures_are_dealt_so_that_every_part_has_every_mode(pool: Pool, every: list[Fold]) -> None:
    modes = np.array(pool.corpus.mode)
    groups = np.array(pool.corpus.group)
    for each in _of(every, "captures of other scenarios"):
        found = np.array(each.part)
        for part in ("train", "calibration", "validation"):
            assert set(modes[found == part]) == {"healthy", "fail_slow", "fail_stop"}
        by_group = {group: set(found[groups == group]) for group in np.unique(groups[each.learned])}
        assert all(len(held - {"test"}) == 1 for held in by_group.values()), "a group is in one part only"
