"""Rows the causal mechanisms are fitted on: one rank per window, chosen so that waiting does not confound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rca.arrays import FloatArray
from rca.causal.graph import IDLE_RESOURCES, PHASES, WAITING, signal_of
from rca.causal.scores import resource_scores
from rca.features import RANK_FEATURES
from rca.features.resource_evidence import resource_names
from rca.telemetry.causes import SPECS
from rca.training.corpus import Corpus
from rca.training.split import mask

if TYPE_CHECKING:
    import pandas as pd

#: Phases that must have been measured for a row to tell the mechanisms apart.
REQUIRED = ("forward", "backward", "data_loading")


def mechanism_rows(corpus: Corpus, seed: int) -> pd.DataFrame:
    """One row per training window: a blamed rank of faulty windows, any rank of healthy ones.

    The transfer of a collective is everybody's, so a healthy rank beside a sick NIC shows the effect without
    the cause; taking the blamed rank keeps such rows out. Windows whose guilty resource was not measured, or
    whose cause has none (the job's own work), are left out too: they would teach that the effect comes from
    nowhere.
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
    # Times without a resource for parents, as those of `unknown`, would only blur the arrows of others.
    return any(np.isfinite(values[_column(f"{name}_vs_peers")]) for name in SPECS[cause].resources)


def innocent_rows(corpus: Corpus, seed: int) -> pd.DataFrame:
    """One row per training window: a rank that nothing is wrong with, how long it waits, what its GPU shows.

    On such ranks the hardware is in order, so whatever its signals do in the slow stretch, beside the other
    steps, is the waiting's doing.
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
