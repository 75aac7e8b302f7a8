"""Which node a producer means: exporters add ports and domains to names, and jobs may name no nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rca.arrays import IntArray
from rca.telemetry.job import RankPlace
from rca.telemetry.window import Window

#: What a machine calls itself.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def same_nodes(told: Sequence[str], nodes: Sequence[str]) -> IntArray:
    """Index into `nodes` of every name told, -1 where it is none of them; shape (n_told,).

    Names are compared without ports; a host is the same with and without its domain (two domains are two
    hosts). A form that several nodes share says nothing.
    """
    exact = {name: index for index, name in enumerate(nodes)}
    if exact.keys() >= set(told):
        return np.array([exact[name] for name in told], dtype=np.int64)
    bare = _unique((_without_port(name), index) for index, name in enumerate(nodes))
    longer = _unique((short, index) for index, name in enumerate(nodes) for short in _shorter(name))
    found = np.empty(len(told), dtype=np.int64)
    for position, name in enumerate(told):
        host = _without_port(name)
        domains = (bare.get(each) for each in _shorter(name))
        forms = (exact.get(name), bare.get(host), longer.get(host), *domains)
        found[position] = next((index for index in forms if index is not None), -1)
    return found


def placed(window: Window) -> Window:
    """The window with ranks that the job does not place on the nodes that metrics name beside them.

    An agent that scrapes its own machine may call it ``localhost`` everywhere: that is no node's name.
    """
    if (window.job.topology.node >= 0).all():
        return window
    pairs = window.metrics.select(["rank", "node"]).drop_null()
    if pairs.num_rows == 0:
        return window
    counted = pairs.group_by(["rank", "node"]).aggregate([([], "count_all")])
    often = counted.sort_by([("count_all", "descending"), ("rank", "ascending")])
    node_of: dict[int, str] = {}
    for rank, node in zip(*(often.column(name).to_pylist() for name in ("rank", "node")), strict=True):
        if _without_port(node) not in LOOPBACK:
            node_of.setdefault(rank, _without_port(node))
    if not node_of:
        return window
    given = {place.rank: place for place in window.job.ranks or ()}
    known = [given.get(rank, RankPlace(rank=rank)) for rank in range(window.job.world_size)]
    ranks = tuple(
        place if place.node is not None else place.model_copy(update={"node": node_of.get(place.rank)})
        for place in known
    )
    return replace(window, job=window.job.model_copy(update={"ranks": ranks}))


def _without_port(name: str) -> str:
    """The name without ``:9100``; an IPv6 address has colons of its own, and brackets before a port."""
    if name.startswith("["):
        return name[1:].split("]")[0]
    host, colon, port = name.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else name


def _shorter(name: str) -> list[str]:
    """The host's name without the last labels of its domain, longest first; addresses have none."""
    bare = _without_port(name)
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        labels = bare.split(".")
        return [".".join(labels[:end]) for end in range(len(labels) - 1, 0, -1)]
    return []


def _unique(forms: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Each form's node; -1 where several have it."""
    held: dict[str, int] = {}
    for form, index in forms:
        held[form] = index if held.get(form, index) == index else -1
    return held
