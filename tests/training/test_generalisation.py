"""`generalise` end to end on few windows and three of its folds; tables of answers made by hand."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from rca.evaluation.rows import JudgedRow
from rca.evaluation.scores import Judged
from rca.training import heads
from rca.training.corpus import stack
from rca.training.feature_cache import FeatureCache
from rca.training.generalisation import answers, run
from rca.training.generalisation.answers import Answered, Kept, what_lacks
from rca.training.generalisation.folds import SEEN, SEVERITY, SIMULATION, WORLD_SIZE, Fold, folds
from rca.training.generalisation.pool import Origin, Pool, build_pool
from rca.training.generalisation.run import Generalisation, generalise
from rca.training.generalisation.tables import document, lines, tables, to_markdown, write_report
from rca.training.held_out import SIGNALS
from rca.training.simulated import simulated_examples

N_WINDOWS, SEED = 260, 3
REAL = Path(__file__).resolve().parents[2] / "data" / "windows"


def _three(pool: Pool, per_cell: int) -> list[Fold]:
    """One fold of each kind, asked about little: a fit and a test each."""
    every = folds(pool, per_cell)
    found = [next(each for each in every if each.question == name) for name in (SEEN, SEVERITY, SIMULATION)]
    return [replace(each, asked=each.asked[:6]) for each in found]


@pytest.fixture(scope="module")
def few() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 8)
        # The same trees; but threads that wait for each other are slow where a test run has its cores taken.
        patch.setitem(heads.PARAMETERS, "num_threads", 1)
        patch.setattr(run, "folds", _three)
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
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kept")
    return {
        "keep": folder / "folds",
        "per_cell": 1,
        "variants": 2,
        "cache": FeatureCache(folder / "examples"),
    }


@pytest.fixture(scope="module")
def found(few: pytest.MonkeyPatch, mine: Path, options: dict[str, Any]) -> Generalisation:
    return generalise(N_WINDOWS, SEED, [mine], **options)


@pytest.mark.slow
def test_every_asked_window_is_answered_with_every_set_of_signals(found: Generalisation) -> None:
    assert [each.question for each in found.answered] == [SEEN, SEVERITY, SIMULATION]
    for each in found.answered:
        assert not each.lacking
        told = {(row.window, row.signals) for row in each.rows}
        assert len(told) == len(each.rows) > 0
        assert {signals for _, signals in told} == set(SIGNALS)
    assert {row.window for row in found.answered[2].rows} == {"healthy", "slow-dataset"}
    assert found.command == (
        f"rca generalise --windows {N_WINDOWS} --seed {SEED} --per-cell 1 --variants 2 --collection mine"
    )


@pytest.mark.slow
def test_finished_folds_are_not_fitted_again(
    found: Generalisation, mine: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: Any) -> None:
        raise AssertionError("fitted although it was kept")

    monkeypatch.setattr(answers, "learn", no_work)
    again = generalise(N_WINDOWS, SEED, [mine], **options)
    assert repr(again.answered) == repr(found.answered), "NaN and infinity included"
    with pytest.raises(AssertionError, match="fitted although"):
        generalise(N_WINDOWS, SEED, [mine], settings={"scope": {"num_leaves": 5}}, **options)


@pytest.mark.slow
def test_a_half_written_file_is_made_anew(found: Generalisation, options: dict[str, Any]) -> None:
    kept = Kept(options["keep"])
    file = next(kept.folder.glob("*.json"))
    assert kept.read(file.stem) is not None
    broken = Kept(kept.folder.parent / "broken")
    broken.folder.mkdir()
    (broken.folder / "k.json").write_text(file.read_text()[:-20])
    assert broken.read("k") is None
    assert broken.read("none") is None


@pytest.mark.slow
def test_the_facts_of_a_pool_are_those_of_its_windows(mine: Path) -> None:
    pool = build_pool(
        12, SEED, [mine], variants=2, processes=1, cache=None, progress=lambda phase, done, total: None
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
    assert {cause for cause, _ in slow.cells} == {"data_loader_stall"}
    assert slow.world_size == max(pool.world_size[14:])


@pytest.mark.slow
def test_a_corpus_without_a_mode_cannot_be_fitted() -> None:
    corpus = stack(simulated_examples(60, SEED, processes=1))
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
    told = {"severity": 0.2, "world_size": 8, "first_cause": cause if right else "healthy"} | facts
    return JudgedRow(
        window=window, source="simulation", cause=cause, hours=0.1, signals="all", method="straggler-rca",
        judged=judged, **told,
    )  # fmt: skip


@pytest.fixture
def made_up() -> Generalisation:
    """Ten windows that a model which has seen their like gets right, and one that has not gets half right."""
    names = [f"simulation-{number}" for number in range(10)]
    seen = [_row(name, "gpu_throttling", True) for name in names]
    unseen = [_row(name, "gpu_throttling", number < 5) for number, name in enumerate(names)]
    # Of another name, but accepted by its label: no mistake.
    unseen[0] = replace(unseen[0], first_cause="gpu_contention")
    captured = [_row("a", "hang", True, world_size=16), _row("b", "hang", False, world_size=4)]
    answered = (
        Answered(SEEN, "1 of 1", 90, tuple(seen)),
        Answered(SEVERITY, "mild, below 1/3: gpu_throttling", 80, tuple(unseen)),
        Answered(WORLD_SIZE, "over 128 ranks", 70, lacking="no train windows for the head mode"),
        Answered(SIMULATION, "all captures", 100, tuple(captured)),
    )
    models = {"a": "mlp", "b": "transformer"}
    origins = {
        name: Origin(name, "fail_slow", frozenset(), 8, model=models.get(name, ""))
        for name in [*names, *models]
    }
    return Generalisation("rca generalise", "c" * 64, origins, answered)


def test_what_not_having_seen_costs_is_told_window_by_window(made_up: Generalisation) -> None:
    held = {(each.question, each.by, each.group): each for each in lines(made_up)}
    line = held[SEVERITY, "cause", "gpu_throttling"]
    assert line.windows == 10
    assert line.scores["failure_mode_accuracy"].value == 0.5
    lost = line.lost["cause_ac@1"].estimate
    assert (lost.value, lost.n) == (-0.5, 10)
    assert lost.low < -0.5 < lost.high < 0
    assert line.mistaken == {"healthy": 5}
    assert held[SEEN, "cause", "gpu_throttling"].lost == {}
    assert held[SEVERITY, "cause and severity", "gpu_throttling, mild, below 1/3"].windows == 10


def test_captures_are_told_apart_by_model_and_size(made_up: Generalisation) -> None:
    held = {(each.by, each.group): each.scores["ranks_exact"].value for each in lines(made_up)}
    assert (held["model", "mlp"], held["model", "transformer"]) == (1.0, 0.0)
    assert (held["world size", "over 8 ranks"], held["world size", "up to 4 ranks"]) == (1.0, 0.0)
    assert held["learned from", SIMULATION] == 0.5


def test_tables_leave_out_what_no_window_has(made_up: Generalisation) -> None:
    by_title = {table.title: table for table in tables(lines(made_up))}
    severity = by_title[f"{SEVERITY}, by severity"]
    assert "false alarms" not in severity.header
    assert "cause AC@1, minus seen" in severity.header
    assert "cause AC@1, minus seen" not in by_title[f"{SEEN}, by severity"].header
    by_cause = by_title[f"{SEVERITY}, by cause"]
    assert by_cause.rows[0][by_cause.header.index("taken for")] == "healthy 5"
    assert not any("cause and severity" in table.title for table in tables(lines(made_up), brief=True))


def test_what_could_not_be_asked_is_said(made_up: Generalisation) -> None:
    page = to_markdown(made_up, lines(made_up))
    assert f"- {WORLD_SIZE}, over 128 ranks: no train windows for the head mode" in page


def test_the_report_is_three_files(made_up: Generalisation, tmp_path: Path) -> None:
    held = lines(made_up)
    write_report(made_up, held, tmp_path / "out")
    text = (tmp_path / "out" / "scores.json").read_text()
    told = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told == document(made_up, held)
    assert told["folds"][0] == {
        "question": SEEN, "held_out": "1 of 1", "learned": 90, "asked": 10, "lacking": "",
    }  # fmt: skip
    assert len(told["lines"]) == len(held)
    rows = pq.read_table(tmp_path / "out" / "judged.parquet")
    assert rows.num_rows == 22
    assert rows.column("fold").to_pylist()[-1] == f"{SIMULATION}/all captures"
    assert "# Generalisation" in (tmp_path / "out" / "report.md").read_text()
