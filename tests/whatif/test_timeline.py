"""Timelines that a viewer draws unchanged: slices of one track never overlap."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_jobs import execute, make_job, table_of

from rca.whatif.analysis import replay_of
from rca.whatif.timeline import RESOLUTION, timeline


def slices_by_track(document: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]]:
    tracks: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    return {key: sorted(held, key=lambda one: one[:2]) for key, held in tracks.items()}


def check(document: dict[str, Any]) -> None:
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    tracks = slices_by_track(document)
    assert set(tracks) <= named
    for held in tracks.values():
        for (_, end, _), (start, _, _) in pairwise(held):
            assert start >= end


@settings(max_examples=15)
@given(
    st.builds(
        make_job,
        pp=st.integers(1, 3),
        dp=st.integers(1, 2),
        microbatches=st.integers(1, 4),
        overlap=st.booleans(),
    ),
    st.integers(0, 1000),
    st.floats(0, 0.004),
)
def test_slices_of_a_track_never_overlap(job: Any, seed: int, longer: float) -> None:
    rows = [dict(row) for row in execute(job, 2, seed).rows]
    for row in rows:
        row["duration"] = float(row["duration"]) + longer  # type: ignore[arg-type]
    check(timeline(replay_of(table_of(rows), job.meta), step=1))


def test_overlapping_operations_get_tracks_of_their_own_at_full_length() -> None:
    job = make_job(pp=1, dp=2, vpp=2, microbatches=2, overlap=True)
    rows = [dict(row) for row in execute(job, 2).rows]
    gathers = [row for row in rows if row["optype"] == "params-all-gather" and row["step"] == 0]
    for row in gathers:
        row["start_ts"] = 0.001 * float(row["seq_id"])  # type: ignore[arg-type]
        row["duration"] = 0.005
    document = timeline(replay_of(table_of(rows), job.meta), step=0)
    check(document)
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert "parameter gathers and gradient scatters (2)" in names
    real = [e for e in document["traceEvents"] if e["name"] == "params-all-gather" and e["pid"] <= 2]
    assert [event["dur"] for event in real] == [5000] * len(gathers)


def test_overlaps_below_the_clock_resolution_stay_on_one_track() -> None:
    job = make_job(pp=1, dp=2, microbatches=2)
    rows = [dict(row) for row in execute(job, 2).rows]
    for row in rows:
        row["duration"] = float(row["duration"]) + 5e-6  # type: ignore[arg-type]
    document = timeline(replay_of(table_of(rows), job.meta), step=0)
    check(document)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            assert abs(event["ts"] - 1e6 * event["args"]["start"]) <= RESOLUTION + 1


@pytest.mark.parametrize("variant", ["real", "ideal"])
def test_every_operation_is_drawn_once(variant: str) -> None:
    job = make_job(pp=2, dp=2, microbatches=2)
    ran = execute(job, 1)
    document = timeline(replay_of(ran.table, job.meta))
    titles = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    drawn = [
        e for e in document["traceEvents"] if e["ph"] == "X" and titles[e["pid"]].startswith(f"{variant}: ")
    ]
    assert len(drawn) == len(ran.rows)
