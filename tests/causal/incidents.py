"""Small incidents with a planted root cause."""

from __future__ import annotations

import numpy as np
import pandas as pd

import rca


def system(edges, columns, *, rows=300, incident=40, cause=None, size=8.0, seed=0, gain=1.0):
    """Linear system in the order of `columns`: each is noise plus its parents; `cause` moves by `size`."""
    rng = np.random.default_rng(seed)
    values = {}
    for name in columns:
        values[name] = rng.normal(size=rows + incident)
        if name == cause:
            values[name][rows:] += size
        for parent in [one for one, other in edges if other == name]:
            values[name] = values[name] + gain * values[parent]
    frame = pd.DataFrame({name: 20.0 + column for name, column in values.items()})
    return frame.iloc[:rows], frame.iloc[rows:]


CHAIN = [("disk", "query"), ("query", "page")]
FORK = [("cpu", "parse"), ("cpu", "render")]
COLLIDER = [("cache", "answer"), ("network", "answer")]
SHAPES = {
    "chain, head": (CHAIN, ("disk", "query", "page"), "disk"),
    "chain, middle": (CHAIN, ("disk", "query", "page"), "query"),
    "chain, end": (CHAIN, ("disk", "query", "page"), "page"),
    "fork, common cause": (FORK, ("cpu", "parse", "render"), "cpu"),
    "fork, one branch": (FORK, ("cpu", "parse", "render"), "parse"),
    "collider, one cause": (COLLIDER, ("cache", "network", "answer"), "network"),
    "collider, the effect": (COLLIDER, ("cache", "network", "answer"), "answer"),
}


def first(*arguments, **options):
    return rca.rank_causes(*arguments, **options)["cause"].iloc[0]
