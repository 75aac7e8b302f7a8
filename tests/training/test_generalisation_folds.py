"""What a fold is asked about is nothing that its model could have learned from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.evaluation.rows import SEVERITIES, WORLD_SIZES, size_band
from rca.features import WINDOW_FEATURES
from rca.telemetry.labels import CollectionEntry
from rca.training.generalisation.folds import (
    SEEN,
    SEVERITY,
    SIMULATION,
    WORLD_SIZE,
    Fold,
    asked_scenarios,
    capture_size,
    folds,
    parts,
)
from rca.training.generalisation.pool import Origin, Pool

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
            model=models[number // 12 % len(models)],
            entry=CollectionEntry(f"capture-{number}", Path(), {}),
        )
        for number in range(N_CAPTURES)
    ]
    origin = np.repeat(np.arange(len(origins)), [1] * N_SIMULATED + [VARIANTS] * N_CAPTURES)
    window = corpus.window.copy()
    sizes = np.array([origins[position].world_size for position in origin], dtype=float)
    sizes[N_SIMULATED + 2 :: VARIANTS] /= 2  # the last variant of each capture has lost half of its nodes
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


def _of(every: list[Fold], question: str) -> list[Fold]:
    found = [each for each in every if each.question == question]
    assert found
    return found


def test_no_fold_is_asked_about_a_window_it_learns_from(pool: Pool, every: list[Fold]) -> None:
    assert all(each.asked for each in every)
    for each in every:
        assert not np.isin(pool.origin[each.learned], each.asked).any(), each.question


def test_a_cause_at_a_held_out_severity_is_not_learned_even_as_second_fault(
    pool: Pool, every: list[Fold]
) -> None:
    for each in _of(every, SEVERITY):
        asked = {cell for position in each.asked for cell in pool.origins[position].cells}
        learned = [pool.origins[position].cells for position in pool.origin[each.learned]]
        assert not any(cells & asked for cells in learned)
        assert any(len(cells) == 2 for cells in learned), "windows of two other faults are learned from"


def test_the_same_cause_is_learned_at_other_severities(pool: Pool, every: list[Fold]) -> None:
    for each in _of(every, SEVERITY):
        learned = {
            cause for position in pool.origin[each.learned] for cause, _ in pool.origins[position].cells
        }
        assert {cause for position in each.asked for cause, _ in pool.origins[position].cells} <= learned


def test_every_cell_is_asked_about_once_and_not_too_often(pool: Pool, every: list[Fold]) -> None:
    asked = [position for each in _of(every, SEVERITY) for position in each.asked]
    assert len(asked) == len(set(asked))
    cells = Counter(next(iter(pool.origins[position].cells)) for position in asked)
    single = {next(iter(each.cells)) for each in pool.origins if len(each.cells) == 1}
    assert set(cells) == single
    assert max(cells.values()) == 4


def test_the_same_windows_are_asked_of_models_that_have_seen_their_like(
    pool: Pool, every: list[Fold]
) -> None:
    seen = [position for each in _of(every, SEEN) for position in each.asked]
    assert sorted(seen) == asked_scenarios(pool, 4)
    for question in (SEVERITY, WORLD_SIZE):
        assert {position for each in _of(every, question) for position in each.asked} <= set(seen)


def test_no_job_of_a_held_out_size_is_learned_from(pool: Pool, every: list[Fold]) -> None:
    found = _of(every, WORLD_SIZE)
    assert [each.name for each in found] == [name for _, name in WORLD_SIZES]
    for each in found:
        assert each.name not in {size_band(size) for size in pool.world_size[each.learned].tolist()}
        assert {size_band(pool.origins[position].world_size) for position in each.asked} == {each.name}


def test_variants_of_a_held_out_size_are_not_learned_from_either(pool: Pool, every: list[Fold]) -> None:
    halved = 0
    for each in _of(every, "captures of other world sizes"):
        learned = {capture_size(size) for size in pool.world_size[each.learned].tolist()}
        assert each.name not in learned
        kept = {capture_size(pool.origins[position].world_size) for position in pool.origin[each.learned]}
        halved += each.name not in kept
    assert halved == 3


def test_simulation_and_captures_are_kept_apart_where_they_should_be(pool: Pool, every: list[Fold]) -> None:
    real = np.array(pool.corpus.real)
    for each in every:
        has_real, has_simulated = real[each.learned].any(), (~real)[each.learned].any()
        wanted = {
            SEEN: (False, True),
            SEVERITY: (False, True),
            WORLD_SIZE: (False, True),
            SIMULATION: (False, True),
            "simulation and captures of other scenarios": (True, True),
        }.get(each.question, (True, False))
        assert (has_real, has_simulated) == wanted, each.question


def test_scenarios_and_models_are_never_on_both_sides(pool: Pool, every: list[Fold]) -> None:
    for question, fact in (
        ("captures of other scenarios", "scenario"),
        ("simulation and captures of other scenarios", "scenario"),
        ("captures of other models", "model"),
    ):
        asked: list[int] = []
        for each in _of(every, question):
            learned = {getattr(pool.origins[position], fact) for position in pool.origin[each.learned]}
            assert not learned & {getattr(pool.origins[position], fact) for position in each.asked}
            asked += each.asked
        assert sorted(asked) == list(range(N_SIMULATED, N_SIMULATED + N_CAPTURES)), question


def test_one_model_alone_cannot_be_held_out() -> None:
    questions = {each.question for each in folds(_pool(models=("mlp",)), 1)}
    assert "captures of other models" not in questions
    assert "captures of other scenarios" in questions


def test_without_captures_only_simulated_questions_are_asked(pool: Pool) -> None:
    simulated = replace(pool, origins=pool.origins[:N_SIMULATED])
    assert {each.question for each in folds(simulated, 1)} == {SEEN, SEVERITY, WORLD_SIZE}


def test_what_is_not_learned_is_test_and_all_else_has_a_use(pool: Pool, every: list[Fold]) -> None:
    for each in every:
        found = np.array(parts(pool, each))
        assert ((found == "test") == ~each.learned).all()


def test_captures_are_dealt_so_that_every_part_has_every_mode(pool: Pool, every: list[Fold]) -> None:
    modes = np.array(pool.corpus.mode)
    groups = np.array(pool.corpus.group)
    for each in _of(every, "captures of other scenarios"):
        found = np.array(parts(pool, each))
        for part in ("train", "calibration", "validation"):
            assert set(modes[found == part]) == {"healthy", "fail_slow", "fail_stop"}
        by_group = {group: set(found[groups == group]) for group in np.unique(groups[each.learned])}
        assert all(len(held - {"test"}) == 1 for held in by_group.values()), "a group is in one part only"
