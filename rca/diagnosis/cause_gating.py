"""When a cause may be named, and which missing signal would decide between causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rca.classify.decision_table import CERTAINLY_UNKNOWN, MIN_COVERAGE, MIN_MARGIN, MIN_SHARE, MOSTLY_OPEN
from rca.diagnosis.causes import catalogued
from rca.diagnosis.data_quality import listed
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import Cause, Evidence
from rca.telemetry.causes import CAUSES, UNKNOWN

#: Least probability on either side of the split that makes a signal worth collecting.
MIN_SPLIT = 0.1


def covers_the_loss(cause: Cause, pricing: Pricing) -> bool:
    """Whether the cause explains most of its ranks' excess; true for a stopped job, which has none.

    If most of the time was lost in phases that the cause does not lengthen, the cause is not known.
    """
    shares = [
        priced.coverage
        for priced in pricing.causes
        if priced.removal.cause == cause.cause and list(priced.removal.ranks) == cause.ranks
    ]
    return not shares or max(shares) >= MIN_COVERAGE


def is_certainly_unknown(causes: Sequence[Cause], threshold: float) -> bool:
    """Whether `unknown` is the answer: it comes first, is likely, and no cause of the catalogue may be named.

    Parameters
    ----------
    causes : sequence of Cause
        In the order of the answer.
    threshold : float
        Least probability of a named cause.
    """
    if not causes or causes[0].cause != UNKNOWN or causes[0].probability < CERTAINLY_UNKNOWN:
        return False
    return all(cause.probability < threshold for cause in catalogued(causes))


def objection(causes: Sequence[Cause], pricing: Pricing, threshold: float) -> str | None:
    """The sentence why the first cause may not be named; None if it may.

    Parameters
    ----------
    causes : sequence of Cause
        In the order of the answer.
    pricing : Pricing
    threshold : float
        Least probability.
    """
    if is_certainly_unknown(causes, threshold):
        return None
    found = catalogued(causes)
    if unexplained := _unexplained(causes, threshold):
        return unexplained
    if not found:
        return "no cause of the suspects explains lost time"
    first = found[0]
    if against := contradicting_evidence(first):
        measured = ", ".join(evidence.signal for evidence in against)
        return f"{first.cause} is the likeliest cause, but its own signals are normal: {measured}"
    if first.probability < threshold:
        return f"no cause is certain enough to be named: {_candidates(found)}"
    # Causes of a stopped job have no price, and the stop matters more than crash or hang.
    if not pricing.causes:
        return None
    if first.probability - _second(found, pricing) < MIN_MARGIN:
        return f"no cause is clearly likelier than the next: {_candidates(found)}"
    if not covers_the_loss(first, pricing):
        return f"{first.cause} is likely but explains less than half of the delay of its ranks"
    if _leaves_the_slowdown_open(first, pricing):
        share = f"{first.share or 0.0:.0%} of the slowdown"
        return f"{first.cause} is likely but explains {share}; most of the delay has no known cause"
    return None


def _unexplained(causes: Sequence[Cause], threshold: float) -> str | None:
    """The sentence on ranks that no catalogue cause explains; None if one is certain enough."""
    unknown = next((cause for cause in causes if cause.cause == UNKNOWN), None)
    if unknown is None or any(cause.probability >= threshold for cause in catalogued(causes)):
        return None
    return f"no known cause explains the delay of {listed(unknown.ranks)} ({unknown.probability:.2f})"


def contradicting_evidence(cause: Cause) -> list[Evidence]:
    """The cause's own signals that were measured and are normal."""
    return [evidence for evidence in cause.evidence if evidence.direction == "against"]


def _second(found: Sequence[Cause], pricing: Pricing) -> float:
    """Probability of the next cause of the first one's suspects."""
    suspects, *others = (pricing.suspects_of(cause.cause, cause.ranks) for cause in found)
    rest = [cause.probability for cause, of in zip(found[1:], others, strict=True) if suspects & of]
    return max(rest, default=0.0)


def _leaves_the_slowdown_open(first: Cause, pricing: Pricing) -> bool:
    total = pricing.attribution.slowdown
    if total <= 0:
        return False
    return (first.share or 0.0) < MIN_SHARE and pricing.open_seconds > MOSTLY_OPEN * total


def _candidates(found: Sequence[Cause]) -> str:
    chances: dict[str, float] = {}
    for cause in found:
        chances[cause.cause] = max(chances.get(cause.cause, 0.0), cause.probability)
    likeliest = sorted(chances.items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(f"{name} ({chance:.2f})" for name, chance in likeliest)


def deciding_resource(beliefs: Mapping[str, float], missing: Sequence[str]) -> str | None:
    """The unmeasured resource that would best decide between the candidates.

    Parameters
    ----------
    beliefs : mapping of cause to float
    missing : sequence of str
        Resources that the window lacks.

    Returns
    -------
    str or None
        The resource that splits the probability most evenly into causes that affect it and others. None if no
        missing resource splits it by `MIN_SPLIT`.
    """
    total = sum(beliefs.values())
    best, most = None, MIN_SPLIT
    for resource in missing:
        affecting = sum(belief for cause, belief in beliefs.items() if resource in CAUSES[cause].resources)
        split = min(affecting, total - affecting) / max(total, 1e-12)
        if split > most:
            best, most = resource, split
    return best
