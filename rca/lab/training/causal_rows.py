"""Rows for fitting the causal mechanisms: one rank per window, chosen so that waiting is no confounder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rca.arrays import FloatArray
from rca.causal.graph import IDLE_RESOURCES, PHASES, WAITING
from rca.causal.scores import resource_scores
from rca.features import RANK_FEATURES
from rca.features.resource_evidence import resource_names
from rca.lab.training.cause_graph import signal_of
from rca.lab.training.corpus import Corpus
from rca.lab.training.split import mask
from rca.window.causes import SPECS

if TYPE_CHECKING:
    import pandas as pd

#: Phases that a row needs to distinguish the mechanisms.
REQUIRED = ("forward", "backward", "data_loading")


def mechanism_rows(corpus: Corpus, seed: int) -> pd.DataFrame:
    """One row per training window: a blamed rank of faulty windows, any rank of healthy ones.

    All ranks share the transfer of a collective, so a healthy rank shows the effect of another rank's NIC
    without the cause. The blamed rank shows both. Windows without a measurement of the faulty resource are
    left out, and so are causes without a resource: they show an effect without a cause.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    train = mask(corpus.part, "train")
    chosen = []
    for window in np.flatnonzero(train):
        if corpus.mode[window] == "fail_stop":
            continue
        rows = np.flatnonzero(corpus.owner == window)
        blamed = rows[corpus.faulty[rows]]
        candidates = blamed if blamed.size else rows
        row = int(rng.choice(candidates))
        if _usable(corpus, row):
            chosen.append(row)
    columns = np.column_stack([_scores(corpus.rank[chosen]), _phases(corpus.rank[chosen])])
    return pd.DataFrame(columns, columns=[*resource_names(), *PHASES])


def _column(name: str) -> int:
    return RANK_FEATURES.index(name)


def _usable(corpus: Corpus, row: int) -> bool:
    values = corpus.rank[row]
    if not all(np.isfinite(values[_column(f"{phase}_excess")]) for phase in REQUIRED):
        return False
    cause = corpus.rank_cause[row]
    if not cause:
        return True
    # Phase times without a resource as parent, as of `unknown`, would weaken the arrows of other causes.
    return any(np.isfinite(values[_column(f"{name}_vs_peers")]) for name in SPECS[cause].resources)


def healthy_rank_rows(corpus: Corpus, seed: int) -> pd.DataFrame:
    """One row per training window: waiting time and GPU signals of a rank without a fault.

    The hardware of such a rank is healthy, so waiting causes the changes of its signals in the slow segment.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    chosen = []
    for window in np.flatnonzero(mask(corpus.part, "train")):
        rows = np.flatnonzero(corpus.owner == window)
        clean = rows[~corpus.faulty[rows]]
        if corpus.mode[window] != "fail_stop" and clean.size:
            chosen.append(int(rng.choice(clean)))
    names = ["wait_share", *(f"{resource}_vs_past" for resource in IDLE_RESOURCES)]
    columns = [WAITING, *(signal_of(resource) for resource in IDLE_RESOURCES)]
    return pd.DataFrame(corpus.rank[np.ix_(chosen, [_column(name) for name in names])], columns=columns)


def _scores(rows: FloatArray) -> FloatArray:
    names = resource_names()
    peers = rows[:, [_column(f"{name}_vs_peers") for name in names]]
    past = rows[:, [_column(f"{name}_vs_past") for name in names]]
    scores = resource_scores(peers, past)
    return np.maximum(np.where(np.isfinite(scores), scores, 0.0), 0.0)


def _phases(rows: FloatArray) -> FloatArray:
    own = [rows[:, _column(f"{phase}_excess")] for phase in PHASES if phase != "transfer"]
    values = np.column_stack([*own, rows[:, _column("transfer_growth")]])
    return np.where(np.isfinite(values), values, 0.0)
