"""Predicted against measured gain of recovery actions, on really captured faults.

With ``--captured FOLDER[:PART]``: collections of captures, in which a fault acts in some steps only. The
measured gain is that of the removal of the fault; each action that would remove it is a row.

Otherwise actions are carried out on jobs of the testbed: real processes that train over gloo, with real
faults. The action is taken and taken back in turn within one job. Needs root, and PyTorch.

Predictions are those of `rca.plan` for the window under the fault. Errors are relative to the measured gain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.recovery_gains import AIM, Row, captured_rows, grouped, summary


def captured(collections: Sequence[str]) -> list[Row]:
    """Rows of collections, each ``FOLDER`` or ``FOLDER:PART``."""
    rows: list[Row] = []
    for each in collections:
        folder, _, part = each.partition(":")
        rows += captured_rows(Path(folder), part or None)
    return rows


def carried_out(names: Sequence[str], seeds: int, output: Path | None) -> list[Row]:
    """Every pair at every seed, written after each; the order of pairs differs between seeds."""
    from benchmarks.recovery_job import PAIRS, in_child
    from rca.lab.testbed.ranks.models import preload

    preload()
    chosen = [index for index, pair in enumerate(PAIRS) if not names or pair.name in names]
    rows: list[Row] = []
    for seed in range(1, seeds + 1):
        for index in np.random.default_rng(seed).permutation(chosen):
            row = in_child(int(index), seed)
            if isinstance(row, str):
                sys.stderr.write(f"{PAIRS[index].name}, seed {seed}: {row}\n")
                continue
            rows.append(row)
            write(rows, output)
            predicted = row.predicted.said or f"{1e3 * (row.predicted.seconds or 0.0):.1f} ms"
            sys.stderr.write(f"{row.job}: measured {1e3 * row.measured:.1f} ms, predicted {predicted}\n")
    return rows


def write(rows: Sequence[Row], output: Path | None) -> None:
    """Write all rows and their summary as JSON."""
    if output is not None:
        found = {"summary": summary(rows), "rows": [row.as_dict() for row in rows]}
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def milliseconds(rows: Sequence[tuple[float, tuple[float, float]]]) -> str:
    """Mean of some gains and of the bounds of their intervals."""
    if not rows:
        return "-"
    mean, low, high = (1e3 * float(np.mean(each)) for each in zip(*((s, *i) for s, i in rows), strict=True))
    return f"{mean:.0f} [{low:.0f}, {high:.0f}]"


def table_of(rows: Sequence[Row]) -> Table:
    """One line for each fault and action, and one for all."""
    table = Table(
        "fault", "action", "predicted", "step, ms", "gain measured, ms", "gain predicted, ms", "error, %",
        "overlap", "otherwise",
        box=None, pad_edge=False,
    )  # fmt: skip
    for (fault, action), part in grouped(rows, "fault", "action").items():
        table.add_row(fault, action, *_cells(part))
    table.add_row("all", "", *_cells(rows))
    return table


def _cells(rows: Sequence[Row]) -> list[str]:
    figures = summary(rows)
    known = [row for row in rows if row.predicted.seconds is not None]
    value, low, high = (100 * each for each in figures["error"])
    said = Counter(row.predicted.said for row in rows if row.predicted.said)
    promised = [
        (row.predicted.seconds, row.predicted.interval)
        for row in known
        if row.predicted.seconds is not None and row.predicted.interval is not None
    ]
    return [
        f"{len(known)} of {len(rows)}",
        f"{1e3 * float(np.mean([row.step for row in rows])):.0f}",
        milliseconds([(row.measured, row.interval) for row in known or rows]),
        milliseconds(promised),
        f"{value:.0f} [{low:.0f}, {high:.0f}]" if known else "-",
        f"{sum(row.overlap for row in known)}" if known else "-",
        "; ".join(f"{n} {text}" for text, n in said.most_common(3)) + (" ..." if len(said) > 3 else ""),
    ]


def render(rows: Sequence[Row], title: str) -> None:
    console = Console(width=210)
    figures = summary(rows)
    console.print(
        f"{title}. Gains: means in milliseconds per step, with the means of the 95 % intervals of the rows. "
        "Error: median of the absolute errors relative to the measured gain, with its 95 % interval."
    )
    console.print(table_of(rows))
    console.print(
        f"Of the rows with a prediction, {figures['within_aim']:.0%} err by {AIM:.0%} at most; "
        f"median signed error {figures['bias']:+.0%}. The measured gain is in the predicted interval of "
        f"{figures['covered']:.0%}, whose half width is {figures['width']:.0%} of the gain in the median."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks recovery", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--captured", nargs="+", default=[], metavar="FOLDER[:PART]", help="unpacked collections"
    )
    parser.add_argument("--seeds", type=int, default=3, help="jobs of each pair")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="NAME", help="faults by name; default all")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write all rows as JSON")
    options = parser.parse_args()
    if options.captured:
        rows = captured(options.captured)
    else:
        rows = carried_out(options.pairs, options.seeds, options.output)
    if not rows:
        raise SystemExit("no capture or job gave a row")
    write(rows, options.output)
    render(rows, "Captured faults" if options.captured else "Actions carried out")


if __name__ == "__main__":
    main()
