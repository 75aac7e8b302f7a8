"""The summary: one screen with who, since when, what to do, what to check, why, how sure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import rca
from rca.diagnosis.result import AbstentionReason, Diagnosis, Place, Recommendation, WindowSpan
from rca.runbook import render
from rca.runbook.phrases import plain
from rca.runbook.summary import Summary

Varied = Callable[..., Diagnosis]
WINDOWS = Path("data/windows")
ONSET = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
SPAN = WindowSpan(
    start=ONSET - timedelta(minutes=5),
    end=ONSET + timedelta(minutes=5),
    first_step=0,
    last_step=65,
    world_size=64,
    nodes=8,
)


def screen(diagnosis: Diagnosis, width: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(render(diagnosis, "terminal"))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def rows(diagnosis: Diagnosis) -> dict[str, list[str]]:
    return {title: list(map(plain, lines)) for title, lines in Summary.from_diagnosis(diagnosis).rows}


def dated(varied: Varied, throttled: Diagnosis, *, until: datetime | None) -> Diagnosis:
    group = throttled.stragglers[0].model_copy(update={"since": ONSET, "until": until})
    return varied(since=ONSET, until=until, window=SPAN, stragglers=[group])


@pytest.mark.parametrize("name", ["cpu-contention-node", "killed-rank"])
def test_an_ordinary_answer_is_one_screen(name: str) -> None:
    lines = screen(rca.diagnose(rca.read_window(WINDOWS / name)))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_screen_has_every_part(varied: Varied, throttled: Diagnosis) -> None:
    text = "\n".join(screen(dated(varied, throttled, until=None), 200))
    for part in (
        "FAIL-SLOW: rank 6 on node-3, +32 ms per step (1.28x), cause gpu_throttling (0.83)",
        "2026-03-01 03:00:00 UTC (step 12), until the window's end",
        "drain_node: saves 29 ms per step (20 to 33 ms), costs 10 min once, pays back after 20,690 steps.",
        "nvidia-smi -q -d PERFORMANCE on node-3",
        "SM clock: 1,410 MHz, compared with 1,755 MHz",
        "0.01 GPU-hours in this window",
        "fail-slow 0.99; gpu_throttling 0.83",
        "infrastructure",
    ):
        assert part in text
    assert "rows of steps used" not in text


@pytest.mark.parametrize("format_", ["markdown", "html", "slack"])
def test_every_page_has_the_rows_of_the_summary(varied: Varied, throttled: Diagnosis, format_: str) -> None:
    diagnosis = dated(varied, throttled, until=ONSET + timedelta(minutes=1))
    page = render(diagnosis, format_)
    titles = ["Since", "Do this", "Check", "Runbook", "Why", "Lost", "How sure", "Owner"]
    assert list(rows(diagnosis)) == titles
    places = [page.find(title) for title in titles]
    assert -1 not in places
    assert places == sorted(places)
    assert "2026-03-01 03:00:00 UTC (step 12) until 03:01:00 UTC (step 65)" in page


def test_a_slowness_of_the_first_step_may_be_older(varied: Varied, throttled: Diagnosis) -> None:
    span = SPAN.model_copy(update={"first_step": 11})
    (since,) = rows(dated(varied, throttled, until=None).model_copy(update={"window": span}))["Since"]
    assert since == "2026-03-01 03:00:00 UTC (step 12) or before the window, until the window's end"


def test_without_times_the_steps_are_shown(throttled: Diagnosis) -> None:
    assert rows(throttled)["Since"] == ["step 12-65"]


def test_all_ranks_are_counted_not_listed(varied: Varied, throttled: Diagnosis) -> None:
    everyone = {"ranks": list(range(64)), "nodes": [f"node-{i}" for i in range(8)], "scope": "node"}
    group = throttled.stragglers[0].model_copy(update=everyone)
    line = screen(varied(window=SPAN, stragglers=[group]), 200)[0]
    assert line.startswith("FAIL-SLOW: all 64 ranks (8 nodes), +32 ms per step")


def test_the_gpu_of_a_single_rank_is_named(varied: Varied, throttled: Diagnosis) -> None:
    place = Place(rank=6, node="node-3", gpu=2)
    group = throttled.stragglers[0].model_copy(update={"places": [place]})
    assert "rank 6 on node-3 (GPU 2), " in screen(varied(stragglers=[group]), 200)[0]


def test_many_single_ranks_do_not_fill_the_line(varied: Varied, throttled: Diagnosis) -> None:
    group = throttled.stragglers[0].model_copy(update={"ranks": list(range(0, 60, 2))})
    assert "ranks 0,2,4,6,8,10,12,14 and 22 more on node-3" in screen(varied(stragglers=[group]), 200)[0]


def test_an_unknown_cost_is_called_unknown(varied: Varied, throttled: Diagnosis) -> None:
    unknown = dict.fromkeys(("ratio", "seconds_per_step", "interval", "gpu_hours_lost"))
    slowdown = throttled.slowdown.model_copy(update=unknown | {"versus_own_past": None})
    found = varied(slowdown=slowdown, unexplained_seconds_per_step=None)
    assert ", cost unknown, cause" in screen(found, 200)[0]
    assert "Lost" not in rows(found)
    for format_ in ("markdown", "html"):
        assert "Cost unknown" in render(found, format_)


def test_waiting_is_advice_with_the_action_that_follows(varied: Varied) -> None:
    wait = Recommendation(action="none", why="the slow steps ended before the window did; act if they return")
    first, then = rows(varied(recommended=wait))["Do this"]
    assert first == "Wait: the slow steps ended before the window did; act if they return."
    assert then.startswith("Then drain_node: saves 29 ms per step")


def test_waiting_names_the_action_of_its_reason(varied: Varied, throttled: Diagnosis) -> None:
    wait = Recommendation(action="none", why="waiting is cheaper; take replace_gpu if it lasts")
    other = throttled.actions[0].model_copy(update={"action": "replace_gpu"})
    _, then = rows(varied(recommended=wait, actions=[*throttled.actions, other]))["Do this"]
    assert then.startswith("Then replace_gpu: ")
    assert rows(varied(recommended=wait, actions=[]))["Do this"] == ["Nothing yet: do the check first."]


def test_an_open_answer_says_why_and_owns_no_action(varied: Varied) -> None:
    reason = AbstentionReason(code="cause_not_certain", sentence="no cause is certain enough")
    found = varied(abstained=True, abstention_reason=reason, actions=[])
    assert rows(found)["How sure"] == ["fail-slow 0.99; gpu_throttling 0.83. No cause is certain enough."]
    assert rows(found)["Do this"] == ["Nothing yet: do the check first."]


def test_an_open_cause_is_checked_first_and_shows_its_candidates(
    varied: Varied, throttled: Diagnosis
) -> None:
    likely = throttled.causes[0].model_copy(update={"probability": 0.56})
    unlikely = likely.model_copy(update={"cause": "pcie_degradation", "probability": 0.1})
    unknown = likely.model_copy(update={"cause": "unknown", "probability": 0.44, "owner": "either"})
    found = varied(causes=[unknown, likely, unlikely], recommended=None)
    headline = screen(found, 200)[0]
    assert headline.startswith("FAIL-SLOW: ")
    assert headline.endswith("cause open, perhaps gpu_throttling (0.56)")
    first, then = rows(found)["Do this"]
    assert first == "Do the check first."
    assert then.startswith("Then drain_node: ")
    alone = varied(causes=[unknown, unlikely])
    assert screen(alone, 200)[0].endswith("no known cause explains it (0.44)")


def test_each_cause_has_its_owner(varied: Varied, throttled: Diagnosis) -> None:
    other = throttled.causes[0].model_copy(update={"cause": "data_loader_stall", "owner": "workload"})
    found = varied(causes=[throttled.causes[0], other])
    assert rows(found)["Owner"] == ["gpu_throttling: infrastructure, data_loader_stall: workload"]


def test_columns_that_were_not_used_are_on_the_first_screen(varied: Varied, throttled: Diagnosis) -> None:
    told = ["steps: dropped unknown columns: foward_seconds; did you mean forward_seconds by foward_seconds?"]
    notes = ["metrics: dropped unknown columns: pod", "No clock of the job", *told]
    found = varied(quality=throttled.quality.model_copy(update={"notes": notes}))
    assert "Not used" not in rows(throttled)
    assert rows(found)["Not used"] == [
        "steps: unknown columns: foward_seconds; did you mean forward_seconds by foward_seconds?"
    ]


def test_a_slack_message_has_no_markup_of_names(varied: Varied, throttled: Diagnosis) -> None:
    group = throttled.stragglers[0].model_copy(update={"nodes": ["<!channel> `x` *y* & <http://a|b>"]})
    attacked = varied(stragglers=[group], job_id="<@U1>", next_check="<!here> *now*")
    message = json.loads(render(attacked, "slack"))
    blocks = message["attachments"][0]["blocks"]
    assert blocks[0]["text"]["type"] == "plain_text"
    assert len(blocks[0]["text"]["text"]) <= 150
    marked = json.dumps(blocks[1:], ensure_ascii=False)
    assert "<" not in marked
    assert "*now*" not in marked
    assert "&lt;!here&gt;" in marked
    assert "<" not in message["text"]
    assert "&lt;!channel&gt;" in message["text"]


def test_odd_answers_are_still_summarized(varied: Varied, throttled: Diagnosis) -> None:
    over = varied(since=ONSET, until=ONSET + timedelta(minutes=1), stragglers=[])
    assert rows(over)["Since"] == ["2026-03-01 03:00:00 UTC until 03:01:00 UTC"]
    unweighed = varied(abstained=True, failure_mode_probability={})
    assert plain(Summary.from_diagnosis(unweighed).headline).startswith("NOT CERTAIN: probably fail-slow")
    healthy = varied(abstained=True, failure_mode="healthy", failure_mode_probability={})
    assert plain(Summary.from_diagnosis(healthy).headline).startswith("NOT CERTAIN: probably healthy")
    unnamed = throttled.causes[0].evidence[0].model_copy(update={"signal": "\x1b\x07", "note": ""})
    cause = throttled.causes[0].model_copy(update={"evidence": [unnamed]})
    assert rows(varied(causes=[cause]))["Why"][0].startswith("(empty): ")
