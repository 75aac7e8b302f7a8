"""Predicted against measured gain of recovery actions, on really captured faults.

With ``--captured FOLDER[:PART]``: collections of captures, in which a fault acts in some steps only. The
measured gain is that of the removal of the fault; each action that would remove it is a row.

Otherwise actions are carried out on jobs of the testbed: real processes that train over gloo, with real
faults. The action is taken and taken back in turn within one job. Needs root, and PyTorch.

Predictions are those of `rca.plan` for the window under the fault. Errors are relative to the measured gain.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import print_table
from benchmarks.recovery_gains import AIM, GainRow, captured_rows, grouped, summary


def captured(collections: Sequence[str]) -> list[GainRow]:
    """Rows of collections, each ``FOLDER`` or ``FOLDER:PART``."""
    rows: list[GainRow] = []
    for each in collections:
        folder, _, part = each.partition(":")
        rows += captured_rows(Path(folder), part or None)
    return rows


def carried_out(names: Sequence[str], seeds: int) -> list[GainRow]:
    """Every pair at every seed; the order of pairs differs between seeds."""
    from benchmarks.recovery_job import PAIRS, in_child
    from rca.lab.testbed.ranks.models import preload

    preload()
    chosen = [index for index, pair in enumerate(PAIRS) if not names or pair.name in names]
    rows: list[GainRow] = []
    for seed in range(1, seeds + 1):
        for index in np.random.default_rng(seed).permutation(chosen):
            row = in_child(int(index), seed)
            if isinstance(row, str):
                sys.stderr.write(f"{PAIRS[index].name}, seed {seed}: {row}\n")
                continue
            rows.append(row)
            predicted = row.predicted.said or f"{1e3 * (row.predicted.seconds or 0.0):.1f} ms"
            sys.stderr.write(f"{row.job}: measured {1e3 * row.measured:.1f} ms, predicted {predicted}\n")
    return rows


def milliseconds(rows: Sequence[tuple[float, tuple[float, float]]]) -> str:
    """Mean of some gains and of the bounds of their intervals."""
    if not rows:
        return "-"
    mean, low, high = (1e3 * float(np.mean(each)) for each in zip(*((s, *i) for s, i in rows), strict=True))
    return f"{mean:.0f} [{low:.0f}, {high:.0f}]"


def _cells(rows: Sequence[GainRow]) -> list[str]:
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


def render(rows: Sequence[GainRow], title: str) -> None:
    """One line for each fault and action, and one for all."""
    groups = grouped(rows, "fault", "action") | {("all", ""): list(rows)}
    columns = ("fault", "action", "predicted", "step, ms", "gain measured, ms", "gain predicted, ms")
    lines = [(*names, *_cells(part)) for names, part in groups.items()]
    print_table(title, (*columns, "error, %", "overlap", "otherwise"), lines)
    figures = summary(rows)
    print(
        "Gains: means in milliseconds per step, with the means of the 95 % intervals of the rows. "
        "Error: median of the absolute errors relative to the measured gain, with its 95 % interval. "
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
    options = parser.parse_args()
    rows = captured(options.captured) if options.captured else carried_out(options.pairs, options.seeds)
    if not rows:
        raise SystemExit("no capture or job gave a row")
    render(rows, "Captured faults" if options.captured else "Actions carried out")


if __name__ == "__main__":
    main()
