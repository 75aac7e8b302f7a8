"""Corrections of predicted gains, from the actions of all incidents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from rca.recovery.outcomes import Correction, correction
from rca_api.actions.tables import TakenActionRow

#: Newest actions with an observed gain that count.
_NEWEST = 5000


def corrections(session: Session) -> dict[str, Correction]:
    """How the gain of each action compares with its predictions, for actions with an observed gain.

    Predictions count as they were without the correction that they include.
    """
    statement = select(
        TakenActionRow.action,
        TakenActionRow.incident_id,
        TakenActionRow.observed,
        TakenActionRow.predicted,
        TakenActionRow.correction,
    ).where(
        TakenActionRow.observed.is_not(None),
        TakenActionRow.predicted.is_not(None),
        TakenActionRow.correction > 0,
    )
    gains: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for action, incident, observed, predicted, included in session.execute(
        statement.order_by(TakenActionRow.taken_at.desc()).limit(_NEWEST)
    ):
        if observed is not None and predicted is not None:
            gains[action][incident].append((observed, predicted / included))
    found = {action: correction(held) for action, held in sorted(gains.items())}
    return {action: each for action, each in found.items() if each.n}


def factors(found: Mapping[str, Correction]) -> dict[str, float]:
    """The factors of corrections, as a site has them."""
    return {action: each.factor for action, each in found.items()}
