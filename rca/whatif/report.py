"""What-if answers as text and files, without any command-line framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rca.errors import SourceError
from rca.whatif.result import WhatIf, finite

Format = Literal["json", "table", "published"]
FORMATS: tuple[Format, ...] = ("json", "table", "published")

SHOWN_WORKERS = 10


def render(result: WhatIf, form: Format) -> str:
    """The answer as text in one of `FORMATS`."""
    if form == "json":
        return result.to_json(indent=2)
    if form == "published":
        return json.dumps(finite(result.published()), indent=4, allow_nan=False)
    return table(result)


def table(result: WhatIf) -> str:
    """Figures for people: totals, then what each component costs alone."""
    lines = [
        *_totals(result),
        "",
        *_slowdowns("operation type" if result.source == "operations" else "phase", result, "type"),
        "",
        *_slowdowns("stage", result, "stage"),
        "",
        *_hottest(result),
    ]
    lines += [f"finding: {finding.text}" for finding in result.findings]
    lines += [f"warning: {text}" for text in result.warnings]
    lines += [f"note: {text}" for text in result.notes]
    return "\n".join(lines)


def _totals(result: WhatIf) -> list[str]:
    lower, upper = result.intervals["slowdown"]
    rows = [
        ("slowdown S", f"{result.slowdown:.4f}   90 % interval {lower:.4f} to {upper:.4f}"),
        ("wasted", f"{result.waste:.1%} of the job's time"),
        ("lost", f"{result.seconds_lost_per_step:.4g} s per step, {result.gpu_hours_lost:.4g} GPU hours"),
        ("step time", f"{result.no_delay.mean():.4g} s replayed, {result.ideal.mean():.4g} s ideal"),
        ("fidelity", f"replay within {result.fidelity:.2%} of the measured steps"),
        ("M_W, M_S", f"{_share(result.m_w.published)}, {_share(result.m_s.published)}"),
        ("replayed", f"{result.steps.size} steps of {result.world_size} ranks, from {result.source}"),
    ]
    return [f"{name:<12} {text}" for name, text in rows]


def _share(value: float | None) -> str:
    return "no clear loss" if value is None else f"{value:.4f}"


def _slowdowns(title: str, result: WhatIf, which: str) -> list[str]:
    parts = result.by_type if which == "type" else result.by_stage
    lines = [f"{title:<28} {'S alone':>8}   90 % interval"]
    for label, value in parts.slowdown(result.ideal).items():
        lower, upper = result.intervals[f"{which}:{label}"]
        lines.append(f"{label!s:<28} {value:8.4f}   {lower:.4f} to {upper:.4f}")
    return lines


def _hottest(result: WhatIf) -> list[str]:
    exact = result.workers.slowdown(result.ideal)
    order = np.argsort(-exact, kind="stable")[:SHOWN_WORKERS]
    lines = [
        f"{'rank':<8} {'data rank':>9} {'stage':>6} {'S alone':>9}   (hottest {order.size} of {exact.size})"
    ]
    for w in order:
        place = f"{result.workers.data_rank[w]:>9} {result.workers.stage[w]:>6}"
        lines.append(f"{result.workers.rank[w]:<8} {place} {exact[w]:9.4f}")
    return lines


def write_timeline(path: str | PathLike[str], timeline: Mapping[str, Any]) -> None:
    """Write a timeline as JSON.

    Raises
    ------
    SourceError
        If the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(timeline, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror}") from error
