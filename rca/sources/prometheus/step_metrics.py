"""Which metrics of a server are times of training steps, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rca.sources.prometheus.label_map import StepTimeSeries

#: Words of a metric's name: of a step, of a time, and of times that are a part of a step or no training.
_STEP = frozenset({"step", "steps", "iter", "iteration", "iterations", "batch"})
_TIME = frozenset({"time", "duration", "latency", "seconds", "ms", "milliseconds", "us", "microseconds"})
_OTHER = frozenset(
    {
        *("eval", "evaluation", "val", "validation", "test", "inference", "request", "decode", "prefill"),
        *("data", "load", "loader", "input", "forward", "backward", "optimizer", "checkpoint", "wait"),
        *("total", "size", "remaining", "eta", "timestamp", "created", "scheduler", "queue"),
    }
)
_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("s", "seconds"), 1.0),
    **dict.fromkeys(("ms", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "microseconds"), 1e-6),
}


@dataclass(frozen=True)
class StepMetric:
    """A metric of step times.

    Attributes
    ----------
    counted : bool
        Whether it is a histogram or a summary, with ``_sum`` and ``_count``.
    unit : float or None, seconds
        None where the name states none: seconds are assumed.
    """

    name: str
    counted: bool
    unit: float | None

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series that are read; the first one shows which there are."""
        return (f"{self.name}_count", f"{self.name}_sum") if self.counted else (self.name,)


def step_metrics(names: Sequence[str]) -> list[StepMetric]:
    """Metrics that look like times of training steps, the most telling first.

    Parameters
    ----------
    names : sequence of str
        Names of all metrics.
    """
    held = set(names)
    bases = {each.removesuffix("_sum") for each in held if f"{each.removesuffix('_sum')}_count" in held}
    found = [
        StepMetric(name, name in bases, _unit_of(name))
        for name in sorted({*bases, *held})
        if not name.endswith(("_sum", "_count", "_bucket")) and _is_step_time(name)
    ]
    # Every step counts in a histogram; a gauge shows the last one before a scrape.
    return sorted(found, key=lambda each: (not each.counted, "train" not in each.name.lower(), each.name))


def named_metric(wanted: StepTimeSeries, names: Sequence[str]) -> StepMetric:
    """The metric that a label map names."""
    counted = f"{wanted.metric}_count" in names and f"{wanted.metric}_sum" in names
    unit = _unit_of(wanted.metric) if wanted.unit is None else _UNITS[wanted.unit]
    return StepMetric(wanted.metric, counted, unit)


def _words(name: str) -> list[str]:
    return re.split(r"[_:.]+", name.lower())


def _is_step_time(name: str) -> bool:
    words = set(_words(name))
    return bool(words & _STEP and words & _TIME and not words & _OTHER)


def _unit_of(name: str) -> float | None:
    return next((_UNITS[word] for word in _words(name) if word in _UNITS), None)
