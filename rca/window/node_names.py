"""Match node names of exporters with those of the job: exporters add ports and domains."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rca.arrays import IntArray
from rca.window.job import RankPlace
from rca.window.window import Window

#: Names by which a machine calls itself.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def same_nodes(names: Sequence[str], nodes: Sequence[str]) -> IntArray:
    """Index into `nodes` of every name, -1 where it is none of them; shape (n_names,).

    Names are compared without ports. A host is the same with and without its domain; two domains are two
    hosts. A form that several nodes share matches none of them.
    """
    exact = {name: index for index, name in enumerate(nodes)}
    if exact.keys() >= set(names):
        return np.array([exact[name] for name in names], dtype=np.int64)
    bare = _unique((_without_port(name), index) for index, name in enumerate(nodes))
    longer = _unique((short, index) for index, name in enumerate(nodes) for short in _shorter(name))
    found = np.empty(len(names), dtype=np.int64)
    for position, name in enumerate(names):
        host = _without_port(name)
        domains = (bare.get(each) for each in _shorter(name))
        forms = (exact.get(name), bare.get(host), longer.get(host), *domains)
        found[position] = next((index for index in forms if index is not None), -1)
    return found


def placed(window: Window) -> Window:
    """The window, its ranks without a node placed on the node that their metrics name most often.

    ``localhost`` is no node's name: an agent that scrapes its own machine may call it that everywhere.
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
    # Only ranks that are listed or named: a rank in neither has the default place either way.
    known = [given.get(rank, RankPlace(rank=rank)) for rank in sorted(given.keys() | node_of.keys())]
    ranks = tuple(
        place if place.node is not None else place.model_copy(update={"node": node_of.get(place.rank)})
        for place in known
    )
    return replace(window, job=window.job.model_copy(update={"ranks": ranks}))


def _without_port(name: str) -> str:
    """The name without ``:9100``; IPv6 addresses have colons, and brackets if a port follows."""
    if name.startswith("["):
        return name[1:].split("]")[0]
    host, colon, port = name.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else name


def _shorter(name: str) -> list[str]:
    """The host's name with ever fewer labels of its domain, longest first; empty for addresses."""
    bare = _without_port(name)
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        labels = bare.split(".")
        return [".".join(labels[:end]) for end in range(len(labels) - 1, 0, -1)]
    return []


def _unique(forms: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Each form's node; -1 if several nodes have it."""
    held: dict[str, int] = {}
    for form, index in forms:
        held[form] = index if held.get(form, index) == index else -1
    return held
