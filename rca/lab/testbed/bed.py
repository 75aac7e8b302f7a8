"""The assembled testbed: nodes, control groups and the ranks' processes, from setup to teardown."""

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
from rca.lab.testbed.cgroups import ControlGroups, control_groups, find_hierarchies
from rca.lab.testbed.gpus import Gpu, GpuMissing
from rca.lab.testbed.names import PREFIX
from rca.lab.testbed.network import TestbedNode, network
from rca.lab.testbed.probe import Capabilities
from rca.lab.testbed.process import ProcessPlacement, ProcessTable, Spawned
from rca.lab.testbed.ranks import host, loader, models, neighbour
from rca.lab.testbed.ranks.calibration import prepare, prepare_stand_in
from rca.lab.testbed.ranks.host import Accelerator, Average
from rca.lab.testbed.ranks.shared import TOKEN, Pipe, Pipes, RankMemory, job_pace, shared_floats
from rca.lab.testbed.ranks.stand_in import serve_copies, serve_kernels
from rca.lab.testbed.scenario import CaptureScenario, TestbedJob

_PORT = 29_471
_NEIGHBOURS_READY_SECONDS = 60.0
_NEIGHBOUR = "gpu_neighbour"


@dataclass(frozen=True)
class RankProcesses:
    """One rank: its shared memory, and its processes by role.

    Every rank has ``host`` and ``loader``; a rank without a GPU also has ``device`` and ``copier``.

    Attributes
    ----------
    read : callable
        Work of a loader, with its ``number``: 0 for the first.
    """

    rank: int
    node: TestbedNode
    shared: RankMemory
    pipes: Pipes
    read: Callable[..., None]
    processes: dict[str, Spawned]


@dataclass(frozen=True)
class Bed:
    """All parts of a running testbed, for injectors and samplers.

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
        Controls of the foreign processes on each rank's GPU (`rca.lab.testbed.ranks.neighbour`).
    """

    scenario: CaptureScenario
    permitted: Capabilities
    nodes: list[TestbedNode]
    groups: ControlGroups
    process_table: ProcessTable
    links: list[Pipe]
    holders: list[Spawned]
    ranks: list[RankProcesses]
    disk: tuple[str, str] | None
    log: Path
    gpus: dict[int, Gpu]
    neighbours: dict[int, list[FloatArray]]

    @property
    def job(self) -> TestbedJob:
        return self.scenario.job

    def foreign_placement(self, node: int, nice: int = 0) -> ProcessPlacement:
        """Where foreign load on a node runs."""
        return ProcessPlacement(core=self.nodes[node].core, groups=self.groups.others(node), nice=nice)

    def placement_near(self, rank: int) -> ProcessPlacement:
        """Where foreign load on one rank runs: in its groups, on its core."""
        node = self.job.node_of(rank)
        return ProcessPlacement(core=self.nodes[node].core, groups=self.groups.joined_by(node, rank))


@contextlib.contextmanager
def assembled(
    scenario: CaptureScenario,
    permitted: Capabilities,
    gpus: Sequence[Gpu] = (),
    average: Average | None = None,
) -> Iterator[Bed]:
    """Set everything up, start the ranks, and take everything down again, also after an error.

    Parameters
    ----------
    gpus : sequence of Gpu
        One for each of the job's `gpu_ranks`.
    average : callable, optional
        Of `rca.lab.testbed.ranks.host.HostPlan`.

    Raises
    ------
    MissingExtra
        If PyTorch is not installed.
    GpuMissing
        If a GPU does not serve several processes at once.
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
        process_table = ProcessTable(log)
        stack.callback(process_table.end_all)
        holders = [
            process_table.spawn("holder", _hold, ProcessPlacement(namespace=node.namespace)) for node in nodes
        ]
        bed = Bed(
            scenario, permitted, nodes, groups, process_table,
            links=[_link() for _ in nodes],
            holders=holders,
            ranks=[],
            disk=_disk_of(folder),
            log=log,
            gpus=dict(zip(job.gpu_ranks, gpus, strict=True)),
            neighbours={},
        )  # fmt: skip
        _start_neighbours(bed)
        _start_ranks(bed, folder, average)
        _await_neighbours(bed)
        yield bed


def _start_neighbours(bed: Bed) -> None:
    """Start the foreign processes on the ranks' GPUs; they set themselves up while the ranks do."""
    for rank, gpu in bed.gpus.items():
        # Not in the rank's own group: they must take nothing from the rank but its GPU.
        place = ProcessPlacement(groups=bed.groups.others(bed.job.node_of(rank)))
        bed.neighbours[rank] = [shared_floats(len(neighbour.Control)) for _ in range(neighbour.NEIGHBOURS)]
        for control in bed.neighbours[rank]:
            work = partial(neighbour.serve, gpu.torch_device, control)
            bed.process_table.spawn(_NEIGHBOUR, work, place)


