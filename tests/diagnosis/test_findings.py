"""Findings: what the machines show stands in every answer, and no cause is named against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rca
from rca.diagnosis.findings import LOUDEST, strength
from rca.diagnosis.result import Finding

START = 1.75e9
SECONDS = 240
STEP = 0.5
CLOCK = "DCGM_FI_DEV_SM_CLOCK"
REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def clocks(ranks: int, slow: dict[int, float], since: int = 0) -> list[dict[str, Any]]:
    """Samples of every GPU's clock, every 5 seconds; `slow` ranks run at so many MHz from `since` on."""
    noise = np.random.default_rng(0)
    return [
        sample(
            second, CLOCK, (slow.get(rank, 1980.0) if second >= since else 1980.0) + noise.normal(0, 5), rank
        )
        for second in range(0, SECONDS, 5)
        for rank in range(ranks)
    ]


def sample(second: float, name: str, value: float, rank: int) -> dict[str, Any]:
    return {"time": START + second, "name": name, "value": value, "node": None, "rank": rank, "device": None}


def machines(ranks: int, *samples: list[dict[str, Any]], **tables: Any) -> rca.Window:
    """A window of `ranks` ranks on nodes of four, with these samples."""
    placed = [{"rank": rank, "node": f"node-{rank // 4}", "gpu": rank % 4} for rank in range(ranks)]
    job = {"job_id": "a", "world_size": ranks, "start": START, "end": START + SECONDS, "ranks": placed}
    return rca.Window.from_tables(job, metrics=[row for rows in samples for row in rows], **tables)


def timed(ranks: int, longer: float, since: int) -> list[dict[str, Any]]:
    """Step times of a job whose steps take `longer` times as long from second `since` on; no phases."""
    noise = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    begin, number = 0.0, 0
    while begin < SECONDS - 3:
        taken = STEP * (longer if begin >= since else 1.0) * (1 + noise.normal(0, 0.01))
        row = {"step": number, "start_time": START + begin, "step_seconds": taken}
        rows += [{"rank": rank, **row} for rank in range(ranks)]
        begin, number = begin + taken, number + 1
    return rows


def found(diagnosis: rca.Diagnosis, resource: str) -> Finding:
    return next(each for each in diagnosis.findings if each.resource == resource)


@pytest.mark.parametrize("with_steps", [True, False], ids=["step times", "exporters alone"])
def test_a_finding_says_what_where_and_since_when(with_steps: bool) -> None:
    tables = {"steps": timed(8, 1.6, 120)} if with_steps else {}
    answer = rca.diagnose(machines(8, clocks(8, {5: 1185.0}, since=120), **tables))
    clock = found(answer, "gpu_clock")
    assert (clock.component, clock.ranks, clock.nodes, clock.signal) == (
        "GPU",
        [5],
        ["node-1"],
        "sm_clock_mhz",
    )
    assert clock.reference == pytest.approx(1980, rel=0.01)
    assert clock.since is not None
    assert abs(clock.since.timestamp() - START - 120) < 15
    if not with_steps:
        assert (answer.since, answer.stragglers[0].since) == (clock.since, clock.since)
    if with_steps:
        assert clock.value == pytest.approx(1185, rel=0.05)


def test_a_signal_made_of_two_others_is_dated_as_well() -> None:
    """Memory in use as a share of what a device has."""
    full = [
        sample(second, f"DCGM_FI_DEV_FB_{name}", share * 80_000.0, rank)
        for second in range(0, SECONDS, 5)
        for rank in range(8)
        for used in [0.99 if rank == 5 and second >= 120 else 0.6]
        for name, share in (("USED", used), ("FREE", 1.0 - used))
    ]
    memory = found(rca.diagnose(machines(8, full, steps=timed(8, 1.6, 120))), "device_memory")
    assert (memory.ranks, memory.signal) == ([5], "gpu_memory_share")
    assert memory.since is not None
    assert abs(memory.since.timestamp() - START - 120) < 15


def test_a_slow_job_without_timers_is_explained_by_the_gpu_that_stands_out() -> None:
    """The commonest telemetry of all: step times and a stock GPU exporter."""
    answer = rca.diagnose(machines(8, clocks(8, {5: 500.0}, since=80), steps=timed(8, 3.0, 80)))
    assert answer.verdict == "fail_slow"
    assert (answer.causes[0].cause, answer.causes[0].ranks) == ("gpu_throttling", [5])


