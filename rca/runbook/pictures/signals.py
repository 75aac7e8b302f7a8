"""The blamed signals over time, beside those of the peers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import numpy as np
from markupsafe import Markup

from rca.arrays import BoolArray, FloatArray
from rca.diagnosis.result import Diagnosis
from rca.robust import nan_median, nan_quantile
from rca.runbook.numbers import quantity
from rca.runbook.phrases import label_of
from rca.runbook.pictures.svg import WIDTH, Picture, line, picture, tag, text
from rca.window.catalogue import channels, unit_of_channel
from rca.window.node_names import placed
from rca.window.signals.signal_arrays import SignalArrays
from rca.window.window import Window

MAX_SIGNALS = 3
#: Intervals in which samples are averaged.
MAX_BINS = 80
#: Least share of intervals with a sample; else intervals are made longer.
MIN_KNOWN = 0.6
_LEFT, _TOP, _HEIGHT, _BOTTOM = 110.0, 10.0, 110.0, 24.0


def signal_pictures(diagnosis: Diagnosis, window: Window) -> list[Picture]:
    """A picture of each exporter signal that is evidence for the first cause.

    Parameters
    ----------
    window : Window
        The diagnosed window.
    """
    if not diagnosis.causes or window.metrics.num_rows == 0:
        return []
    first = diagnosis.causes[0]
    wanted = [each.signal for each in first.evidence if each.signal in channels()]
    wanted = list(dict.fromkeys(wanted))[:MAX_SIGNALS]
    if not wanted:
        return []
    window = placed(window)
    blamed = np.zeros(window.job.world_size, dtype=bool)
    blamed[first.ranks] = True
    edges, values = _binned(window, wanted)
    found = (_signal(name, values[name], blamed, edges, diagnosis) for name in wanted if name in values)
    return [each for each in found if each is not None]


def _binned(window: Window, wanted: Iterable[str]) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Interval bounds, and the means of each signal, shape (n_ranks, n_bins)."""
    n_bins = MAX_BINS
    while True:
        edges = np.linspace(window.job.start, window.job.end, n_bins + 1)
        signals = SignalArrays.from_window(window, edges)
        values = {name: signals.values[name] for name in wanted if name in signals.values}
        known = [float(np.isfinite(each).any(axis=0).mean()) for each in values.values()]
        if n_bins <= 10 or min(known, default=1.0) >= MIN_KNOWN:
            return edges, values
        n_bins //= 2


def _signal(
    name: str, values: FloatArray, blamed: BoolArray, edges: FloatArray, diagnosis: Diagnosis
) -> Picture | None:
    """Thick: the median blamed rank; dashed: the median of the others, in the band of their middle 80 %."""
    own = nan_median(values[blamed])
    others = values[~blamed]
    rows = [own]
    if others.size:
        rows += [nan_median(others), nan_quantile(others, 0.1), nan_quantile(others, 0.9)]
    known = np.concatenate([row[np.isfinite(row)] for row in rows])
    if known.size == 0 or not np.isfinite(own).any():
        return None
    low, high = float(known.min()), float(known.max())
    # A scale that nearly begins at 0 begins there.
    low = min(low, 0.0) if low < high / 2 else low
    if high <= low:
        high = low + 1.0
    middle = (edges[:-1] + edges[1:]) / 2
    x = _LEFT + (middle - edges[0]) / (edges[-1] - edges[0]) * (WIDTH - _LEFT - 6)

    def y(row: FloatArray) -> FloatArray:
        return np.asarray(_TOP + _HEIGHT * (1.0 - (row - low) / (high - low)))

    elements: list[Markup] = []
    if others.size:
        elements += [_band(x, y(rows[2]), y(rows[3])), _curve(x, y(rows[1]), "peers")]
    elements.append(_curve(x, y(own), "own"))
    unit = unit_of_channel(name)
    foot = _TOP + _HEIGHT
    elements += [
        line(_LEFT, foot, WIDTH - 6, foot, "thin"),
        text(_LEFT - 6, _TOP + 8, quantity(high, unit), anchor="end"),
        text(_LEFT - 6, foot, quantity(low, unit), anchor="end"),
    ]
    elements += _moments(diagnosis, edges, foot)
    label = label_of(name).split(";")[0] or name
    return picture(
        f"{label[0].upper()}{label[1:]}",
        "Thick line: the median blamed rank. Dashed line and band: median and middle 80 % of their peers.",
        foot + _BOTTOM,
        *elements,
    )


def _moments(diagnosis: Diagnosis, edges: FloatArray, foot: float) -> list[Markup]:
    """Lines at the onset and at its end."""
    found: list[Markup] = []
    span = float(edges[-1] - edges[0])
    marks: tuple[tuple[str, datetime | None], ...] = (("onset", diagnosis.since), ("over", diagnosis.until))
    for name, moment in marks:
        if moment is None:
            continue
        x = _LEFT + min(max((moment.timestamp() - float(edges[0])) / span, 0.0), 1.0) * (WIDTH - _LEFT - 6)
        anchor = "end" if x > WIDTH - 120 else "start"
        found += [
            line(x, _TOP, x, foot + 4, "onset"),
            text(x, foot + 17, f"{name} {moment:%H:%M:%S} UTC", anchor=anchor, strong=True),
        ]
    return found


def _curve(x: FloatArray, y: FloatArray, class_: str) -> Markup:
    known = np.isfinite(y)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[known], y[known], strict=True))
    return tag("polyline", points=points, class_=class_)


def _band(x: FloatArray, low: FloatArray, high: FloatArray) -> Markup:
    known = np.isfinite(low) & np.isfinite(high)
    there = [f"{a:.1f},{b:.1f}" for a, b in zip(x[known], low[known], strict=True)]
    back = [f"{a:.1f},{b:.1f}" for a, b in zip(x[known], high[known], strict=True)][::-1]
    return tag("polygon", points=" ".join([*there, *back]), class_="band")
