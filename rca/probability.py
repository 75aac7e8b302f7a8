"""Probabilities as people read them."""

from __future__ import annotations

import math


def probability(value: float) -> str:
    """Two decimals, and never a certainty that rounding invented."""
    if not math.isfinite(value):
        return "unknown"
    if 0.995 <= value < 1.0:
        return ">0.99"
    return "<0.01" if value < 0.005 else f"{value:.2f}"
