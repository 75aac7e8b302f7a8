"""The assembled testbed: nodes, groups and the ranks' processes, set up and torn down as one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rca.arrays import FloatArray
from rca.testbed.cgroups import Groups, control_groups, find_hierarchies
from rca.testbed.gpus import Gpu, GpuMissing
from rca.testbed.names import PREFIX
from rca.testbed.network import Node, network
from rca.testbed.probe import Capabilities
from rca.testbed.process import Family, Placement, Spawned
from rca.testbed.ranks import host, loader, models, neighbour
from rca.testbed.ranks.calibration import prepare
from rca.testbed.ranks.host import Accelerator
from rca.testbed.ranks.shared import TOKEN, Pipe, Shared, Wires, job_pace, shared_floats
from rca.testbed.ranks.stand_in import StandIn, serve_copies, serve_kernels
from rca.testbed.scenario import JobShape, Scenario

_PORT = 29_471
_NEIGHBOURS_READY_SECONDS = 60.0


@dataclass(frozen=True)
class RankProcesses:
    """One rank: what it shares with us, and its processes by role.

    Every rank has ``host`` and ``loader``; one without a GPU has ``device`` and ``copier``, too.
    """

    rank: int
    node: Node
    shared: Shared
    processes: dict[str, Spawned]


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
    gpus : dict of int to Gpu
        The GPU of each rank that has one.
    neighbours : dict of int to list of ndarray of shape (len(Control),)
        What the foreign processes on it are told through (`rca.testbed.ranks.neighbour`).
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
    gpus: dict[int, Gpu]
    neighbours: dict[int, list[FloatArray]]

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
def assembled(scenario: Scenario, permitted: Capabilities, gpus: Sequence[Gpu] = ()) -> Iterator[Bed]:
    """Set everything up, start the ranks, and take everything down again however the body ends.

    Parameters
    ----------
    gpus : sequence of Gpu
        One for each of the job's `gpu_ranks`.

    Raises
    ------
    MissingExtra
        If PyTorch is not installed.
    GpuMissing
        If a GPU does not let several processes in.
    """
    models.preload()
    job = scenario.job
    ranks_of_nodes = [job.ranks_of_node(node) for node in range(job.nodes)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}-")))
        log = folder / "processes.log"
        cabled = network(job.nodes, permitted.cores, namespaces=permitted.namespaces, shaped=permitted.htb)
        nodes = stack.enter_context(cabled)
        groups = stack.enter_context(control_groups(find_hierarchies(), ranks_of_nodes))
        family = Family(log)
        stack.callback(family.end_all)
        holders = [family.spawn("holder", _hold, Placement(namespace=node.namespace)) for node in nodes]
        bed = Bed(
            scenario, permitted, nodes, groups, family,
            links=[_link() for _ in nodes],
            holders=holders,
            ranks=[],
            disk=_disk_of(folder),
            log=log,
            gpus=dict(zip(job.gpu_ranks, gpus, strict=True)),
            neighbours={},
        )  # fmt: skip
        _start_neighbours(bed)
        _start_ranks(bed, folder)
        yield bed


def _start_neighbours(bed: Bed) -> None:
    """Start the foreign processes on the ranks' GPUs, and wait until they have set themselves up."""
    for rank, gpu in bed.gpus.items():
        # Anywhere but in the rank's own group: what they take from it is to be the GPU.
        place = Placement(groups=bed.groups.others(bed.job.node_of(rank)))
        bed.neighbours[rank] = [shared_floats(len(neighbour.Control)) for _ in range(neighbour.NEIGHBOURS)]
        for control in bed.neighbours[rank]:
            work = partial(neighbour.serve, gpu.torch_device, control)
            bed.family.spawn("gpu_neighbour", work, place)
    deadline = time.monotonic() + _NEIGHBOURS_READY_SECONDS
    controls = [control for beside in bed.neighbours.values() for control in beside]
    while not all(control[neighbour.Control.READY] for control in controls):
        if bed.family.reap() or time.monotonic() > deadline:
            tail = bed.log.read_text(encoding="utf-8")[-2000:] if bed.log.exists() else ""
            raise GpuMissing("the GPU does not serve several processes at once", hint=tail or None)
        time.sleep(0.01)


def _start_ranks(bed: Bed, folder: Path) -> None:
    job, permitted = bed.job, bed.permitted
    built = models.build(job.model, job.scale, models.WIDE if job.gpu_ranks else models.NARROW)
    n_parameters = sum(parameter.numel() for parameter in built.parameters())
    dataset = folder / "dataset"
    loader.write_dataset(dataset, bed.scenario.seed)
    pace = job_pace()
    for rank in range(job.world_size):
        node = bed.nodes[job.node_of(rank)]
        shared = Shared(job.steps, n_parameters, pace)
        wires = Wires(bed.links[node.index])
        mine = bed.groups.joined_by(node.index, rank)
        hardware = Placement(core=node.core, real_time=permitted.real_time)
        plan = host.HostPlan(rank, job, f"tcp://{bed.nodes[0].address}:{_PORT}", node.interface, folder)
        read = partial(
            loader.load, job.model, shared, wires, dataset, bed.scenario.seed * 1000 + rank,
            direct=permitted.direct_reads,
        )  # fmt: skip
        spawn = partial(bed.family.spawn, rank=rank)
        processes = {"loader": spawn("loader", read, Placement(core=node.core, groups=mine))}
        if rank in bed.gpus:
            where = bed.gpus[rank].torch_device
            ready: Callable[[], Accelerator] = partial(prepare, built, shared, where, job, rank)
        else:
            serve = partial(serve_kernels, built, shared, wires, job.scale)
            copy = partial(serve_copies, shared, wires, job.scale)
            processes |= {
                "device": spawn("device", serve, hardware),
                "copier": spawn("copier", copy, hardware),
            }
            ready = partial(StandIn, shared, wires, len(built.blocks))
        train = partial(host.train, plan, shared, wires, ready)
        processes["host"] = spawn("host", train, Placement(node.core, node.namespace, mine))
        bed.ranks.append(RankProcesses(rank, node, shared, processes))


def _link() -> Pipe:
    link = Pipe.open()
    link.send(TOKEN)
    return link


def _hold() -> None:
    """Keep a namespace alive and readable under ``/proc``, whatever happens to the ranks in it."""
    os.read(os.pipe()[0], 1)


def _disk_of(path: Path) -> tuple[str, str] | None:
    """Name (``vda``) and number (``254:0``) of the disk a path lies on; None where it is not on one."""
    number = path.stat().st_dev
    label = f"{os.major(number)}:{os.minor(number)}"
    link = Path("/sys/dev/block") / label
    if not link.exists():
        return None
    resolved = link.resolve()
    # A limit is set on the whole disk, not on a partition.
    disk = resolved.parent if (resolved / "partition").exists() else resolved
    return disk.name, (disk / "dev").read_text().strip()
