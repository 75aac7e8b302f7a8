"""The assembled testbed: nodes, groups and the ranks' processes, set up and torn down as one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rca.testbed.cgroups import Groups, control_groups, find_hierarchies
from rca.testbed.names import PREFIX
from rca.testbed.network import Node, network
from rca.testbed.probe import Capabilities
from rca.testbed.process import Family, Placement, Spawned
from rca.testbed.ranks import copier, device, host, loader, models
from rca.testbed.ranks.shared import Shared
from rca.testbed.ranks.wires import TOKEN, Pipe, Wires
from rca.testbed.sampling.machine_signals import disk_of
from rca.testbed.scenario import JobShape, Scenario

_PORT = 29_471


@dataclass(frozen=True)
class RankProcesses:
    """One rank: what it shares with us, and its processes."""

    rank: int
    node: Node
    shared: Shared
    host: Spawned
    loader: Spawned
    device: Spawned
    copier: Spawned


@dataclass(frozen=True)
class Bed:
    """Everything an injector or a sampler may want to touch.

    Attributes
    ----------
    links : list of Pipe
        The copy link of each node.
    holders : list of Spawned
        A sleeping process per node, inside its namespace.
    disk : tuple of str or None
        Name and number of the disk the loaders read from.
    log : Path
        Tracebacks of processes that failed.
    """

    scenario: Scenario
    permitted: Capabilities
    nodes: list[Node]
    groups: Groups
    family: Family
    links: list[Pipe]
    holders: list[Spawned]
    ranks: list[RankProcesses]
    disk: tuple[str, str] | None
    log: Path

    @property
    def job(self) -> JobShape:
        return self.scenario.job

    def foreign(self, node: int, nice: int = 0) -> Placement:
        """Where foreign load on a node runs."""
        return Placement(core=self.nodes[node].core, groups=self.groups.others(node), nice=nice)

    def beside(self, rank: int) -> Placement:
        """Where load beside one rank runs: in its groups, on its core."""
        node = self.job.node_of(rank)
        return Placement(core=self.nodes[node].core, groups=self.groups.joined_by(node, rank))


@contextlib.contextmanager
def assembled(scenario: Scenario, permitted: Capabilities) -> Iterator[Bed]:
    """Set everything up, start the ranks, and take everything down again however the body ends.

    Raises
    ------
    MissingExtra
        If PyTorch is not installed.
    """
    models.preload()
    job = scenario.job
    ranks_of_nodes = [job.ranks_of_node(node) for node in range(job.nodes)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}-")))
        cabled = network(job.nodes, permitted.cores, namespaces=permitted.namespaces, shaped=permitted.htb)
        nodes = stack.enter_context(cabled)
        groups = stack.enter_context(control_groups(find_hierarchies(), ranks_of_nodes))
        family = Family(folder / "processes.log")
        stack.callback(family.end_all)
        holders = [family.spawn("holder", _hold, Placement(namespace=node.namespace)) for node in nodes]
        links = [_link() for _ in nodes]
        ranks = _start_ranks(scenario, permitted, nodes, groups, family, links, folder)
        disk = disk_of(folder)
        yield Bed(
            scenario, permitted, nodes, groups, family, links, holders, ranks, disk, folder / "processes.log"
        )


def _start_ranks(
    scenario: Scenario,
    permitted: Capabilities,
    nodes: list[Node],
    groups: Groups,
    family: Family,
    links: list[Pipe],
    folder: Path,
) -> list[RankProcesses]:
    job = scenario.job
    built = models.build(job.model, job.scale)
    n_parameters = sum(parameter.numel() for parameter in built.parameters())
    dataset = folder / "dataset"
    loader.write_dataset(dataset, scenario.seed)
    started = []
    for rank in range(job.world_size):
        node = nodes[job.node_of(rank)]
        shared = Shared(job.steps, n_parameters)
        wires = Wires(links[node.index])
        mine = groups.joined_by(node.index, rank)
        hardware = Placement(core=node.core, real_time=permitted.real_time)
        plan = host.HostPlan(
            rank, job, len(built.blocks), f"tcp://{nodes[0].address}:{_PORT}", node.interface, folder
        )
        read = partial(
            loader.load, job.model, shared, wires, dataset, scenario.seed * 1000 + rank,
            direct=permitted.direct_reads,
        )  # fmt: skip
        spawn = partial(family.spawn, rank=rank)
        home = Placement(node.core, node.namespace, mine)
        started.append(
            RankProcesses(
                rank, node, shared,
                device=spawn("device", partial(device.serve, built, shared, wires, job.scale), hardware),
                copier=spawn("copier", partial(copier.copy, shared, wires, job.scale), hardware),
                loader=spawn("loader", read, Placement(core=node.core, groups=mine)),
                host=spawn("host", partial(host.train, plan, shared, wires), home),
            )
        )  # fmt: skip
    return started


def _link() -> Pipe:
    link = Pipe.open()
    link.send(TOKEN)
    return link


def _hold() -> None:
    """Keep a namespace alive and readable under ``/proc``, whatever happens to the ranks in it."""
    os.read(os.pipe()[0], 1)
