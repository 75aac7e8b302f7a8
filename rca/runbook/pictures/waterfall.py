"""From the measured step to the ideal one: what each cause costs."""

from __future__ import annotations

from math import inf

from rca.diagnosis.result import Diagnosis
from rca.runbook.numbers import rank_list, seconds
from rca.runbook.pictures.svg import LINE, Picture, box, line, picture, shortened, text

MAX_CAUSES = 6
_LEFT, _RIGHT, _ROW = 230.0, 610.0, 26.0


def waterfall(diagnosis: Diagnosis) -> Picture | None:
    """Bars of the measured step, of each cause and of the ideal step; None where the cost is unknown."""
    ratio, lost = diagnosis.slowdown.ratio, diagnosis.slowdown.seconds_per_step
    priced = [each for each in diagnosis.causes if each.seconds_per_step is not None]
    if ratio is None or lost is None or not priced:
        return None
    # Also False for what is no number.
    if not (1.0 < ratio < inf and 0.0 < lost < inf):
        return None
    measured = lost * ratio / (ratio - 1.0)
    bars = [("measured step", 0.0, measured, "bar")]
    at = measured
    for cause in priced[:MAX_CAUSES]:
        cost = cause.seconds_per_step or 0.0
        place = f"{cause.cause}, rank{'s' if len(cause.ranks) > 1 else ''} {rank_list(cause.ranks)}"
        bars.append((place, at - cost, cost, "blamed"))
        at -= cost
    rest = at - (measured - lost)
    if abs(rest) > 0.005 * measured:
        bars.append(("unexplained", at - rest, rest, "open"))
    bars.append(("ideal step", 0.0, measured - lost, "bar"))
    scale = (_RIGHT - _LEFT) / measured
    elements = []
    for row, (name, start, length, class_) in enumerate(bars):
        y = row * _ROW + 4
        begin, width = min(start, start + length), abs(length)
        elements += [
            text(_LEFT - 8, y + LINE - 2, shortened(name, 34), anchor="end"),
            box(_LEFT + begin * scale, y, width * scale, LINE + 2, class_),
            text(_RIGHT + 8, y + LINE - 2, seconds(length, signed=class_ != "bar")),
        ]
        if row:
            x = _LEFT + (start + length) * scale if class_ != "bar" else _LEFT + length * scale
            elements.append(line(x, y - 4, x, y, "thin"))
    return picture(
        "From the measured step to the ideal one",
        "Each dark bar is what one cause adds to the mean step.",
        len(bars) * _ROW + 6,
        *elements,
    )
