"""Numbers and rank lists as a tired person reads them: few digits, one unit, no exponents."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SECOND_UNITS = {"s", "second", "seconds"}
_TIME_SHARES = {"s/s", "seconds/s"}
_SPELLED = {"ratio": "", "1": "", "count": "", "percent": "%", "celsius": "°C", "fraction": ""}
UNKNOWN = "unknown"


def _digits(value: float, significant: int = 3) -> str:
    """`value` with at most `significant` digits, thousands grouped, no exponent, no trailing zeros."""
    if value == 0:
        return "0"
    before_point = math.floor(math.log10(abs(value))) + 1
    decimals = max(0, min(significant - before_point, 6))
    text = f"{value:,.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"-0", "0"} else text


def _scale(largest: float) -> tuple[float, str]:
    """Factor and unit in which durations up to `largest` seconds read best."""
    size = abs(largest)
    if size == 0 or 1.0 <= size < 120.0:
        return 1.0, "s"
    if size < 1e-3:
        return 1e6, "µs"
    if size < 1.0:
        return 1e3, "ms"
    return (1 / 60, "min") if size < 7200 else (1 / 3600, "h")


def seconds(value: float | None, *, signed: bool = False) -> str:
    """``0.0321`` as ``32.1 ms``; `signed` puts a ``+`` before what is lost."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    factor, unit = _scale(value)
    text = f"{_digits(value * factor)} {unit}"
    return f"+{text}" if signed and value > 0 else text


def seconds_interval(interval: tuple[float, float] | None) -> str:
    """Both ends in one unit: ``28 to 36 ms``."""
    if interval is None or not all(math.isfinite(end) for end in interval):
        return UNKNOWN
    factor, unit = _scale(max(interval, key=abs))
    low, high = (_digits(end * factor) for end in interval)
    return f"{low} to {high} {unit}"


def ratio(value: float | None) -> str:
    """``1.283`` as ``1.28x``."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.2f}x"


def percent(value: float) -> str:
    """Show a share as ``83 %``; what is not quite nothing reads ``<1 %``."""
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.01:
        return "<1 %"
    return f"{value * 100:.0f} %"


def quantity(value: float | None, unit: str) -> str:
    """Show a signal's value in its own unit; seconds are scaled, ratios carry none.

    Seconds per second, which is what counters of busy or waiting time give, read as per cent.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if unit.lower() in _SECOND_UNITS:
        return seconds(value)
    if unit.lower() in _TIME_SHARES:
        return f"{_digits(value * 100)} %"
    if unit == "ns/s":
        return f"{_digits(value / 1e7)} %"
    if unit == "steps":
        return _step_count(value)
    shown = _SPELLED.get(unit.lower(), unit)
    return f"{_digits(value, 4)} {shown}".rstrip()


def _step_count(value: float) -> str:
    """``8.9 steps``, and ``less than one step`` for a part of one."""
    if 0 < value < 1:
        return "less than one step"
    text = f"{value:,.1f}".removesuffix(".0")
    return f"{text} step" if text == "1" else f"{text} steps"


def count(value: int, noun: str) -> str:
    """``1 step``, ``2 steps``, ``31,619 samples``."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def rank_list(ranks: Sequence[int]) -> str:
    """Sorted ranks with runs folded: ``0-7,12``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def steps(first: int | None, last: int | None) -> str:
    """``21-51``, ``from 21``, ``until 51`` or ``all``."""
    if first is None and last is None:
        return "all"
    if first is None:
        return f"until {last}"
    if last is None:
        return f"from {first}"
    return str(first) if first == last else f"{first}-{last}"
