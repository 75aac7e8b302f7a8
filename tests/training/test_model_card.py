"""The model card says what was measured, and warns of what was not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from registered import facts

from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.judged_rows import PRODUCT, JudgedRow
from rca.lab.evaluation.scores import judge
from rca.lab.training.model_card import Card
from rca.lab.training.run_record import metrics, write_artifacts
from rca.sources.labels import WindowLabel

HEALTHY = WindowLabel(failure_mode="healthy", source="simulation")


def slow(cause: str, source: str) -> WindowLabel:
    return WindowLabel.model_validate(
        {
            "failure_mode": "fail_slow",
            "straggler_type": "compute",
            "pattern": "transient",
            "causes": [{"cause": cause, "ranks": [2]}],
            "source": source,
        }
    )


def row(label: WindowLabel, said: str | None, *, world_size: int = 8) -> JudgedRow:
    ranks = frozenset({2})
    answer = (
        MethodAnswer("healthy", confidence=0.9)
        if said is None
        else MethodAnswer(
            "fail_slow", ranks, (NamedCause(said, ranks),), "compute", "transient", confidence=0.9
        )
    )
    return JudgedRow(
        window="w",
        source=label.source,
        cause=label.causes[0].cause if label.causes else "healthy",
        severity=0.5,
        world_size=world_size,
        hours=0.1,
        signals="all",
        method=PRODUCT,
        first_cause=said or "healthy",
        judged=judge(answer, label),
    )


@pytest.fixture
def card() -> Card:
    throttled = slow("gpu_throttling", "simulation")
    rows = [row(throttled, "gpu_throttling", world_size=64)] * 20
    rows += [row(throttled, "cpu_contention")] * 10
    rows += [row(HEALTHY, None)] * 19 + [row(HEALTHY, "cpu_contention")]
    rows += [replace(each, signals="phases-only") for each in rows]
    report = {
        "graph": {
            "holds": True,
            "violations": 3,
            "tests": 40,
            "rate": 0.075,
            "rows": 900,
            "better_than_permuted": 1.0,
        },
        "mechanisms": {"forward": {"r_squared": 0.5, "noise": 0.1}},
        "arrows": [
            arrow("gpu_clock", 0.4, placebo=0.01, holds=True),
            # Far above its placebo, and gone on half of the rows.
            arrow("gpu_heat", 0.2, placebo=0.02, holds=False),
            arrow("cpu_load", 0.0, placebo=0.0, holds=False),
        ],
    }
    return Card(
        name="baseline",
        version="7",
        sha256="a" * 64,
        provenance={
            "command": "rca train --windows 100 --seed 1",
            "versions": {"numpy": "2.4"},
            "n_innocent_windows": 33,
        },
        facts=facts(),
        thresholds={"fault": 0.9, "name": 0.4},
        rows={"simulated": rows},
        causal_report=report,
    )


def arrow(source: str, effect: float, *, placebo: float, holds: bool) -> dict[str, Any]:
    return {"source": source, "target": "forward", "effect": effect, "placebo": placebo, "holds": holds}


def with_real(card: Card, name: str = "our|incidents") -> Card:
    seen: dict[str, Any] = {
        "sha256": "b" * 64,
        "parts": {"train": 3, "calibration": 1, "validation": 1, "test": 2},
        "learned": ["1", "2", "3", "4", "5"],
        "tested": ["6", "7"],
    }
    real = [row(slow("nic_degradation", "incident"), "nic_degradation")] * 2
    return replace(card, rows={**card.rows, name: real}, facts=facts({name: seen}))


def table_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.replace("\\|", "¦").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_scores_stand_with_intervals_and_by_subset(card: Card) -> None:
    text = card.to_markdown()
    rows = table_rows(text)
    assert ["false_alarm_rate", "0.050", "0.001 to 0.249", "20"] in rows
    assert any(cells[:2] == ["gpu_throttling", "30"] for cells in rows)
    assert any(cells[:2] == ["33 to 128 ranks", "20"] for cells in rows)
    assert any(cells[:2] == ["phases-only", "50"] for cells in rows)
    assert any(cells[:2] == ["straggler-rca", "all"] and cells[2] == "1 of 20" for cells in rows)


def test_data_identity_and_split_are_told(card: Card) -> None:
    text = card.to_markdown()
    assert f"sha256 `{'a' * 64}`" in text
    assert "`rca train --windows 100 --seed 1`" in text
    assert ["simulated", "100, seed 1", "60", "12", "14", "14", f"`{'c' * 16}`"] in table_rows(text)
    assert "train (62%)" in text
    assert "fault 0.9, name 0.4" in text


def test_it_says_what_the_data_said_about_the_causal_model(card: Card) -> None:
    text = card.to_markdown()
    assert "The graph is **not contradicted by the data**: 3 of the 40 independences" in text
    assert ["forward", "0.50", "gpu_clock", "gpu_heat", "cpu_load"] in table_rows(text)


def test_what_was_not_measured_is_a_limit(card: Card) -> None:
    alone, both = card.to_markdown(), with_real(card).to_markdown()
    assert "No real window was tested" in alone
    assert "No real window took part" in alone
    assert "least often for gpu_throttling (0.67 of 30)" in alone
    assert "No real window" not in both
    assert "5 real windows were learned from" in both
    assert "only 2 test windows" in both
    assert "there is no healthy test window" in both


def test_every_table_keeps_its_shape_whatever_a_collection_is_called(card: Card) -> None:
    text = with_real(card).to_markdown()
    width = 0
    for line in text.replace("\\|", "¦").splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = line.count("|")
        assert width in (0, cells), line
        width = cells
    assert "### Collection our\\|incidents" in text


def test_the_same_run_writes_the_same_card(card: Card) -> None:
    assert card.to_markdown() == card.to_markdown()


def test_metrics_have_both_ends_of_their_intervals_and_names_that_mlflow_takes(card: Card) -> None:
    found = metrics(with_real(card))
    assert found["test_false_alarm_rate_value"] == 0.05
    assert found["test_cause_ac_at_1_low"] <= found["test_cause_ac_at_1_value"]
    assert found["real_our-incidents_cause_ac_at_1_value"] == 1.0
    assert found["causal_r_squared_forward"] == 0.5
    assert all(value == value for value in found.values())


def test_pictures_rows_and_scores_are_written_for_every_source(card: Card, tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    write_artifacts(tmp_path, with_real(card))
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert found == [
        "evaluation/calibration.png",
        *(
            f"evaluation/{source}/{name}"
            for source in ("our-incidents", "simulated")
            for name in ("confusion.png", "judged.parquet", "scores.json")
        ),
        "model_card.md",
    ]
