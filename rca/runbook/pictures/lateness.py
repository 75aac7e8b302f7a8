"""Maps of lateness: ranks over steps, and pipeline stages over data ranks."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.diagnosis.result import Diagnosis
from rca.features.comparison import Comparison
from rca.features.work import Work
from rca.robust import nan_mean
from rca.runbook.numbers import seconds
from rca.runbook.pictures.svg import LINE, SHADES, WIDTH, Picture, box, line, picture, text
from rca.window.job import Topology
from rca.window.node_names import placed
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

#: Most rows and columns of a map; more ranks or steps share a cell.
MAX_ROWS, MAX_COLUMNS = 64, 120
#: Share of the late cells that are lighter than black.
FULL_SHADE = 0.98
#: Black is at least this share of a step: less is noise.
NOTABLE = 0.03
_LEFT, _TOP, _BOTTOM = 110.0, 6.0, 22.0


def lateness_pictures(diagnosis: Diagnosis, window: Window) -> list[Picture]:
    """The maps of a window with timed steps, if its answer blames ranks.

    Parameters
    ----------
    window : Window
        The diagnosed window.
    """
    if window.steps.num_rows == 0 or not diagnosis.stragglers:
        return []
    window = placed(window)
    topology = window.job.topology
    work = Work.from_phases(without_hidden_waits(PhaseArrays.from_window(window), topology), topology)
    if work.steps.size < 2 or not np.isfinite(work.own).any():
        return []
    comparison = Comparison.from_work(work, topology)
    late = np.maximum(np.nan_to_num(comparison.excess), 0.0)
    if not late.max() > 0:
        return []
    blamed = np.zeros(topology.n_ranks, dtype=bool)
    for straggler in diagnosis.stragglers:
        blamed[straggler.ranks] = True
    found = [_heat_map(late, work.steps, work.step_reference, blamed, diagnosis)]
    inside = comparison.segment.mask(work.steps.size)
    if topology.n_stages > 1 and int(topology.data_rank.max()) < MAX_ROWS:
        # Peers of a rank are of its stage, so stages are compared by their work.
        busy = nan_mean(work.own[:, inside].T)
        found.append(_stage_map(np.nan_to_num(busy - np.nanmedian(busy)), blamed, topology))
    return found


def _heat_map(
    late: FloatArray, steps: IntArray, step: float, blamed: BoolArray, diagnosis: Diagnosis
) -> Picture:
    """Rows of ranks, columns of steps; the darker, the later."""
    rows = _groups(late.shape[0], MAX_ROWS)
    columns = _groups(late.shape[1], MAX_COLUMNS)
    by_column = np.add.reduceat(late, columns[:-1], axis=1) / np.diff(columns)
    # The latest rank of a row stays visible among its quick neighbours.
    cells = np.maximum.reduceat(by_column, rows[:-1], axis=0)
    # A single very late step must not make all others white.
    top = max(float(np.quantile(cells[cells > 0], FULL_SHADE)), NOTABLE * step)
    height = max(5.0, min(18.0, 360.0 / cells.shape[0]))
    width = (WIDTH - _LEFT - 4) / cells.shape[1]
    is_blamed = np.logical_or.reduceat(blamed, rows[:-1])
    elements: list[Markup] = []
    for row, values in enumerate(cells):
        y = _TOP + row * height
        elements += _shaded(values / top, _LEFT, y, width, height - 1)
        if height >= LINE * 0.7:
            elements.append(_name(rows, row, row + 1, y + height - 2, strong=bool(is_blamed[row])))
    for first, end in _runs(is_blamed):
        y, tall = _TOP + first * height, (end - first) * height - 1
        elements.append(box(_LEFT, y, width * cells.shape[1], tall, "frame"))
        if height < LINE * 0.7:
            elements.append(_name(rows, first, end, y + tall / 2 + 4, strong=True))
    foot = _TOP + cells.shape[0] * height
    for number in {int(steps[0]), int(steps[-1]), *_onsets(diagnosis)}:
        column = int(np.clip(np.searchsorted(steps, number), 0, steps.size - 1))
        x = _LEFT + (np.searchsorted(columns, column, side="right") - 1) * width
        x = min(float(x), WIDTH - 4)
        is_onset = number in _onsets(diagnosis)
        elements.append(line(x, _TOP, x, foot + 4, "onset" if is_onset else "thin"))
        anchor = "end" if x > WIDTH - 60 else "start"
        elements.append(text(x, foot + 16, f"step {number}", anchor=anchor, strong=is_onset))
    return picture(
        "Lateness of ranks over steps",
        f"The darker, the later than its peers; black is {seconds(top)} per step or more. "
        "Frames mark blamed ranks, the dashed line the onset.",
        foot + _BOTTOM,
        *elements,
    )


def _name(rows: IntArray, first: int, end: int, y: float, *, strong: bool) -> Markup:
    """The ranks of some rows, to the left of them."""
    low, high = int(rows[first]), int(rows[end]) - 1
    words = f"rank {low}" if low == high else f"ranks {low}-{high}"
    return text(_LEFT - 6, y, words, anchor="end", strong=strong)


def _runs(marked: BoolArray) -> list[tuple[int, int]]:
    """First and end of each run of marked neighbours."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return list(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))


