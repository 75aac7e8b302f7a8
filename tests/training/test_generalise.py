"""`generalise` end to end on few windows and three of its folds; tables of hand-made answers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.evaluation.scores import Judged
from rca.lab.training import heads
from rca.lab.training.corpus import stack
from rca.lab.training.cross_validation import generalise as module
from rca.lab.training.cross_validation.folds import SEEN, SEVERITY, SIMULATION, WORLD_SIZE, Fold, folds
from rca.lab.training.cross_validation.generalise import FoldAnswers, Generalisation, generalise, what_lacks
from rca.lab.training.cross_validation.pool import Pool, build_pool
from rca.lab.training.cross_validation.report import document, lines, tables, to_markdown, write_report
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.held_out import SIGNALS
from rca.lab.training.simulated import simulated_examples
from rca.workers import HERE

N_WINDOWS, SEED = 260, 3
REAL = Path(__file__).resolve().parents[2] / "data" / "windows"


def _three(pool: Pool, per_cell: int) -> list[Fold]:
    """One fold of each kind with few tested windows: a fit and a test each."""
    every = folds(pool, per_cell)
    found = [next(each for each in every if each.split == name) for name in (SEEN, SEVERITY, SIMULATION)]
    return [replace(each, tested=each.tested[:6]) for each in found]


@pytest.fixture(scope="module")
def few() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 8)
        patch.setattr(module, "folds", _three)
        yield patch


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections") / "mine"
    names = ("healthy", "slow-dataset")
    for name in names:
        shutil.copytree(REAL / name, folder / name)
    entries = [{"id": name, "path": name, "group": name, "model": "mlp"} for name in names]
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": entries}))
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, shared_features: FeatureCache) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kept")
    return {"results": folder / "folds", "per_cell": 1, "variants": 2, "cache": shared_features}


@pytest.fixture(scope="module")
def found(few: pytest.MonkeyPatch, mine: Path, options: dict[str, Any]) -> Generalisation:
    return generalise(N_WINDOWS, SEED, [mine], **options)


@pytest.mark.slow
@pytest.mark.long
def test_every_tested_window_is_answered_with_every_set_of_signals(found: Generalisation) -> None:
    assert [each.split for each in found.folds] == [SEEN, SEVERITY, SIMULATION]
    for each in found.folds:
        assert not each.lacking
        answered = {(row.window, row.signals) for row in each.rows}
        assert len(answered) == len(each.rows) > 0
        assert {signals for _, signals in answered} == set(SIGNALS)
    assert {row.window for row in found.folds[2].rows} == {"healthy", "slow-dataset"}
    assert found.command == (
        f"rca generalise --windows {N_WINDOWS} --seed {SEED} --per-cell 1 --variants 2 --collection mine"
    )


@pytest.mark.slow
@pytest.mark.long
def test_finished_folds_are_not_fitted_again(
    found: Generalisation, mine: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: Any) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(module, "learn", no_work)
    again = generalise(N_WINDOWS, SEED, [mine], **options)
    assert repr(again.folds) == repr(found.folds), "NaN and infinity included"
    with pytest.raises(AssertionError, match="fitted again"):
        generalise(N_WINDOWS, SEED, [mine], settings={"scope": {"num_leaves": 5}}, **options)


@pytest.mark.long
@pytest.mark.slow
def test_the_facts_of_a_pool_are_those_of_its_windows(mine: Path) -> None:
    pool = build_pool(
        12,
        SEED,
        [mine],
        variants=2,
        workers=HERE,
        cache=None,
        progress=lambda phase, done, total: None,
    )
    assert pool.origin.tolist() == [*range(12), 12, 12, 13, 13]
    for position, origin in enumerate(pool.origins[:12]):
        assert origin.id == pool.corpus.group[position]
        assert origin.world_size == pool.world_size[position]
        assert origin.mode == pool.corpus.mode[position]
        if origin.mode != "healthy":
            assert pool.corpus.cause[position] in {cause for cause, _ in origin.cells}
    healthy, slow = pool.origins[12:]
    assert (healthy.mode, healthy.cells, healthy.model) == ("healthy", frozenset(), "mlp")
    assert (healthy.scenario, healthy.cluster) == ("mine/healthy", "mine")
    assert pool.corpus.group[12] == "mine/incident/healthy"
    assert {cause for cause, _ in slow.cells} == {"data_loader_stall"}
    assert slow.world_size == max(pool.world_size[14:])


@pytest.mark.slow
@pytest.mark.long
def test_a_corpus_without_a_mode_cannot_be_fitted(shared_features: FeatureCache) -> None:
    corpus = stack(islice(simulated_examples(N_WINDOWS, SEED, workers=HERE, cache=shared_features), 60))
    pairs = zip(corpus.mode, corpus.part, strict=True)
    stopped = tuple("test" if mode == "fail_stop" else part for mode, part in pairs)
    assert what_lacks(replace(corpus, part=stopped)) == "no train windows for the head stopper"


def _row(window: str, cause: str, right: bool, **facts: Any) -> JudgedRow:
    judged = Judged(
        mode="fail_slow", answer="fail_slow" if right else "healthy", false_alarm=math.nan,
        unfelt_alarm=math.nan, mode_right=float(right), rank_precision=math.nan, rank_recall=float(right),
        ranks_exact=float(right), type_right=float(right), pattern_right=float(right),
        rank_of_cause=1.0 if right else math.inf, rank_of_cause_name=1.0 if right else math.inf,
        seconds_error=math.nan, confidence=0.9, abstained=0.0,
    )  # fmt: skip
    known = {"severity": 0.2, "world_size": 8, "first_cause": cause if right else "healthy"} | facts
    return JudgedRow(
        window=window, source="simulation", cause=cause, hours=0.1, signals="all", method="straggler-rca",
        judged=judged, **known,
    )  # fmt: skip


@pytest.fixture
def made_up() -> Generalisation:
    """Ten windows that the baseline gets right, and that a bundle without their kind gets half right."""
    names = [f"simulation-{number}" for number in range(10)]
    seen = [_row(name, "gpu_throttling", True) for name in names]
    unseen = [_row(name, "gpu_throttling", number < 5) for number, name in enumerate(names)]
    captured = [_row("a", "hang", True, world_size=16), _row("b", "hang", False, world_size=4)]
    return Generalisation(
        "rca generalise",
        "c" * 64,
        (
            FoldAnswers(SEEN, "1 of 1", 90, tuple(seen)),
            FoldAnswers(SEVERITY, "mild, below 1/3: gpu_throttling", 80, tuple(unseen)),
            FoldAnswers(WORLD_SIZE, "over 128 ranks", 70, lacking="no train windows for the head mode"),
            FoldAnswers("captures of other models", "mlp", 100, tuple(captured[:1])),
            FoldAnswers("captures of other models", "transformer", 100, tuple(captured[1:])),
        ),
    )


def test_scores_are_compared_with_the_baseline_window_by_window(made_up: Generalisation) -> None:
    held = {(each.split, each.by, each.group): each for each in lines(made_up)}
    line = held[SEVERITY, "cause", "gpu_throttling"]
    assert line.windows == 10
    assert line.scores["failure_mode_accuracy"].value == 0.5
    change = line.minus_seen["cause_ac@1"].estimate
    assert (change.value, change.n) == (-0.5, 10)
    assert change.low < -0.5 < change.high < 0
    assert held[SEEN, "cause", "gpu_throttling"].minus_seen == {}
    assert held[SEVERITY, "severity", "mild, below 1/3"].windows == 10


def test_captures_are_scored_by_what_was_held_out(made_up: Generalisation) -> None:
    held = {(each.by, each.group): each.scores["ranks_exact"].value for each in lines(made_up)}
    assert (held["held out", "mlp"], held["held out", "transformer"]) == (1.0, 0.0)


def test_tables_leave_out_scores_that_no_window_has(made_up: Generalisation) -> None:
    by_title = {table.title: table for table in tables(lines(made_up))}
    severity = by_title[f"{SEVERITY}, by severity"]
    assert "false alarms" not in severity.header
    assert "cause AC@1, minus seen" in severity.header
    assert "cause AC@1, minus seen" not in by_title[f"{SEEN}, by severity"].header
    assert [row[0] for row in by_title["captures of other models"].rows] == ["mlp", "transformer"]


def test_splits_that_could_not_be_tested_are_listed(made_up: Generalisation) -> None:
    page = to_markdown(made_up, lines(made_up))
    assert f"- {WORLD_SIZE}, over 128 ranks: no train windows for the head mode" in page


def test_the_report_is_three_files(made_up: Generalisation, tmp_path: Path) -> None:
    held = lines(made_up)
    write_report(made_up, held, tmp_path / "out")
    text = (tmp_path / "out" / "scores.json").read_text()
    written = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert written == document(made_up, held)
    assert written["folds"][0] == {
        "split": SEEN, "held_out": "1 of 1", "learned": 90, "tested": 10, "lacking": "",
    }  # fmt: skip
    assert len(written["lines"]) == len(held)
    rows = pq.read_table(tmp_path / "out" / "judged.parquet")
    assert rows.num_rows == 22
    assert rows.column("fold").to_pylist()[-1] == "captures of other models/transformer"
    assert "# Generalisation" in (tmp_path / "out" / "report.md").read_text()
