"""The causes that were considered, the phases that they lengthen, and the blamed path to the step."""

from __future__ import annotations

from markupsafe import Markup

from rca.diagnosis.result import Cause, Diagnosis
from rca.runbook.numbers import rank_list
from rca.runbook.pictures.svg import Picture, box, line, picture, shortened, text
from rca.window.causes import SPECS, UNKNOWN

MAX_CAUSES = 5
_X = (4.0, 250.0, 420.0, 600.0)
_WIDTHS = (200.0, 130.0, 140.0, 116.0)
_ROW, _BOX = 34.0, 24.0


def cause_graph(diagnosis: Diagnosis) -> Picture | None:
    """Causes, phases, ranks and step as boxes from left to right; None without a cause of slowness."""
    if not diagnosis.causes or diagnosis.causes[0].stops_the_job or diagnosis.causes[0].cause == UNKNOWN:
        return None
    first = diagnosis.causes[0]
    names = _candidates(diagnosis, first)
    phases = list(dict.fromkeys(phase for name in names for phase in SPECS[name].phases))
    n_rows = max(len(names), len(phases), 1)
    elements: list[Markup] = []
    causes = {name: _height(row, len(names), n_rows) for row, name in enumerate(names)}
    at = {phase: _height(row, len(phases), n_rows) for row, phase in enumerate(phases)}
    middle = _height(0, 1, n_rows)
    blamed = _lengthened(first)
    edges = [
        (causes[name], at[phase], 0, name == first.cause and phase in blamed)
        for name in names
        for phase in SPECS[name].phases
    ]
    edges += [(at[phase], middle, 1, phase in blamed) for phase in phases]
    edges.append((middle, middle, 2, True))
    # Thick lines last, so that thin ones do not cross them.
    for start, end, column, is_blamed in sorted(edges, key=lambda edge: edge[3]):
        x1, x2 = _X[column] + _WIDTHS[column], _X[column + 1]
        elements.append(line(x1, start + _BOX / 2, x2, end + _BOX / 2, "own" if is_blamed else "thin"))
    for name, y in causes.items():
        elements += _boxed(0, y, name, strong=name == first.cause)
    for phase, y in at.items():
        elements += _boxed(1, y, phase.replace("_", " "), strong=phase in blamed)
    ranks = f"rank{'s' if len(first.ranks) > 1 else ''} {rank_list(first.ranks)}"
    elements += [*_boxed(2, middle, ranks, strong=True), *_boxed(3, middle, "the job's step", strong=True)]
    return picture(
        "Possible causes and the blamed path",
        "Thick: the named cause, the phases that it lengthens, its ranks, and the step that waits for them.",
        n_rows * _ROW + 6,
        *elements,
    )


def _candidates(diagnosis: Diagnosis, first: Cause) -> list[str]:
    """The named cause, then those that are not ruled out on its ranks."""
    left = [
        name
        for straggler in diagnosis.stragglers
        if set(straggler.ranks) & set(first.ranks)
        for name in straggler.plausible_causes
    ]
    known = dict.fromkeys([first.cause, *left, *(each.cause for each in diagnosis.causes)])
    return [name for name in known if name in SPECS and SPECS[name].phases][:MAX_CAUSES]


def _lengthened(cause: Cause) -> set[str]:
    """Phases of the cause that its evidence shows to be longer; all of them where it shows none."""
    phases = set(SPECS[cause.cause].phases)
    shown = {
        each.signal.removesuffix("_seconds").removeprefix("communication_")
        for each in cause.evidence
        if each.direction == "for"
    }
    return phases & shown or phases


def _height(row: int, n_boxes: int, n_rows: int) -> float:
    """Top of a box in a column whose boxes are centred."""
    return 4 + (row + (n_rows - n_boxes) / 2) * _ROW


def _boxed(column: int, y: float, words: str, *, strong: bool) -> list[Markup]:
    x, width = _X[column], _WIDTHS[column]
    return [
        box(x, y, width, _BOX, "frame paper" if strong else "cell paper"),
        text(x + width / 2, y + 16, shortened(words, int(width / 7)), anchor="middle", strong=strong),
    ]
