"""Laws of the telemetry of a running job: how fragments arrive loses no row and changes no view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.window.fragments import current, joined
from rca.window.window import Window

Key = tuple[int, int, int, float]
BEGIN = 1e9


@dataclass(frozen=True)
class Attempt:
    """Steps that every rank takes in one attempt of the job."""

    first: int
    end: int
    begin: float


@st.composite
def attempts(draw: st.DrawFn) -> list[Attempt]:
    """A job that goes back to a checkpoint once or twice."""
    found = [Attempt(0, draw(st.integers(6, 14)), BEGIN)]
    for _ in range(draw(st.integers(0, 2))):
        last = found[-1]
        first = draw(st.integers(0, last.end - 1))
        found.append(
            Attempt(
                first, first + draw(st.integers(1, 14)), last.begin + 2.0 * (last.end - last.first) + 30.0
            )
        )
    return found


def rows_of(rank: int, number: int, attempt: Attempt) -> list[Key]:
    return [
        (rank, step, number, attempt.begin + 2.0 * (step - attempt.first) + 0.01 * rank)
        for step in range(attempt.first, attempt.end)
    ]


def fragment(rows: list[Key], *, numbered: bool) -> Window:
    rank, step, number, begin = zip(*rows, strict=True)
    columns = {
        "rank": pa.array(rank, pa.int32()),
        "step": pa.array(step),
        "start_time": pa.array(begin),
        "step_seconds": np.full(len(rows), 1.9),
    }
    if numbered:
        columns["attempt"] = pa.array(number)
    job = {"job_id": "j", "world_size": 3, "start": min(begin), "end": max(begin) + 2.0}
    return Window.from_tables(job, pa.table(columns), scope="fragment")


def view(ranks: range, taken: list[Attempt]) -> set[tuple[int, int, float]]:
    """Rows that count, by the true order."""
    found: dict[tuple[int, int], float] = {}
    for number, attempt in enumerate(taken):
        found = {key: begin for key, begin in found.items() if key[1] < attempt.first}
        for rank in ranks:
            found |= {key[:2]: key[3] for key in rows_of(rank, number, attempt)}
    return {(*key, begin) for key, begin in found.items()}


@pytest.mark.system
@given(st.data(), st.integers(1, 3), attempts(), st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_no_row_is_lost_and_the_view_is_that_of_the_true_order(
    data: st.DataObject, n_ranks: int, taken: list[Attempt], numbered: bool
) -> None:
    ranks = range(n_ranks)
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    parts: list[tuple[int, list[Key]]] = []
    for number, attempt in enumerate(taken):
        for rank in ranks:
            rows = rows_of(rank, number, attempt)
            size = int(draw.integers(1, 6))
            parts += [(number, rows[at : at + size]) for at in range(0, len(rows), size)]
    order = draw.permutation(len(parts))
    if not numbered:
        # Without numbers the rows of an attempt arrive before those of the next one; repetitions may be late.
        order = order[np.argsort([parts[place][0] for place in order], kind="stable")]
    sent = [parts[place][1] for place in order]
    for _ in range(int(draw.integers(0, 8))):
        again = int(draw.integers(0, len(sent)))
        sent.insert(int(draw.integers(again, len(sent))) + 1, sent[again])
    fragments = [fragment(rows, numbered=numbered) for rows in sent]
    for _ in range(int(draw.integers(0, 5))):
        first = int(draw.integers(0, len(fragments)))
        end = int(draw.integers(first, len(fragments))) + 1
        fragments[first:end] = [joined(fragments[first:end])]
    window = joined(fragments)
    names = ["rank", "step", "start_time"]
    held = sorted(zip(*(window.steps[name].to_pylist() for name in names), strict=True))
    assert held == sorted({(rank, step, begin) for rows in sent for rank, step, _, begin in rows})
    seen = current(window).steps
    assert set(zip(*(seen[name].to_pylist() for name in names), strict=True)) == view(ranks, taken)
