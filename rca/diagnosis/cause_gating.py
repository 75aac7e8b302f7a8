"""When a cause may be named, and which signal would settle it where none may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rca.diagnosis.causes import catalogued
from rca.diagnosis.data_quality import listed
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import Cause, Evidence
from rca.telemetry.causes import CAUSES, UNKNOWN

#: Share of its ranks' excess that a cause has to answer for.
MIN_COVERAGE = 0.5
#: Belief by which the first cause has to lead the next one of the same ranks.
MIN_MARGIN = 0.1
#: A cause with less than this share of the slowdown is not its explanation while most of it is open.
MIN_SHARE, MOSTLY_OPEN = 0.2, 0.5
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


def objection(causes: Sequence[Cause], pricing: Pricing, threshold: float) -> str | None:
    """Why the first cause may not be named, a sentence for people; None if it may.

    Parameters
    ----------
    causes : sequence of Cause
        The first to name comes first; `unknown` is none that is named.
    pricing : Pricing
    threshold : float
        Least belief.
    """
    found = catalogued(causes)
    if unexplained := _unexplained(causes, threshold):
        return unexplained
    if not found:
        return "no cause of the suspects explains lost time"
    first = found[0]
    if against := contradicting_evidence(first):
        measured = ", ".join(evidence.signal for evidence in against)
        return f"{first.cause} fits, but its own signals were measured and are normal: {measured}"
    if first.probability < threshold:
        return f"no cause is certain enough to be named: {_candidates(found)}"
    # Crash or hang matters less than that the job stands still, and nothing of a stopped job is priced.
    if not pricing.causes:
        return None
    if first.probability - _second(found, pricing) < MIN_MARGIN:
        return f"no cause leads the next one clearly: {_candidates(found)}"
    if not covers_the_loss(first, pricing):
        return f"{first.cause} is likely but explains less than half of the delay of its ranks"
    if _leaves_the_slowdown_open(first, pricing):
        share = f"{first.share:.0%} of the slowdown"
        return f"{first.cause} is likely but explains {share}; most of the delay has no known cause"
    return None


def _unexplained(causes: Sequence[Cause], threshold: float) -> str | None:
    """Whose slowness nothing in the catalogue explains, where no cause of it is to be named instead."""
    unknown = next((cause for cause in causes if cause.cause == UNKNOWN), None)
    if unknown is None or any(cause.probability >= threshold for cause in catalogued(causes)):
        return None
    return f"no cause of the catalogue explains what {listed(unknown.ranks)} lost ({unknown.probability:.2f})"


def contradicting_evidence(cause: Cause) -> list[Evidence]:
    """Signals that belong to the cause, were measured, and are normal."""
    return [evidence for evidence in cause.evidence if evidence.direction == "against"]


def _second(found: Sequence[Cause], pricing: Pricing) -> float:
    """Belief in the next cause of the first one's suspects."""
    whose, *others = (pricing.suspects_of(cause.cause, cause.ranks) for cause in found)
    rest = [cause.probability for cause, of in zip(found[1:], others, strict=True) if whose & of]
    return max(rest, default=0.0)


def _leaves_the_slowdown_open(first: Cause, pricing: Pricing) -> bool:
    total = pricing.attribution.slowdown
    if total <= 0:
        return False
    return first.share < MIN_SHARE and pricing.open_seconds > MOSTLY_OPEN * total


def _candidates(found: Sequence[Cause]) -> str:
    chances: dict[str, float] = {}
    for cause in found:
        chances[cause.cause] = max(chances.get(cause.cause, 0.0), cause.probability)
    likeliest = sorted(chances.items(), key=lambda item: (-item[1], item[0]))[:3]
    shown = ", ".join(f"{name} ({chance:.2f})" for name, chance in likeliest)
    return f"between {shown}" if len(likeliest) > 1 else f"only {shown} is in question"


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