def test_an_abstention_reports_its_findings() -> None:
    answer = rca.diagnose(machines(8, clocks(8, {5: 1750.0}), steps=timed(8, 1.0, 0)))
    assert answer.abstained
    clock = found(answer, "gpu_clock")
    assert (clock.ranks, clock.since) == ([5], None)


def test_a_deviation_all_along_is_reported_beside_slow_steps() -> None:
    """It explains no steps that come and go, and it is there all the same."""
    window = machines(16, clocks(16, {5: 900.0}), steps=timed(16, 1.6, 120))
    assert found(rca.diagnose(window), "gpu_clock").ranks == [5]


def test_a_node_with_other_gpus_does_not_explain_slow_steps() -> None:
    window = machines(16, clocks(16, dict.fromkeys(range(12, 16), 1410.0)), steps=timed(16, 1.3, 120))
    answer = rca.diagnose(window)
    assert found(answer, "gpu_clock").ranks == [12, 13, 14, 15]
    assert not any(each.cause == "gpu_throttling" for each in answer.causes[:1])


def test_a_lower_clock_is_never_less_certain() -> None:
    chances = []
    for clock in (1700.0, 1400.0, 1200.0, 900.0, 400.0):
        answer = rca.diagnose(machines(8, clocks(8, {5: clock}, since=80), steps=timed(8, 1.6, 80)))
        chances.append({each.cause: each.probability for each in answer.causes}.get("gpu_throttling", 0.0))
    assert chances == sorted(chances)


def test_equal_machines_have_no_findings() -> None:
    assert rca.diagnose(machines(8, clocks(8, {}), steps=timed(8, 1.0, 0))).findings == []


def test_one_sample_with_a_throttle_bit_is_no_throttling() -> None:
    bits = [
        sample(second, REASONS, 4.0 if (second, rank) == (100, 5) else 1.0, rank)
        for second in range(0, SECONDS, 5)
        for rank in range(8)
    ]
    answer = rca.diagnose(machines(8, clocks(8, {}), bits, steps=timed(8, 1.6, 120)))
    assert not any(each.resource == "gpu_clock" for each in answer.findings)
    assert not any(each.cause == "gpu_throttling" and each.probability > 0.3 for each in answer.causes)


def test_an_event_is_a_finding_with_its_time() -> None:
    told = {"time": START + 60, "node": "node-0", "rank": 2, "kind": "xid", "code": "79", "message": None}
    answer = rca.diagnose(machines(8, clocks(8, {}), events=[told]))
    xid = next(each for each in answer.findings if each.signal == "xid")
    assert (xid.ranks, xid.value, xid.against) == ([2], 1.0, "events")
    assert xid.since is not None
    assert xid.since.timestamp() == pytest.approx(START + 60)


def test_many_events_of_a_kind_are_one_finding() -> None:
    told = [
        {
            "time": START + 60 + second,
            "node": "node-0",
            "rank": 2,
            "kind": "ecc",
            "code": "dbe",
            "message": None,
        }
        for second in range(100)
    ]
    errors = [
        each
        for each in rca.diagnose(machines(8, clocks(8, {}), events=told)).findings
        if each.signal == "ecc"
    ]
    assert [(each.ranks, each.value) for each in errors] == [([2], 100.0)]


@given(st.lists(st.floats(0, 8), min_size=2, max_size=2))
def test_louder_is_surer(units: list[float]) -> None:
    low, high = sorted(units)
    assert 0 <= strength(low) <= strength(high) < LOUDEST


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(8)), st.integers(0, 7))
def test_findings_do_not_depend_on_the_order_of_ranks(order: list[int], slow: int) -> None:
    """The same machine has the same finding, whatever number its rank has."""
    straight = found(rca.diagnose(machines(8, clocks(8, {slow: 1185.0}))), "gpu_clock")
    renamed = [row | {"rank": order[row["rank"]]} for row in clocks(8, {slow: 1185.0})]
    other = found(rca.diagnose(machines(8, renamed)), "gpu_clock")
    assert other.ranks == [order[slow]]
    assert (other.value, other.reference, other.strength) == (
        straight.value,
        straight.reference,
        straight.strength,
    )
