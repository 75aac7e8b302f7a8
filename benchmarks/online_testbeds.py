"""``python -m benchmarks online-testbeds``: the watcher on real captures, healthy and faulty.

The healthy captures of the testbeds are minutes in sum. For more hours, blocks of consecutive steps of one
capture are drawn again and again, all ranks together, into long jobs with the noise of real machines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import print_table
from benchmarks.online import WITHIN_STEPS, watched
from rca.features.lateness_change import UnitLateness
from rca.lab.evaluation.intervals import poisson_rate
from rca.lab.testbed.pack import unpack
from rca.sources.labels import WindowLabel, read_collection, unfelt
from rca.window.window import Window
from rca_api.jobs.work import WatchedSteps

DATA = Path(__file__).parents[1] / "data" / "testbed"
TESTBEDS = ("captures", "second", "third", "fourth")
#: Steps of one drawn block, of one drawn job, and between two looks at it.
BLOCK_STEPS, DRAWN_STEPS, DRAWN_LOOK = 20, 2000, 10
#: First steps of a capture that are not drawn: its processes warm up.
WARM_UP = 5
MIN_STEPS, MIN_BEFORE, MIN_AFTER = 40, 28, 20


@dataclass(frozen=True)
class Capture:
    """A capture with its label."""

    testbed: str
    window: Window
    label: WindowLabel


def captures(folder: Path) -> Iterator[Capture]:
    """The captures of all testbeds, unpacked below a folder."""
    for testbed in TESTBEDS:
        unpack(DATA / testbed, folder / testbed)
        for entry in read_collection(folder / testbed):
            yield Capture(testbed, entry.read_window(), entry.read_label())


def main(arguments: list[str]) -> int:
    """Watch the captures, and as many hours drawn from the healthy ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks online-testbeds", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="drawn healthy job-hours [default: 1000]")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as held:
        found = list(captures(Path(held)))
    _print_faulty(found)
    _print_drawn([each for each in found if _undisturbed(each.label)], given.hours)
    return 0


def _undisturbed(label: WindowLabel) -> bool:
    """Whether nothing was done to the machine, not even what was too weak for a label."""
    return (
        label.failure_mode == "healthy" and not unfelt(label) and not (label.model_extra or {}).get("impact")
    )


def _print_faulty(found: list[Capture]) -> None:
    rows = []
    for testbed in TESTBEDS:
        seen = alarms = n = 0
        for each in found:
            first = each.label.causes[0].first_step if each.label.causes else None
            if each.testbed != testbed or each.label.failure_mode != "fail_slow" or first is None:
                continue
            numbers = np.unique(each.window.steps.column("step").to_numpy())
            onset = int(np.searchsorted(numbers, first))
            if not MIN_BEFORE <= onset < numbers.size - MIN_AFTER:
                continue
            result = watched(each.window, onset, every=1)
            n += 1
            seen += result.seen_after is not None and result.seen_after <= WITHIN_STEPS
            alarms += result.alarmed_after is not None and result.alarmed_after <= WITHIN_STEPS
        rows.append((testbed, n, seen, alarms))
    columns = ("testbed", "slow captures", f"seen within {WITHIN_STEPS}", f"alarm within {WITHIN_STEPS}")
    print_table(f"faults with {MIN_BEFORE} steps before and {MIN_AFTER} after their onset", columns, rows)


def _print_drawn(healthy: list[Capture], wanted: float) -> None:
    draw = np.random.default_rng(0)
    hours, signs = 0.0, 0
    jobs = [job for each in healthy if (job := _steps_of(each.window)) is not None]
    while hours < wanted and jobs:
        for job in jobs:
            long = _drawn(job, draw)
            hours += float(np.nansum(long.seconds)) / 3600.0
            before = False
            for last in range(DRAWN_LOOK, DRAWN_STEPS, DRAWN_LOOK):
                now = long.change(last) is not None
                signs += now and not before
                before = now
        print(f"online: {hours:,.0f} of {wanted:,.0f} drawn job-hours, {signs} changes", file=sys.stderr)
    if hours:
        rate, low, high = (1e3 * each for each in poisson_rate(signs, hours))
        row = (len(jobs), f"{hours:,.0f}", signs, f"{rate:.2f} [{low:.2f}, {high:.2f}]")
        print_table(
            "drawn from undisturbed captures",
            ("captures", "job-hours", "changes", "per 1,000 h [95 %]"),
            [row],
        )


def _steps_of(window: Window) -> WatchedSteps | None:
    nodes = {place.rank: place.node for place in window.job.ranks or () if place.node}
    job = WatchedSteps.of(window, nodes)
    return job if job.steps.size >= MIN_STEPS and np.isfinite(job.seconds).mean() > 0.9 else None


def _drawn(job: WatchedSteps, draw: np.random.Generator) -> WatchedSteps:
    """A job of blocks of another job's steps."""
    begin = draw.integers(WARM_UP, job.steps.size - BLOCK_STEPS, size=DRAWN_STEPS // BLOCK_STEPS)
    columns = (begin[:, None] + np.arange(BLOCK_STEPS)).ravel()
    steps = np.arange(columns.size)
    lateness = UnitLateness(steps, job.lateness.excess[:, columns], job.lateness.ranks)
    return WatchedSteps(steps, job.seconds[columns], lateness)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
