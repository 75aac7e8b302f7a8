"""What phase timers separate: own work from communication, transfer from waiting, late ranks from others."""

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
#: Least excess of own work over the peers that shows a late rank: relative to the step, and in units of the
#: healthy spread.
CLEARLY_LATE, BEYOND_NOISE = 0.015, 3.0
#: Other ranks are late from the share `AS_LATE` of the latest rank's excess on, and on time up to `ON_TIME`.
AS_LATE, ON_TIME = 0.5, 0.25
#: Largest share of a component that may be late without the whole being late.
MAX_LATE_SHARE = 0.5
#: A shared resource is busy from this score against peers on, in units.
SHARED_RESOURCE_BUSY = 1.0


def own_work_is_timed(ranks: Sequence[int], features: FeatureSet) -> bool:
    """Whether timers separate own work from waiting on any of these ranks.

    They do not where communication has no timer: then steps, or the phase with the waiting, are equally long
    on all ranks. Nor do they for ranks without rows, where one rank reports for its node.
    """
    return bool(features.window[_MEASURED] > 0 and np.isfinite(features.work.own[list(ranks)]).any())


def transfer_is_timed(features: FeatureSet) -> bool:
    """Whether transfer is timed, rather than estimated as the shortest communication of all ranks.

    Where ranks meet several times a step, or stages wait for each other, every rank waits. The shortest
    communication then grows without a slow link.
    """
    return bool(np.isfinite(features.phases.phase("communication_transfer_seconds")).any())


def late_members(component: Component, features: FeatureSet) -> list[int] | None:
    """The few late ranks of a suspected node or stage, where timers clearly show which are late.

    Parameters
    ----------
    component : Component
        Of several ranks.

    Returns
    -------
    list of int or None
        None if more than half are late or none is, or if a rank is between late and on time. None too if a
        stage costs more than its latest rank, and without timers. None with a busy disk as well: loaders hide
        it while their queues last, so it delays ranks unevenly.
    """
    rows = features.rank[list(component.ranks)]
    own = rows[:, _OWN_EXCESS]
    latest = largest(own)
    costs = largest(rows[:, _GAIN_STAGE]) if component.scope == "stage" else 0.0
    beyond_noise = largest(rows[own >= latest, _OWN_EXCESS_Z]) >= BEYOND_NOISE
    clear = latest >= max(CLEARLY_LATE, costs) and beyond_noise
    busy = largest(features.evidence.versus_peers[list(component.ranks), _STORAGE]) >= SHARED_RESOURCE_BUSY
    if not clear or busy or not own_work_is_timed(component.ranks, features):
        return None
    late, on_time = own >= AS_LATE * latest, own <= ON_TIME * latest
    if late.mean() > MAX_LATE_SHARE or not (late | on_time).all():
        return None
    return [rank for rank, is_late in zip(component.ranks, late, strict=True) if is_late]


def largest(values: FloatArray) -> float:
    """Largest value that is known, 0 if none is larger."""
    return float(np.nanmax(np.append(values, 0.0)))
