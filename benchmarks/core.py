"""``python -m benchmarks core``: one row per set of labelled windows, and one per half of the retold reports.

Real windows count with all their signals, and again with exporters and step times alone. The rows of a change
are compared with those of an earlier commit (``--output`` and ``--before``).

Columns: *mode* right; *alarms* on healthy windows; *ranks* exactly right; *first* cause right, on any ranks;
*all* causes named; *when*: of stragglers found, first and last step right, within three steps or 5 % of
the window; *wrong* and certain; *silent*: undecided about a faulty job; *cpu* per diagnosis.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.retold import outcome
from benchmarks.retold_incidents import INCIDENTS
from rca.diagnosis import Diagnosis, diagnose
from rca.errors import RcaError
from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.scores import judge
from rca.lab.evaluation.signal_sets import restrict
from rca.lab.simulation.corpus import simulated_window
from rca.lab.testbed.pack import unpack
from rca.sources.labels import WindowLabel, accepted, read_collection, read_label
from rca.sources.read import read_window
from rca.window import Window
from rca.workers import Workers

DATA = Path(__file__).resolve().parent.parent / "data"
#: Collection -> the part that counts: what no threshold and no model was chosen on.
SETS = {
    "testbed/captures": "test",
    "testbed/second": "test",
    "testbed/third": "test",
    "testbed/fourth": "test",
    "testbed/gpu": "test",
    "testbed/gpu-second": "test",
    "outsiders": "test",
}
#: Sets of signals with a row of their own, and the short name of the row.
SIGNALS = {"all": "", "exporters-and-step-times": " bare"}
#: Seed of the first simulated window; no training window is near it.
FIRST_SEED = 880_000_000
COLUMNS = ("mode", "alarms", "ranks", "first", "all", "when", "wrong", "silent")
#: Tolerance of a first or last step: the larger of these steps and this share of the window.
NEAR_STEPS, NEAR_SHARE = 3, 0.05
OUTCOMES = ("right", "abstains", "silent", "healthy", "wrong")


@dataclass(frozen=True)
class CoreWindow:
    """One window to diagnose: a folder, a simulated one, or a retold one."""

    group: str
    place: str
    signals: str = "all"
    earlier: str | None = None
    seed: int = 0


def main(arguments: list[str]) -> int:
    """Diagnose every window, print the tables, and compare them with those of `--before`."""
    given = _options(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, Workers(given.processes) as workers:
        tasks = [each for each in _tasks(Path(scratch), given) if fnmatch(each.group, given.only)]
        for position, row in enumerate(workers.map(judged, tasks, chunk=8), start=1):
            rows.append(row)
            if position % 200 == 0 or position == len(tasks):
                sys.stderr.write(f"core: {position:,} of {len(tasks):,} windows\n")
    if given.output is not None:
        given.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = (
        [] if given.before is None else [json.loads(row) for row in given.before.read_text().splitlines()]
    )
    console = Console(width=190)
    console.print(_scores(rows, before))
    console.print(_outcomes(rows, before))
    return 0


def _tasks(scratch: Path, given: argparse.Namespace) -> Iterator[CoreWindow]:
    for name, part in SETS.items():
        folder, unpacked = DATA / name, scratch / name
        unpack(folder, unpacked, lambda *_: None)
        for entry in read_collection(unpacked):
            if entry.summary.get("split", part) != part:
                continue
            earlier = None if entry.earlier is None else str(entry.earlier)
            for signals, short in SIGNALS.items():
                yield CoreWindow(Path(name).name + short, str(entry.path), signals, earlier)
    for seed in range(FIRST_SEED, FIRST_SEED + given.simulated):
        yield CoreWindow("simulated", str(seed))
    for each in INCIDENTS.values():
        if each.refused:
            continue
        half = "retold, held out" if each.held_out else "retold, open"
        for variant, seed in product(each.variants, range(given.seeds)):
            yield CoreWindow(half, f"{each.id} {variant}", seed=seed)


def judged(task: CoreWindow) -> dict[str, Any]:
    """The scores of one answer, ready for JSON."""
    row: dict[str, Any] = {"group": task.group, "window": f"{Path(task.place).name} {task.seed}"}
    if task.group.startswith("retold"):
        return row | _retold(task)
    if task.group == "simulated":
        window, label = simulated_window(int(task.place))
        earlier = None
    else:
        window, label = read_window(task.place), read_label(task.place)
        earlier = None if task.earlier is None else restrict(read_window(task.earlier), task.signals)
    window = restrict(window, task.signals)
    began = time.process_time()
    answer = diagnose(window, earlier=earlier)
    row["cpu"] = time.process_time() - began
    given = MethodAnswer.from_diagnosis(answer)
    scores = judge(given, label)
    named = {each.cause for each in given.causes}
    faulty = label.failure_mode != "healthy"
    true = list(label.causes)
    return row | {
        "mode": scores.mode_right,
        "alarms": scores.false_alarm,
        "ranks": scores.ranks_exact,
        "first": float(scores.rank_of_cause_name == 1) if np.isfinite(scores.mode_right) and true else np.nan,
        "all": float(all(accepted(each) & named for each in true)) if true else np.nan,
        "when": _when(answer, label, window),
        "wrong": float(not answer.abstained and scores.kind not in ("right", "cause left open", "")),
        "silent": float(answer.abstained) if faulty else np.nan,
        "verdict": answer.verdict,
        "causes": [f"{each.cause} {each.probability:.2f}" for each in answer.causes[:3]],
        "truth": [each.cause for each in true] or [label.failure_mode],
    }


def _when(answer: Diagnosis, label: WindowLabel, window: Window) -> float:
    """Whether the straggler of the first true cause has its first and last step; NaN without one."""
    if label.failure_mode != "fail_slow" or answer.failure_mode != "fail_slow" or not label.causes:
        return float("nan")
    true = label.causes[0]
    found = [each for each in answer.stragglers if set(each.ranks) & set(true.ranks)]
    if true.first_step is None or not found or found[0].first_step is None or found[0].last_step is None:
        return float("nan")
    steps = window.steps.column("step").to_numpy()
    begin, end = int(steps.min()), int(steps.max())
    last = end if true.last_step is None else min(true.last_step, end)
    near = max(NEAR_STEPS, NEAR_SHARE * (end - begin + 1))
    first_right = abs(found[0].first_step - max(true.first_step, begin)) <= near
    return float(first_right and abs(found[0].last_step - last) <= near)


def _retold(task: CoreWindow) -> dict[str, Any]:
    name, variant = task.place.split()
    told = INCIDENTS[name].retell(variant, task.seed)
    began = time.process_time()
    try:
        answer = diagnose(told.window, earlier=told.earlier).to_dict()
    except RcaError as error:
        return {"outcome": "wrong", "verdict": f"refused: {error}"}
    return {
        "outcome": outcome(answer, told.expected),
        "cpu": time.process_time() - began,
        "verdict": answer["verdict"],
        "causes": [f"{each['cause']} {each['probability']:.2f}" for each in answer["causes"][:3]],
        "truth": sorted(told.expected.causes) or sorted(told.expected.verdicts),
    }


def _scores(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="labelled windows", title_justify="left")
    for name in ("windows", "n", *COLUMNS, "cpu, ms"):
        table.add_column(name, justify="left" if name == "windows" else "right")
    for group in dict.fromkeys(row["group"] for row in rows if "mode" in row):
        now = [row for row in rows if row["group"] == group]
        then = [row for row in before if row["group"] == group]
        cells = [_compared(name, now, then) for name in COLUMNS]
        table.add_row(group, str(len(now)), *cells, _milliseconds(now, then))
    return table


def _compared(name: str, now: Sequence[dict[str, Any]], then: Sequence[dict[str, Any]]) -> str:
    mean = _mean(now, name)
    if not then:
        return f"{mean:.3f}"
    return f"{_mean(then, name):.3f} > {mean:.3f}"


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    known = [row[name] for row in rows if row.get(name) is not None and np.isfinite(row[name])]
    return float(np.mean(known)) if known else float("nan")


def _milliseconds(now: Sequence[dict[str, Any]], then: Sequence[dict[str, Any]]) -> str:
    medians = [
        1000 * float(np.median([row.get("cpu", np.nan) for row in each])) for each in (then, now) if each
    ]
    return " > ".join(f"{each:.0f}" for each in medians)


def _outcomes(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="windows retold from reports", title_justify="left")
    for name in ("half", "n", *OUTCOMES, "cpu, ms"):
        table.add_column(name, justify="left" if name == "half" else "right")
    for group in dict.fromkeys(row["group"] for row in rows if "outcome" in row):
        now = [row for row in rows if row["group"] == group]
        then = [row for row in before if row["group"] == group]
        counts, earlier = (Counter(row["outcome"] for row in each) for each in (now, then))
        cells = [f"{earlier[name]} > {counts[name]}" if then else str(counts[name]) for name in OUTCOMES]
        table.add_row(group, str(len(now)), *cells, _milliseconds(now, then))
    return table


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--simulated", type=int, default=3000, metavar="N", help="simulated windows")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="seeds of each retold report")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows with such a name")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="keep the rows of all windows")
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="rows of an earlier commit to compare with"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
