"""``python -m benchmarks errors``: what kinds of errors a bundle makes, and which of them can be avoided.

The shipped corpus's validation part is diagnosed, so that the test part stays unasked. Each window is filed
under the first reason why nobody could do better on it; what no reason excuses is the row to work on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rca.evaluation.rows import HEALTHY, JudgedRow
from rca.evaluation.simulated import evaluate_simulated
from rca.evaluation.summary import estimates
from rca.evaluation.tables import GROUP_SCORES, TextTable, cell, errors_table
from rca.simulation.sampling import sample_scenario
from rca.simulation.scenario import HARDLY_VISIBLE, Scenario
from rca.training.run import DEFAULT_SEED, DEFAULT_WINDOWS
from rca.training.simulated import scenario_seeds
from rca.training.split import part_of, scenario_group

N_WINDOWS = 1000
#: A slowdown below this is hardly felt; `rca.telemetry.labels.unfelt` speaks of none at all.
FELT = 1.08
#: Why an answer cannot be right, or not in all its parts, in the order in which they are asked.
EXCUSES = (
    HEALTHY,
    "hardly felt, below 8 %",
    "step times only",
    "all ranks wait in one collective",
    "phases only",
    "two faults at once",
    "one fault, felt, phases and metrics",
)
#: Reach is stated without abstention, so that what an answer is worth when it is given stands beside.
SCORES = GROUP_SCORES | {
    "rank_precision": "rank precision",
    "rank_recall": "rank recall",
    "cause_ac@1_when_not_abstaining": "AC@1 not abstaining",
}


def excuse(row: JudgedRow, scenario: Scenario) -> str:
    """The first of `EXCUSES` that applies."""
    seen, faults = scenario.telemetry, scenario.faults
    stuck = any((fault.cause, fault.variant) == ("hang", "collective") for fault in faults)
    applies = (
        row.cause == HEALTHY,
        row.judged.mode == "fail_slow" and row.slowdown < FELT,
        seen.visibility in HARDLY_VISIBLE,
        stuck,
        not seen.exporters,
        len(faults) > 1,
        True,
    )
    return EXCUSES[applies.index(True)]


def by_excuse(rows: Sequence[JudgedRow]) -> TextTable:
    """Scores of each class of windows; those with a fault that nobody would have felt are left out."""
    held: dict[str, list[JudgedRow]] = {}
    for row in rows:
        if row.judged.kind:
            seed = int(row.window.rsplit("-", 1)[1])
            held.setdefault(excuse(row, sample_scenario(np.random.default_rng(seed))), []).append(row)
    lines = []
    for name in EXCUSES:
        if name in held:
            found = estimates([row.judged for row in held[name]])
            lines.append((name, str(len(held[name])), *(cell(found[score]) for score in SCORES)))
    return TextTable("what can be reached", ("windows that are", "windows", *SCORES.values()), tuple(lines))


def by_seconds(rows: Sequence[JudgedRow]) -> TextTable:
    """How far off the first cause's cost is: over all slow windows that have a true cost, and the named."""
    priced = [row for row in rows if np.isfinite(row.judged.seconds_error)]
    named = [row for row in priced if row.judged.rank_of_cause == 1]
    mild = [row for row in named if row.slowdown < FELT]
    groups = {
        "slow, with a cost": priced,
        "of these, true cause first": named,
        "of these, hardly felt": mild,
    }
    lines = []
    for name, held in groups.items():
        errors = np.array([row.judged.seconds_error for row in held])
        quartiles = np.quantile(errors, (0.25, 0.5, 0.75)) if errors.size else np.full(3, np.nan)
        lines.append((name, str(errors.size), *(f"{each:.3f}" for each in quartiles)))
    header = ("windows that are", "windows", "lower quartile", "median", "upper quartile")
    return TextTable("relative error of the seconds per step", header, tuple(lines))


def main(arguments: list[str]) -> int:
    """Diagnose, judge and print both tables."""
    given = _options(arguments)
    seeds = scenario_seeds(DEFAULT_WINDOWS, DEFAULT_SEED)
    held = [seed for seed in seeds if part_of(scenario_group(seed)) == "validation"][: given.windows]
    (rows,) = evaluate_simulated(held, [given.bundle], processes=given.processes, progress=_progress)
    console = Console(width=None if sys.stdout.isatty() else 260)
    for table in (errors_table(rows), by_excuse(rows), by_seconds(rows)):
        shown = Table(*table.header, title=table.title)
        for line in table.rows:
            shown.add_row(*(text.replace("[", r"\[") for text in line))
        console.print(shown)
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks errors", description=__doc__)
    parser.add_argument("--windows", type=int, default=N_WINDOWS, help="scenarios of the validation part")
    parser.add_argument("--bundle", type=Path, help="bundle folder; the shipped one if absent")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args(arguments)


def _progress(done: int, total: int) -> None:
    if done % 100 == 0 or done == total:
        sys.stderr.write(f"errors: {done:,} of {total:,} scenarios\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
