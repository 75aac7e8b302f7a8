"""What timers can tell: own work from the exchange with others, transfer from waiting, who is late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component
from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet
from rca.features.resource_evidence import resource_names

_MEASURED = WINDOW_FEATURES.index("communication_measured")
_OWN_EXCESS, _OWN_EXCESS_Z, _GAIN_STAGE = (
    RANK_FEATURES.index(name) for name in ("own_time_excess", "own_time_excess_z", "gain_stage")
)
_STORAGE = resource_names().index("storage")
#: Own work above peers that is plain enough to tell who of several is late: relative to the step, and in
#: units of the healthy spread.
PLAINLY_LATE, BEYOND_NOISE = 0.015, 3.0
#: The others of them are late if they are at least `AS_LATE` of the latest, and are not up to `IDLE` of it.
AS_LATE, IDLE = 0.5, 0.25
#: Up to this share of a component is some of it.
MAX_LATE_SHARE = 0.5
#: A shared resource's score against peers from here on says that it is busy, in units.
SHARED_RESOURCE_BUSY = 1.0


def own_work_is_timed(ranks: Sequence[int], features: FeatureSet) -> bool:
    """Whether timers tell any of these ranks' own work from waiting for others.

    Not where the exchange has no timer (steps are as long on every rank then, or the phase in which everybody
    waits is), nor of ranks without rows, where one rank reports for its node.
    """
    return bool(features.window[_MEASURED] > 0 and np.isfinite(features.work.own[list(ranks)]).any())


def transfer_is_timed(features: FeatureSet) -> bool:
    """Whether transfer was told from waiting, not only taken for the shortest communication of all.

    Where ranks meet several times a step, or stages wait for each other, everybody waits somewhere, and the
    shortest communication grows without any link being slow.
    """
    return bool(np.isfinite(features.phases.phase("communication_transfer_seconds")).any())


def late_members(component: Component, features: FeatureSet) -> list[int] | None:
    """The few of a suspected node or stage that are late, where timers say plainly who is and who is not.

    Parameters
    ----------
    component : Component
        Of several ranks.
    features : FeatureSet

    Returns
    -------
    list of int or None
        None if more than half are late or none is, if one is between the two, if a stage costs more than its
        latest rank does, or if no timer tells. None beside a busy disk, too: loaders hide it for as long as
        their queues last, so it makes ranks late unevenly.
    """
    rows = features.rank[list(component.ranks)]
    own = rows[:, _OWN_EXCESS]
    latest = largest(own)
    costs = largest(rows[:, _GAIN_STAGE]) if component.scope == "stage" else 0.0
    beyond_noise = largest(rows[own >= latest, _OWN_EXCESS_Z]) >= BEYOND_NOISE
    plain = latest >= max(PLAINLY_LATE, costs) and beyond_noise
    busy = largest(features.evidence.versus_peers[list(component.ranks), _STORAGE]) >= SHARED_RESOURCE_BUSY
    if not plain or busy or not own_work_is_timed(component.ranks, features):
        return None
    late, idle = own >= AS_LATE * latest, own <= IDLE * latest
    if late.mean() > MAX_LATE_SHARE or not (late | idle).all():
        return None
    return [rank for rank, is_late in zip(component.ranks, late, strict=True) if is_late]


def largest(values: FloatArray) -> float:
    """Largest value that is known, 0 if none is larger."""
    return float(np.nanmax(np.append(values, 0.0)))
