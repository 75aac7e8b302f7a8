"""The first line of every page says verdict, culprit, cost and cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rca.diagnosis.result import AbstentionReason, Diagnosis
from rca.runbook import render

Varied = Callable[..., Diagnosis]


def first_line(diagnosis: Diagnosis) -> str:
    return render(diagnosis, "markdown").splitlines()[0]


def test_a_slow_rank_is_named_with_cost_and_cause(throttled: Diagnosis) -> None:
    assert first_line(throttled) == (
        "# FAIL-SLOW: rank 6 on `node-3`, +32 ms per step (1.28x), cause `gpu_throttling` (0.83)"
    )


def test_the_slow_steps_are_shown_where_the_mean_of_the_window_hides_them(
    varied: Varied, throttled: Diagnosis
) -> None:
    slowdown = throttled.slowdown.model_copy(update={"versus_own_past": 1.9})
    assert "+32 ms per step (1.28x; slow steps 1.90x), " in first_line(varied(slowdown=slowdown))
    slowdown = throttled.slowdown.model_copy(update={"versus_own_past": 1.3})
    assert "+32 ms per step (1.28x), " in first_line(varied(slowdown=slowdown))


def test_a_whole_node_is_named_as_a_node(varied: Varied, throttled: Diagnosis) -> None:
    group = throttled.stragglers[0].model_copy(update={"scope": "node", "ranks": [4, 5, 6, 7]})
    assert "FAIL-SLOW: node `node-3` (ranks 4-7), " in first_line(varied(stragglers=[group]))


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        ("job", "the whole job"),
        ("stage", "a pipeline stage (rank 6)"),
        ("data_group", "a data-parallel group (rank 6)"),
    ],
)
def test_larger_scopes_read_as_words(varied: Varied, throttled: Diagnosis, scope: str, shown: str) -> None:
    group = throttled.stragglers[0].model_copy(update={"scope": scope})
    assert f"FAIL-SLOW: {shown}, " in first_line(varied(stragglers=[group]))


def test_a_healthy_job_names_no_rank(varied: Varied, throttled: Diagnosis) -> None:
    slowdown = throttled.slowdown.model_copy(
        update={"ratio": 1.01, "seconds_per_step": 0.001, "versus_own_past": 1.0}
    )
    page = render(
        varied(
            failure_mode="healthy", slowdown=slowdown, stragglers=[], causes=[], actions=[], next_check=""
        ),
        "markdown",
    )
    assert page.startswith("# HEALTHY: no rank, node or stage holds this job back, +1 ms per step (1.01x)\n")
    assert "## Who" not in page
    assert "## Why" not in page
    assert "## What to do" not in page


def test_a_job_slower_on_all_ranks_alike_is_healthy_but_says_so(varied: Varied, throttled: Diagnosis) -> None:
    slowdown = throttled.slowdown.model_copy(update={"ratio": 1.0, "versus_own_past": 1.31})
    line = first_line(varied(failure_mode="healthy", slowdown=slowdown, stragglers=[], causes=[]))
    assert line.startswith("# HEALTHY, but slower than before: steps are 1.31x as long")


def test_what_slowed_a_job_before_it_stopped_comes_second(varied: Varied, throttled: Diagnosis) -> None:
    (slow,), (cause,) = throttled.stragglers, throttled.causes
    dead = slow.model_copy(
        update={"ranks": [2], "nodes": ["node-1"], "first_step": 41, "pattern": None, "straggler_type": None}
    )
    free = dict.fromkeys(("seconds_per_step", "interval", "share"))
    why = cause.model_copy(update={"cause": "process_crash", "ranks": [2], "nodes": ["node-1"], **free})
    page = render(varied(failure_mode="fail_stop", stragglers=[dead, slow], causes=[why, cause]), "markdown")
    assert page.splitlines()[0] == (
        "# FAIL-STOP: rank 2 on `node-1` stopped at step 41, cause `process_crash` (0.83)"
        "; it was slow before, cause `gpu_throttling` (0.83), +32 ms per step (1.28x)"
    )
    rows = [
        line for line in page.splitlines() if line.startswith(("| `process_crash`", "| `gpu_throttling`"))
    ]
    assert [row.split(" | ")[2] for row in rows] == ["-", "+29 ms"]
    assert "Unexplained: " in page


def test_a_stopped_rank_is_named_with_its_step(varied: Varied, throttled: Diagnosis) -> None:
    group = throttled.stragglers[0].model_copy(
        update={"first_step": 41, "pattern": None, "straggler_type": None}
    )
    cause = throttled.causes[0].model_copy(update={"cause": "process_crash"})
    page = render(varied(failure_mode="fail_stop", stragglers=[group], causes=[cause]), "markdown")
    assert "| Cause | Who | Probability | Owner |" in page
    assert "Unexplained" not in page
    assert (
        page.splitlines()[0]
        == "# FAIL-STOP: rank 6 on `node-3` stopped at step 41, cause `process_crash` (0.83)"
    )


def test_a_job_that_may_well_be_slow_is_not_called_probably_healthy(varied: Varied) -> None:
    """No alarm below the threshold, but the page says which way the doubt goes."""
    odds = {"healthy": 0.08, "fail_slow": 0.92, "fail_stop": 0.0}
    page = varied(
        failure_mode="healthy", failure_mode_probability=odds, abstained=True, causes=[], stragglers=[]
    )
    assert first_line(page).startswith(
        "# NOT CERTAIN: perhaps fail-slow (0.92), not sure enough for an alarm"
    )


def test_an_abstention_names_suspects_but_no_cause(varied: Varied) -> None:
    line = first_line(varied(abstained=True, causes=[]))
    assert line == (
        "# NOT CERTAIN: probably fail-slow (0.99), +32 ms per step (1.28x); suspects rank 6 on `node-3`; "
        "no cause is certain enough to be named"
    )


def test_many_stragglers_are_counted_not_listed(varied: Varied, throttled: Diagnosis) -> None:
    line = first_line(varied(stragglers=list(throttled.stragglers) * 5))
    assert line.count("rank 6") == 3
    assert " and 2 more, +32 ms" in line


def test_a_strange_job_is_doubted_for_being_strange(varied: Varied) -> None:
    reason = AbstentionReason(code="out_of_distribution", sentence="unlike")
    line = first_line(varied(abstained=True, abstention_reason=reason))
    assert "NOT CERTAIN: probably fail-slow" in line
    assert "unlike those the model learned from" in line
    assert "no cause is certain" not in line
