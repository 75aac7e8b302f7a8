"""Give a window's ranks the hardware that topology files name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rca.errors import InvalidInput, cut
from rca.window.job import RankPlace
from rca.window.node_names import placed, same_nodes
from rca.window.rows.validation import validated_job
from rca.window.topology.hardware import (
    LEVELS,
    Fact,
    HardwareTopology,
    Level,
    canonical_address,
    contradiction,
)
from rca.window.topology.read import read_topology
from rca.window.window import Window

#: What errors call the ranks that the window itself lists.
_WINDOW = "the window's ranks"
_SHOWN = 3


Source = HardwareTopology | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def with_topology(window: Window, topology: Source) -> Window:
    """The window with the hardware of its ranks.

    A rank's node and GPU are those of the window, else those of the topology's `ranks`. Without a GPU index,
    ranks of a node have its GPUs in order if there are as many.

    Parameters
    ----------
    window : Window
        Unchanged.
    topology : HardwareTopology, path or sequence of path
        Files are read with `read_topology`.

    Returns
    -------
    Window
        Of the same tables. Its job lists all ranks of which something is known.

    Raises
    ------
    SourceError, TooLarge
        If a file cannot be read.
    InvalidInput
        If a file is wrong, the topology names none of the job's nodes, or it contradicts the window.
    """
    window = placed(window)
    job = window.job
    if not isinstance(topology, HardwareTopology):
        topology = read_topology(topology, job.topology.node_names)
    given = {place.rank: place for place in job.ranks or ()}
    foreign = [rank for rank in topology.ranks if rank >= job.world_size]
    if foreign:
        raise InvalidInput(
            f"{topology.ranks[foreign[0]][1]}: the job of {job.world_size} ranks has no rank {foreign[0]}",
            hint="ranks begin at 0; give the topology of this job",
        )
    places = [_with_gpu(given.get(rank, RankPlace(rank=rank)), topology) for rank in range(job.world_size)]
    names = _names_in(topology, places)
    gpus = _gpus_in_order(places, topology, names)
    described = [_described(place, gpus.get(place.rank, place.gpu), topology, names) for place in places]
    kept = tuple(place for place in described if len(place.model_dump(exclude_none=True)) > 1)
    return replace(window, job=validated_job(job.model_copy(update={"ranks": kept or None})))


def _with_gpu(place: RankPlace, topology: HardwareTopology) -> RankPlace:
    """The rank's place, with node and GPU of the topology's ranks."""
    listed = topology.ranks.get(place.rank)
    if listed is None:
        return place
    where, source = listed
    if place.node is not None and where.node is not None and same_nodes([where.node], [place.node])[0] < 0:
        raise contradiction(
            f"the node of rank {place.rank}", Fact(place.node, _WINDOW), Fact(where.node, source)
        )
    if place.gpu not in (None, where.gpu):
        raise contradiction(
            f"the GPU of rank {place.rank}", Fact(str(place.gpu), _WINDOW), Fact(str(where.gpu), source)
        )
    return place.model_copy(update={"node": place.node or where.node, "gpu": where.gpu})


def _names_in(topology: HardwareTopology, places: list[RankPlace]) -> Mapping[str, str]:
    """Name of the job's node -> its name in the topology, which may have a domain."""
    nodes = list(dict.fromkeys(place.node for place in places if place.node is not None))
    named = list(topology.nodes)
    found = {
        nodes[index]: name
        for name, index in zip(named, same_nodes(named, nodes).tolist(), strict=True)
        if index >= 0
    }
    if named and not nodes:
        raise InvalidInput(
            "the window does not say on which node its ranks run",
            hint="list `ranks` with rank, node and gpu in a topology file, or in the window",
        )
    if named and not found:
        shown = (", ".join(map(cut, each[:_SHOWN])) for each in (named, nodes))
        there, here = shown
        raise InvalidInput(
            f"the topology has none of the job's nodes: it names {there}; the job runs on {here}",
            hint="give the topology of this cluster, with the same names of nodes",
        )
    return found


def _gpus_in_order(
    places: list[RankPlace], topology: HardwareTopology, names: Mapping[str, str]
) -> dict[int, int]:
    """GPU index of ranks without one: launchers assign GPUs in the order of ranks."""
    on_node: dict[str, list[RankPlace]] = {}
    for place in places:
        if place.node is not None:
            on_node.setdefault(place.node, []).append(place)
    found: dict[int, int] = {}
    for node, members in on_node.items():
        gpus = topology.gpus_of(names.get(node))
        if len(gpus) == len(members) and all(place.gpu is None for place in members):
            found |= {place.rank: gpu for place, gpu in zip(members, gpus, strict=True)}
    return found


def _described(
    place: RankPlace, gpu: int | None, topology: HardwareTopology, names: Mapping[str, str]
) -> RankPlace:
    if place.node is None:
        return place
    update: dict[str, str | int] = {} if gpu is None else {"gpu": gpu}
    for level in LEVELS:
        fact = topology.of(names.get(place.node), gpu, level)
        if fact is not None:
            _refuse_contradiction(place, level, fact)
            update[level] = fact.name
    return place.model_copy(update=update)


def _refuse_contradiction(place: RankPlace, level: Level, fact: Fact) -> None:
    known: str | None = getattr(place, level)
    if known is not None and level == "pci_address":
        known = canonical_address(known)
    if known is not None and known != fact.name:
        raise contradiction(f"the {level} of rank {place.rank}", Fact(known, _WINDOW), fact)
