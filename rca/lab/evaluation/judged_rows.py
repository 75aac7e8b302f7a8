"""The table of judged answers: a row per window, set of signals and method; groupings of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.scores import Judged, judge
from rca.lab.evaluation.signal_sets import SIGNAL_SETS, TELEMETRY, telemetry_of
from rca.sources.labels import WindowLabel
from rca.window.causes import CAUSES
from rca.window.window import Window

if TYPE_CHECKING:
    import pyarrow as pa

PRODUCT = "straggler-rca"
HEALTHY = "healthy"
NOT_KNOWN = "not known"

SEVERITIES = ((1 / 3, "mild, below 1/3"), (2 / 3, "medium, below 2/3"), (math.inf, "severe, from 2/3"))
SLOWDOWNS = (
    (1.08, "below 8 % longer steps"),
    (1.15, "8 to 15 % longer steps"),
    (1.5, "15 to 50 % longer steps"),
    (math.inf, "over 50 % longer steps"),
)
WORLD_SIZES = (
    (8, "1 to 8 ranks"),
    (32, "9 to 32 ranks"),
    (128, "33 to 128 ranks"),
    (math.inf, "over 128 ranks"),
)


@dataclass(frozen=True)
class JudgedRow:
    """One judged answer of one method to one window, with the facts for groupings.

    Attributes
    ----------
    window, source : str
        Id in the collection, and the source in the label; in `rca generalise` what was held out.
    cause : str
        First cause of the label; "healthy" without one.
    severity : float
        Largest severity of the label's causes, 0 to 1; NaN if unknown.
    hours : float
        Length of the window.
    signals : str
        Key of `rca.lab.evaluation.signal_sets.SIGNAL_SETS`.
    first_cause : str
        First cause of the answer, or its failure mode without a cause.
    delay_steps : float
        `rca.lab.evaluation.detection_delay.detection_delay`; NaN if it was not measured.
    slowdown : float
        Step time with the fault over step time without it, by the label; NaN if unknown.
    telemetry : str
        Of `rca.lab.evaluation.signal_sets.TELEMETRY`, for the whole window, whatever `signals` are.
    mechanism : str
        What made a simulated window slow or not (see `rca.lab.simulation.mechanisms`), if the label says.
    """

    window: str
    source: str
    cause: str
    severity: float
    world_size: int
    hours: float
    signals: str
    method: str
    first_cause: str
    judged: Judged
    delay_steps: float = math.nan
    slowdown: float = math.nan
    telemetry: str = NOT_KNOWN
    mechanism: str = NOT_KNOWN


def judged_row(
    name: str,
    window: Window,
    label: WindowLabel,
    *,
    signals: str,
    method: str,
    answer: MethodAnswer,
    delay_steps: float = math.nan,
) -> JudgedRow:
    """Judge an answer and add the facts about its window."""
    severities = [cause.severity for cause in label.causes if cause.severity is not None]
    return JudgedRow(
        window=name,
        source=label.source,
        cause=label.causes[0].cause if label.causes else HEALTHY,
        severity=max(severities, default=math.nan),
        world_size=window.job.world_size,
        hours=(window.job.end - window.job.start) / 3600,
        signals=signals,
        method=method,
        first_cause=answer.causes[0].cause if answer.causes else answer.mode,
        judged=judge(answer, label, first_step=_first_step(window)),
        delay_steps=delay_steps,
        slowdown=_slowdown(label),
        telemetry=telemetry_of(window),
        mechanism=str((label.model_extra or {}).get("mechanism", NOT_KNOWN)),
    )


def _first_step(window: Window) -> int | None:
    steps = window.steps.column("step").to_numpy()
    return int(steps.min()) if steps.size else None


def _slowdown(label: WindowLabel) -> float:
    impact = (label.model_extra or {}).get("impact")
    return float(impact["ratio"]) if isinstance(impact, dict) and impact.get("ratio") else math.nan


def _slowdown_band(row: JudgedRow) -> str:
    if row.cause == HEALTHY:
        return HEALTHY
    return NOT_KNOWN if math.isnan(row.slowdown) else _band(row.slowdown, SLOWDOWNS, closed=False)


def _severity(row: JudgedRow) -> str:
    if row.cause == HEALTHY:
        return HEALTHY
    return NOT_KNOWN if math.isnan(row.severity) else _band(row.severity, SEVERITIES, closed=False)


def _band(value: float, bands: Sequence[tuple[float, str]], *, closed: bool) -> str:
    return next(name for top, name in bands if value < top or (closed and value == top))


GROUPINGS: dict[str, Callable[[JudgedRow], str]] = {
    "cause": lambda row: row.cause,
    "severity": _severity,
    "slowdown": _slowdown_band,
    "world_size": lambda row: _band(row.world_size, WORLD_SIZES, closed=True),
    "telemetry": lambda row: row.telemetry,
    "source": lambda row: row.source,
    "signals": lambda row: row.signals,
    "mechanism": lambda row: row.mechanism,
}
_ORDER = (
    HEALTHY,
    *CAUSES,
    *(name for _, name in SEVERITIES),
    *(name for _, name in SLOWDOWNS),
    *(name for _, name in WORLD_SIZES),
    *TELEMETRY,
    *SIGNAL_SETS,
)


def grouped(rows: Sequence[JudgedRow], by: str) -> dict[str, list[JudgedRow]]:
    """Rows by group, groups in their natural order.

    Parameters
    ----------
    by : str
        Key of `GROUPINGS`.
    """
    found: dict[str, list[JudgedRow]] = {}
    for row in rows:
        found.setdefault(GROUPINGS[by](row), []).append(row)
    return {name: found[name] for name in in_order(found, _ORDER)}


def in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Names in the order of `order`; all other names follow alphabetically."""
    place = {name: position for position, name in enumerate(order)}
    return sorted(names, key=lambda name: (place.get(name, len(place)), name))


def select(rows: Sequence[JudgedRow], *, signals: str | None = None, method: str) -> list[JudgedRow]:
    """Rows of one method, with one set of signals if given."""
    return [row for row in rows if row.method == method and signals in (None, row.signals)]


def methods_of(rows: Sequence[JudgedRow]) -> list[str]:
    """Methods in the order of their answers."""
    return list(dict.fromkeys(row.method for row in rows))


def to_table(rows: Sequence[JudgedRow]) -> pa.Table:
    """The rows as an Arrow table with flat columns; NaN stays NaN."""
    import pyarrow as pa

    flat = []
    for row in rows:
        facts = asdict(row)
        judged = facts.pop("judged")
        flat.append({**facts, **{_flat_name(name): value for name, value in judged.items()}})
    return pa.Table.from_pylist(flat)


def _flat_name(name: str) -> str:
    return {"mode": "true_mode", "answer": "answered_mode"}.get(name, name)