def _await_neighbours(bed: Bed) -> None:
    """Wait until the foreign processes have set themselves up."""
    deadline = time.monotonic() + _NEIGHBOURS_READY_SECONDS
    controls = [control for of_rank in bed.neighbours.values() for control in of_rank]
    while not all(control[neighbour.Control.READY] for control in controls):
        others = [each.process.role for each in bed.process_table.reap() if each.process.role != _NEIGHBOUR]
        alive = [each for each in bed.process_table.alive.values() if each.role == _NEIGHBOUR]
        if others or len(alive) < len(controls) or time.monotonic() > deadline:
            tail = bed.log.read_text(encoding="utf-8")[-2000:] if bed.log.exists() else ""
            what = f"{others[0]} ended" if others else "the GPU does not serve several processes at once"
            raise GpuMissing(what, hint=tail or None)
        time.sleep(0.01)


def _start_ranks(bed: Bed, folder: Path, average: Average | None) -> None:
    job, permitted = bed.job, bed.permitted
    averaged = {} if average is None else {"average": average}
    built = models.build(job.model, job.scale, models.WIDE if job.gpu_ranks else models.NARROW)
    n_parameters = sum(parameter.numel() for parameter in built.parameters())
    dataset = folder / "dataset"
    loader.write_dataset(dataset, bed.scenario.seed)
    pace = job_pace()
    for rank in range(job.world_size):
        node = bed.nodes[job.node_of(rank)]
        shared = RankMemory(job.steps, n_parameters, pace)
        pipes = Pipes(bed.links[node.index])
        mine = bed.groups.joined_by(node.index, rank)
        hardware = ProcessPlacement(core=node.core, real_time=permitted.real_time)
        rendezvous = f"tcp://{bed.nodes[0].address}:{_PORT}"
        plan = host.HostPlan(rank, job, rendezvous, node.interface, folder, **averaged)
        read = partial(
            loader.load, job.model, shared, pipes, dataset, bed.scenario.seed * 1000 + rank,
            direct=permitted.direct_reads, n_ranks=job.world_size,
        )  # fmt: skip
        spawn = partial(bed.process_table.spawn, rank=rank)
        processes = {"loader": spawn("loader", read, ProcessPlacement(core=node.core, groups=mine))}
        if rank in bed.gpus:
            where = bed.gpus[rank].torch_device
            foreign = bed.neighbours[rank]
            ready: Callable[[], Accelerator] = partial(prepare, built, shared, where, job, rank, foreign)
        else:
            serve = partial(serve_kernels, built, shared, pipes, job.scale)
            copy = partial(serve_copies, shared, pipes, job.scale)
            processes |= {
                "device": spawn("device", serve, hardware),
                "copier": spawn("copier", copy, hardware),
            }
            ready = partial(prepare_stand_in, built, shared, pipes, job)
        train = partial(host.train, plan, shared, pipes, ready)
        processes["host"] = spawn("host", train, ProcessPlacement(node.core, node.namespace, mine))
        bed.ranks.append(RankProcesses(rank, node, shared, pipes, read, processes))


def _link() -> Pipe:
    link = Pipe.open()
    link.send(TOKEN)
    return link


def _hold() -> None:
    """Keep a namespace alive and readable under ``/proc``, also after its ranks have ended."""
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
