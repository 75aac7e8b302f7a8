"""What a window's timers can tell: own work from the exchange with others, transfer from waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.features import WINDOW_FEATURES, FeatureSet

_MEASURED = WINDOW_FEATURES.index("communication_measured")


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
