"""``python -m benchmarks earlier COLLECTION...``: what an earlier window is worth to a diagnosis.

Each labelled window is cut in two where its fault begins, so that the fault acts in the later part from the
first step to the last; healthy ones are cut in the middle. The later part is asked alone and beside the
earlier one, which is moved back in time as if hours lay between. Stopped jobs, faults that begin too early or
end too early, and windows whose earlier part is not found healthy are left out: nobody would compare with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from rca.diagnosis import Bundle, diagnose
from rca.diagnosis.bundle import baseline
from rca.errors import RcaError
from rca.evaluation.answer import Answer
from rca.evaluation.intervals import Estimate
from rca.evaluation.rows import HEALTHY, JudgedRow, judged_row
from rca.evaluation.summary import estimates
from rca.processes import pool as pool_of
from rca.telemetry.labels import CollectionEntry, Label, read_collection, unfelt
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window
from rca.training.crops import crop

#: Least steps of either part.
ENOUGH_STEPS = 20
#: Steps before the window's end at which a fault may be over.
OVER = 3
#: Seconds between the parts.
GAP = 7200.0
ALONE, BESIDE = "alone", "beside the earlier window"
SCORES = ("failure_mode_accuracy", "false_alarm_rate", "ranks_exact", "cause_ac@1", "median_seconds_error")


class Cut(NamedTuple):
    """The two parts of a window, and what is true of the later one."""

    earlier: Window
    later: Window
    label: Label


def cut(window: Window, label: Label) -> Cut | None:
    """Cut a window where its fault begins; None if it cannot be asked about.

    What was not felt in the whole window may be in a part of it: nobody knows what is true of that.
    """
    if unfelt(label):
        return None
    clock = StepClock.of(window)
    begin = _onset(clock, label)
    if begin is None or min((clock.steps < begin).sum(), (clock.steps >= begin).sum()) < ENOUGH_STEPS:
        return None
    end = int(clock.steps[-1]) + 1
    if (later := crop(window, label, begin, end)) is None:
        return None
    return Cut(moved(clock.between(clock.first, begin), -GAP), *later)


def _onset(clock: StepClock, label: Label) -> int | None:
    """First step of the later part; None if the job stops, or a fault has no beginning or is over early."""
    if label.failure_mode == "healthy":
        return int(clock.steps[clock.steps.size // 2])
    first = [cause.first_step for cause in label.causes]
    last = [cause.last_step for cause in label.causes if cause.last_step is not None]
    lasts = all(step >= int(clock.steps[-1]) - OVER for step in last)
    # What is before has to be healthy: several faults begin together.
    together = len(set(first)) == 1
    return first[0] if label.failure_mode == "fail_slow" and lasts and together else None


def moved(window: Window, seconds: float) -> Window:
    """The window as if it had been taken at another time."""
    bounds = {"start": window.job.start + seconds, "end": window.job.end + seconds}
    return replace(
        window,
        job=window.job.model_copy(update=bounds),
        steps=_moved(window.steps, "start_time", seconds),
        metrics=_moved(window.metrics, "time", seconds),
        events=_moved(window.events, "time", seconds),
    )


def _moved(table: pa.Table, column: str, seconds: float) -> pa.Table:
    place = table.column_names.index(column)
    return table.set_column(place, table.schema.field(place), pc.add(table.column(column), seconds))


def rows_of(entry: CollectionEntry, bundle: Path | None = None) -> dict[str, JudgedRow] | None:
    """Both answers to a window's later part, judged; None if it is left out."""
    if (parts := cut(entry.read_window(), entry.read_label())) is None:
        return None
    model = _bundle(bundle)
    before = diagnose(parts.earlier, bundle=model)
    if before.failure_mode != HEALTHY or before.abstained:
        return None
    asked: dict[str, Window | None] = {ALONE: None, BESIDE: parts.earlier}
    return {
        method: judged_row(
            entry.id,
            parts.later,
            parts.label,
            signals="all",
            method=method,
            answer=Answer.from_diagnosis(diagnose(parts.later, bundle=model, earlier=earlier)),
        )
        for method, earlier in asked.items()
    }


@cache
def _bundle(folder: Path | None) -> Bundle:
    return baseline() if folder is None else Bundle.load(folder)


def table(found: Sequence[dict[str, JudgedRow]]) -> Table:
    """Scores of both ways to ask, over the same windows."""
    faulty = sum(each[ALONE].cause != HEALTHY for each in found)
    shown = Table(
        title=f"{len(found):,} windows, {faulty:,} of them with a fault from the first step to the last"
    )
    shown.add_column("score")
    scores = {}
    for method in (ALONE, BESIDE):
        shown.add_column(method)
        scores[method] = estimates([each[method].judged for each in found])
    for score in SCORES:
        shown.add_row(score, *(_cell(scores[method][score]) for method in (ALONE, BESIDE)))
    return shown


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} \\[{estimate.low:.3f}, {estimate.high:.3f}] of {estimate.n:,}"


def main(arguments: list[str]) -> int:
    """Cut, ask and print."""
    given = _options(arguments)
    try:
        entries = [
            entry
            for folder in given.collections
            for entry in read_collection(folder)
            if given.split in {None, entry.summary.get("split")}
        ]
        with pool_of(given.processes) as pool:
            asked = pool.map(partial(rows_of, bundle=given.bundle), entries, chunksize=8)
            found = [each for each in _counted(asked, len(entries)) if each is not None]
    except RcaError as error:
        sys.stderr.write(f"earlier: {error}\n")
        return 2
    if not found:
        sys.stderr.write("earlier: no window of these can be cut in two parts that are long enough\n")
        return 2
    Console(width=None if sys.stdout.isatty() else 120).print(table(found))
    return 0


def _counted(
    made: Iterator[dict[str, JudgedRow] | None], total: int
) -> Iterator[dict[str, JudgedRow] | None]:
    for done, each in enumerate(made, start=1):
        if done % 250 == 0 or done == total:
            sys.stderr.write(f"earlier: {done:,} of {total:,} windows\n")
        yield each


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks earlier", description=__doc__)
    parser.add_argument("collections", nargs="+", type=Path, metavar="COLLECTION", help="folder of windows")
    parser.add_argument("--split", help="part of the collections, as their manifests name it")
    parser.add_argument("--bundle", type=Path, help="bundle folder; the shipped one if absent")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
