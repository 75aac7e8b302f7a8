"""When a cause may be named, and which signal would settle it where none may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import Cause
from rca.telemetry.causes import CAUSES

#: Share of its ranks' excess that a cause has to answer for.
MIN_COVERAGE = 0.5
#: Belief that a signal must be able to move between candidates to be worth collecting.
MIN_SPLIT = 0.1


def covers_the_loss(cause: Cause, pricing: Pricing) -> bool:
    """Whether the cause answers for most of its ranks' excess; causes of a stopped job have none.

    A straggler whose time was mostly lost where the cause has no arrow is a straggler without a known cause.
    """
    shares = [
        priced.coverage
        for priced in pricing.causes
        if priced.removal.cause == cause.cause and list(priced.removal.ranks) == cause.ranks
    ]
    return not shares or max(shares) >= MIN_COVERAGE


def is_named(found: Sequence[Cause], pricing: Pricing, threshold: float) -> bool:
    """Whether the first cause is both probable enough and covers the loss."""
    return bool(found) and found[0].probability >= threshold and covers_the_loss(found[0], pricing)


def deciding_resource(beliefs: Mapping[str, float], missing: Sequence[str]) -> str | None:
    """The unmeasured resource that would tell the candidates apart best.

    Parameters
    ----------
    beliefs : mapping of cause to float
    missing : sequence of str
        Resources the window says nothing about.

    Returns
    -------
    str or None
        The resource that splits the belief most evenly into causes that move it and causes that do not; None
        if no missing one splits it noticeably.
    """
    total = sum(beliefs.values())
    best, most = None, MIN_SPLIT
    for resource in missing:
        moved = sum(belief for cause, belief in beliefs.items() if resource in CAUSES[cause].resources)
        split = min(moved, total - moved) / max(total, 1e-12)
        if split > most:
            best, most = resource, split
    return best
