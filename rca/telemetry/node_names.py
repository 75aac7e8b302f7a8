"""Which node a producer means: exporters add ports and domains to names, and jobs may name no nodes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rca.telemetry.job import RankPlace
from rca.telemetry.window import Window

_PORT = re.compile(r":\d{1,5}$")


def same_nodes(told: Sequence[str], nodes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Index into `nodes` of every name told, -1 where it is none of them; shape (n_told,).

    Names are compared as they are, then without ports, then without domains; a form that several nodes share
    says nothing.
    """
    exact = {name: index for index, name in enumerate(nodes)}
    found = np.array([exact.get(name, -1) for name in told], dtype=np.int64)
    for form in (_without_port, _host):
        if (found >= 0).all():
            break
        known = _unique({index: form(name) for index, name in enumerate(nodes)})
        for position in np.flatnonzero(found < 0).tolist():
            found[position] = known.get(form(told[position]), -1)
    return found


def placed(window: Window) -> Window:
    """The window with its ranks on the nodes that metrics name beside them, if the job places none itself."""
    if any(place.node is not None for place in window.job.ranks or ()):
        return window
    pairs = window.metrics.select(["rank", "node"]).drop_null()
    if pairs.num_rows == 0:
        return window
    counted = pairs.group_by(["rank", "node"]).aggregate([([], "count_all")])
    often = counted.sort_by([("count_all", "descending"), ("rank", "ascending")])
    node_of: dict[int, str] = {}
    for rank, node in zip(*(often.column(name).to_pylist() for name in ("rank", "node")), strict=True):
        node_of.setdefault(rank, _without_port(node))
    given = {place.rank: place for place in window.job.ranks or ()}
    ranks = tuple(
        given.get(rank, RankPlace(rank=rank)).model_copy(update={"node": node_of.get(rank)})
        for rank in range(window.job.world_size)
    )
    return replace(window, job=window.job.model_copy(update={"ranks": ranks}))


def _without_port(name: str) -> str:
    return _PORT.sub("", name)


def _host(name: str) -> str:
    """The first label of a host's name; addresses have none."""
    bare = _without_port(name)
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return bare.split(".")[0]
    return bare


def _unique(forms: dict[int, str]) -> dict[str, int]:
    held: dict[str, int] = {}
    for index, form in forms.items():
        held[form] = -1 if form in held else index
    return held
