"""What timers can tell: own work from the exchange with others, transfer from waiting, who is late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet

_MEASURED = WINDOW_FEATURES.index("communication_measured")
_OWN_EXCESS = RANK_FEATURES.index("own_excess")
#: Own work above peers, relative to the step, that is plain enough to tell who of several is late.
PLAINLY_LATE = 0.05
#: The others of them are late if they are at least `AS_LATE` of the latest, and are not up to `IDLE` of it.
AS_LATE, IDLE = 0.5, 0.1


def own_work_is_told(ranks: Sequence[int], features: FeatureSet) -> bool:
    """Whether timers tell any of these ranks' own work from waiting for others.

    Not where the exchange has no timer (steps are as long on every rank then, or the phase in which everybody
    waits is), nor of ranks without rows, where one rank reports for its node.
    """
    return bool(features.window[_MEASURED] > 0 and np.isfinite(features.work.own[list(ranks)]).any())


def transfer_is_told(features: FeatureSet) -> bool:
    """Whether transfer was told from waiting, not only taken for the shortest communication of all.

    Where ranks meet several times a step, or stages wait for each other, everybody waits somewhere, and the
    shortest communication grows without any link being slow.
    """
    return bool(np.isfinite(features.phases.phase("communication_transfer_seconds")).any())


def late_members(ranks: Sequence[int], features: FeatureSet) -> list[int] | None:
    """Those of several suspects that are late, where timers say plainly who is and who is not.

    Parameters
    ----------
    ranks : sequence of int
        Suspected together.
    features : FeatureSet

    Returns
    -------
    list of int or None
        None if all are late or none is, if one is between the two, or if no timer tells.
    """
    own = features.rank[list(ranks), _OWN_EXCESS]
    latest = float(np.nanmax(np.append(own, 0.0)))
    if latest < PLAINLY_LATE or not own_work_is_told(ranks, features):
        return None
    late, idle = own >= AS_LATE * latest, own <= IDLE * latest
    if late.all() or not (late | idle).all():
        return None
    return [rank for rank, is_late in zip(ranks, late, strict=True) if is_late]