def _onsets(diagnosis: Diagnosis) -> set[int]:
    first = [each.first_step for each in diagnosis.stragglers if each.first_step is not None]
    return {min(first)} if first else set()


def _shaded(values: FloatArray, x: float, y: float, width: float, height: float) -> list[Markup]:
    """Cells of one row; neighbours of one shade are one box, and white ones are left out."""
    shades = np.round(np.clip(values, 0.0, 1.0) * SHADES).astype(int)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(shades)) + 1, [shades.size]])
    return [
        box(x + first * width, y, (end - first) * width, height, "shade", shades[first] / SHADES)
        for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        if shades[first]
    ]


def _groups(n_values: int, most: int) -> IntArray:
    """Bounds of at most `most` groups of neighbours, shape (n_groups + 1,)."""
    size = -(-n_values // most)
    return np.append(np.arange(0, n_values, size), n_values)


def _stage_map(more: FloatArray, blamed: BoolArray, topology: Topology) -> Picture:
    """Rows of stages, columns of data ranks; the busiest rank of a tensor group counts."""
    n_columns = int(topology.data_rank.max()) + 1
    cells = np.zeros((topology.n_stages, n_columns))
    marked = np.zeros(cells.shape, dtype=bool)
    np.maximum.at(cells, (topology.stage, topology.data_rank), more)
    np.logical_or.at(marked, (topology.stage, topology.data_rank), blamed)
    top = max(float(cells.max()), 1e-12)
    width, height = min(40.0, (WIDTH - _LEFT - 4) / n_columns), 24.0
    elements: list[Markup] = []
    for stage, values in enumerate(cells):
        y = _TOP + stage * height
        elements.append(text(_LEFT - 6, y + height - 8, f"stage {stage}", anchor="end"))
        elements += _shaded(values / top, _LEFT, y, width, height - 1)
        elements += [
            box(
                _LEFT + column * width, y, width - 1, height - 1, "frame" if marked[stage, column] else "cell"
            )
            for column in range(n_columns)
        ]
    foot = _TOP + topology.n_stages * height
    elements += [
        text(_LEFT, foot + 16, "data rank 0"),
        text(_LEFT + n_columns * width, foot + 16, str(n_columns - 1), anchor="end"),
    ]
    return picture(
        "Work of pipeline stages and data ranks",
        f"Work above that of the median rank in the slow steps; black is {seconds(top)} per step. "
        "Frames mark blamed ranks.",
        foot + _BOTTOM,
        *elements,
    )
