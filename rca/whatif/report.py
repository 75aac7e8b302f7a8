"""What-if answers as text and files, without any command-line framework."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput, MissingExtra, SourceError, TooLarge
from rca.whatif.result import WhatIf, finite
from rca.whatif.scenario import Scenario

Format = Literal["json", "table", "published"]

SHOWN_WORKERS = 10
MAX_NUMBERS = 5_000_000
"""Slowdowns per worker and step in one answer; about 50 MB of JSON."""


@dataclass(frozen=True)
class Extras:
    """Optional parts of an answer.

    Attributes
    ----------
    per_step : bool
        Times and slowdowns of every step.
    worker_steps : bool
        Also the exact slowdown of every worker in every step. Needs `per_step`.
    scenario_seconds : ndarray of shape (n_scenarios, n_steps), seconds
    """

    per_step: bool = True
    worker_steps: bool = False
    scenarios: Sequence[Scenario] = ()
    scenario_seconds: FloatArray | None = None


def document(result: WhatIf, extras: Extras) -> dict[str, Any]:
    """The answer as plain data.

    ``steps.by_worker`` maps each rank to its exact slowdown in every step, in the order of ``steps.step``;
    ``scenarios`` has one entry per described scenario, in their order.

    Raises
    ------
    InvalidInput
        If `worker_steps` is set without `per_step`.
    TooLarge
        If an answer would have more than `MAX_NUMBERS` of these slowdowns.
    """
    answer = result.to_dict(per_step=extras.per_step)
    if extras.worker_steps:
        if not extras.per_step:
            raise InvalidInput("workers per step need the steps: set per_step")
        n_numbers = result.workers.seconds.size
        if n_numbers > MAX_NUMBERS:
            raise TooLarge(
                f"{result.workers.rank.size:,} workers in {result.steps.size:,} steps are {n_numbers:,} "
                f"numbers; at most {MAX_NUMBERS:,} are written",
                hint="send fewer steps; the mean of every worker is always in the answer",
            )
        ratios = np.round(result.workers.seconds / result.ideal, 6)
        answer["steps"]["by_worker"] = finite(
            {int(rank): row.tolist() for rank, row in zip(result.workers.rank, ratios, strict=True)}
        )
    if extras.scenario_seconds is not None:
        answer["scenarios"] = finite(_outcomes(result, extras))
    return answer


def _outcomes(result: WhatIf, extras: Extras) -> list[dict[str, Any]]:
    assert extras.scenario_seconds is not None  # noqa: S101  (checked by the callers)
    before, lost = float(result.no_delay.mean()), result.seconds_lost_per_step
    outcomes = []
    for scenario, mean in zip(extras.scenarios, extras.scenario_seconds.mean(axis=1), strict=True):
        saved = before - float(mean)
        outcomes.append(
            {
                "name": scenario.name,
                "step_seconds": float(mean),
                "seconds_saved_per_step": saved,
                "speedup": before / float(mean) if mean > 0 else float("nan"),
                "share_of_loss": saved / lost if lost > 0 else float("nan"),
            }
        )
    return outcomes


def render(result: WhatIf, form: Format, extras: Extras | None = None) -> str:
    """The answer as text, in one of the formats."""
    extras = extras or Extras()
    if form == "json":
        return json.dumps(document(result, extras), indent=2, allow_nan=False)
    if form == "published":
        return json.dumps(finite(result.published()), indent=4, allow_nan=False)
    return table(result) + _scenario_table(result, extras)


def _scenario_table(result: WhatIf, extras: Extras) -> str:
    if extras.scenario_seconds is None:
        return ""
    lines = ["", "", f"{'scenario':<28} {'step [s]':>9} {'saved [s]':>10} {'speed-up':>9}"]
    lines += [
        f"{one['name'][:28]:<28} {one['step_seconds']:9.4g} {one['seconds_saved_per_step']:10.4g} "
        f"{one['speedup']:9.4f}"
        for one in _outcomes(result, extras)
    ]
    return "\n".join(lines)


def table(result: WhatIf) -> str:
    """Text report: totals, then the slowdown that each component causes alone."""
    lines = [
        *_totals(result),
        "",
        *_slowdowns("operation type" if result.source == "operations" else "phase", result, "type"),
        "",
        *_slowdowns("stage", result, "stage"),
        *_slowest_workers(result),
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


def _slowest_workers(result: WhatIf) -> list[str]:
    """Lines on the slowest ranks; none if only one rank was measured, which compares with no other."""
    if result.workers.rank.size < 2:
        return []
    exact = result.workers.slowdown(result.ideal)
    order = np.argsort(-exact, kind="stable")[:SHOWN_WORKERS]
    lines = [
        "",
        f"{'rank':<8} {'data rank':>9} {'stage':>6} {'S alone':>9}   (slowest {order.size} of {exact.size})",
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


def worker_grid(result: WhatIf) -> FloatArray:
    """Largest exact slowdown of each (data rank, stage).

    Returns
    -------
    ndarray of shape (n_data, n_stages)
        NaN where no rank was traced.
    """
    exact = result.workers.slowdown(result.ideal)
    _, data_rank = np.unique(result.workers.data_rank, return_inverse=True)
    grid = np.full((int(data_rank.max()) + 1, int(result.workers.stage.max()) + 1), np.nan)
    place = (data_rank, result.workers.stage)
    np.fmax.at(grid, place, exact)
    return grid


def write_heatmap(result: WhatIf, path: str | PathLike[str]) -> None:
    """Draw the slowdown per data rank and stage into an image file; its suffix gives the type.

    Raises
    ------
    MissingExtra
        If matplotlib is not installed.
    SourceError
        If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MissingExtra(
            "a heat map needs matplotlib", hint="pip install 'straggler-rca[train]'"
        ) from error
    grid = worker_grid(result)
    n_data, n_stages = grid.shape
    # `Figure` without pyplot needs neither global state nor a display.
    figure = Figure(
        figsize=(2.5 + 0.5 * min(n_stages, 24), 1.8 + 0.3 * min(n_data, 40)), layout="constrained"
    )
    axes = figure.add_subplot()
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", vmin=1.0, vmax=max(1.05, float(np.nanmax(grid))))
    axes.set(
        xlabel="pipeline stage",
        ylabel="data rank",
        title=f"slowdown by one worker alone, S = {result.slowdown:.3f}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="S alone")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot write {path}: {error}") from error
