"""The committed captures, through every way in: library, command line, HTTP."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from expected import EXPECTED, UNPLACEABLE_WITHOUT_METRICS, WINDOWS, Expected
from starlette.testclient import TestClient

import rca
from rca.cli import run
from rca.lab.evaluation.scores import judge
from rca.sources.labels import accepted, read_label
from rca.window.encodings import arrow
from tests.for_each import for_each

pytestmark = pytest.mark.slow

each_window = pytest.mark.parametrize(("name", "expected"), EXPECTED.items(), ids=EXPECTED)
HEALTHY = [name for name, expected in EXPECTED.items() if expected.mode == "healthy"]
SLOW = [name for name, expected in EXPECTED.items() if expected.mode == "fail_slow"]


def check(answer: dict[str, Any], expected: Expected) -> None:
    assert answer["failure_mode"] == expected.mode
    assert {rank for straggler in answer["stragglers"] for rank in straggler["ranks"]} == expected.ranks
    if expected.causes:
        assert answer["causes"][0]["cause"] in expected.causes
        assert set(answer["causes"][0]["ranks"]) == expected.ranks


def test_every_committed_window_is_expected_here_and_agrees_with_its_label() -> None:
    assert set(EXPECTED) == {path.parent.name for path in WINDOWS.glob("*/window.json")}
    for name, expected in EXPECTED.items():
        label = read_label(WINDOWS / name)
        assert label.failure_mode == expected.mode
        assert {rank for cause in label.causes for rank in cause.ranks} == expected.ranks
        assert {each for cause in label.causes for each in accepted(cause)} >= expected.causes


@each_window
def test_the_library_names_the_true_ranks(name: str, expected: Expected) -> None:
    diagnosis = rca.diagnose(rca.read_window(WINDOWS / name))
    check(diagnosis.to_dict(), expected)
    assert expected.open or not diagnosis.abstained


@for_each("name", SLOW)
def test_the_slow_steps_are_those_of_the_injection(name: str) -> None:
    straggler = rca.diagnose(rca.read_window(WINDOWS / name)).stragglers[0]
    cause = read_label(WINDOWS / name).causes[0]
    assert straggler.pattern == "transient"
    assert straggler.first_step == pytest.approx(cause.first_step, abs=4)
    assert straggler.last_step == pytest.approx(cause.last_step, abs=4)


@for_each("name", SLOW)
def test_the_seconds_are_about_what_the_injection_cost(name: str) -> None:
    """Labels hold medians before and during; the fault acts in 31 of 65 steps, and medians hide pauses."""
    label = json.loads((WINDOWS / name / "label.json").read_text())["impact"]
    true = (label["step_during_s"] - label["step_before_s"]) * 31 / 65
    found = rca.diagnose(rca.read_window(WINDOWS / name)).slowdown.seconds_per_step
    assert 0.6 * true < found < 2.0 * true


@each_window
def test_the_command_line_answers_by_exit_code_and_page(
    name: str, expected: Expected, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(["diagnose", str(WINDOWS / name), "--format", "markdown"])
    page = capsys.readouterr().out
    assert left.value.code in expected.exit_codes
    headline = next(line for line in page.splitlines() if line.startswith("# "))
    for rank in expected.ranks:
        assert str(rank) in headline
    if left.value.code == 30:
        assert "not certain" in headline.lower()
    else:
        assert ("healthy" in headline.lower()) == (expected.mode == "healthy")


@pytest.mark.system
@each_window
def test_http_gives_the_same_answer_for_json_and_arrow(
    name: str, expected: Expected, client: TestClient
) -> None:
    window = rca.read_window(WINDOWS / name)
    bodies = {"application/json": window.to_json(), arrow.CONTENT_TYPE: window.to_arrow()}
    for content_type, body in bodies.items():
        answer = client.post("/v1/diagnoses", content=body, headers={"Content-Type": content_type})
        assert answer.status_code == 200, answer.text
        check(answer.json(), expected)


@pytest.mark.system
@each_window
def test_http_gives_the_page_on_request(name: str, expected: Expected, client: TestClient) -> None:
    window = rca.read_window(WINDOWS / name)
    headers = {"Content-Type": "application/json", "Accept": "text/markdown"}
    page = client.post("/v1/diagnoses", content=window.to_json(), headers=headers).text
    assert page.startswith("# ")
    assert window.job.job_id in page


@each_window
def test_without_any_metric_the_failure_mode_is_still_right(
    name: str, expected: Expected, bare_window
) -> None:
    diagnosis = rca.diagnose(bare_window(rca.read_window(WINDOWS / name)))
    assert diagnosis.failure_mode == expected.mode
    named = {rank for straggler in diagnosis.stragglers for rank in straggler.ranks}
    if name in UNPLACEABLE_WITHOUT_METRICS:
        assert expected.ranks <= named or not named
    else:
        assert named == expected.ranks


@for_each("seed", range(10))
def test_with_any_half_of_the_metrics_no_healthy_window_raises_an_alarm(seed: int) -> None:
    for name in HEALTHY:
        diagnosis = rca.diagnose(half_of_the_metrics(rca.read_window(WINDOWS / name), seed))
        assert (diagnosis.failure_mode, diagnosis.stragglers) == ("healthy", [])


@pytest.mark.system
@pytest.mark.parametrize("seed", range(4))
def test_with_any_half_of_the_metrics_a_fault_is_still_found(seed: int) -> None:
    for name, expected in EXPECTED.items():
        diagnosis = rca.diagnose(half_of_the_metrics(rca.read_window(WINDOWS / name), seed))
        if name in UNPLACEABLE_WITHOUT_METRICS:
            # Its own counters may be among the missing: the question may stay open, "healthy" be no answer.
            assert diagnosis.failure_mode == expected.mode or diagnosis.abstained, name
        else:
            assert diagnosis.failure_mode == expected.mode, name
            named = {rank for straggler in diagnosis.stragglers for rank in straggler.ranks}
            assert named == expected.ranks, name


def half_of_the_metrics(window: rca.Window, seed: int) -> rca.Window:
    names = sorted(set(window.metrics["name"].to_pylist()))
    kept = np.random.default_rng(seed).choice(names, len(names) // 2, replace=False)
    seen = pc.is_in(window.metrics["name"].cast(pa.string()), value_set=pa.array(kept.tolist()))
    return rca.Window.from_tables(window.job, window.steps, window.metrics.filter(seen), window.events)


@for_each("share", [0.5, 0.7])
@for_each("name", [*HEALTHY, "slow-dataset", "cpu-contention-node"])
def test_a_window_taken_earlier_or_later_gets_the_same_verdict(name: str, share: float) -> None:
    """The first part of a capture: the fault begins at step 21 or 22 of 66."""
    window = rca.read_window(WINDOWS / name)
    last = int(66 * share)
    steps = window.steps.filter(pc.less(window.steps["step"], last))
    end = pc.max(pc.add(steps["start_time"], steps["step_seconds"])).as_py()
    metrics = window.metrics.filter(pc.less(window.metrics["time"], end))
    cut = rca.Window.from_tables(window.job.model_copy(update={"end": end + 1e-3}), steps, metrics)
    diagnosis = rca.diagnose(cut)
    assert diagnosis.failure_mode == EXPECTED[name].mode
    assert {rank for one in diagnosis.stragglers for rank in one.ranks} == EXPECTED[name].ranks


def test_before_its_fault_began_a_slow_window_is_healthy() -> None:
    for name in SLOW:
        window = rca.read_window(WINDOWS / name)
        steps = window.steps.filter(pc.less(window.steps["step"], 20))
        end = pc.max(pc.add(steps["start_time"], steps["step_seconds"])).as_py()
        metrics = window.metrics.filter(pc.less(window.metrics["time"], end))
        calm = rca.Window.from_tables(window.job.model_copy(update={"end": end + 1e-3}), steps, metrics)
        assert rca.diagnose(calm).failure_mode == "healthy", name


def test_scores_on_the_committed_collection_are_what_the_readme_may_claim() -> None:
    judged = [
        judge(rca.diagnose(rca.read_window(WINDOWS / name)), read_label(WINDOWS / name)) for name in EXPECTED
    ]
    assert all(one.mode_right for one in judged)
    assert not any(one.false_alarm == 1 for one in judged)
    assert all(
        one.rank_of_cause == 1 for one, name in zip(judged, EXPECTED, strict=True) if EXPECTED[name].causes
    )


@pytest.mark.system
def test_a_diagnosis_survives_json(client: TestClient) -> None:
    diagnosis = rca.diagnose(rca.read_window(WINDOWS / "cpu-contention-node"))
    again = rca.Diagnosis.model_validate(orjson.loads(diagnosis.to_json()))
    assert again == diagnosis
