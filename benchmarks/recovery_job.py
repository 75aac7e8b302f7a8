"""Recovery actions that are carried out on a real job of the testbed, and what each of them gains.

A job runs as usual, then a fault begins. The action is taken and taken back in turn, within the same job, so
that other load of the machine hits both. Each turn under the fault is diagnosed and planned for.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import rca
from benchmarks.recovery_gains import GainRow, difference, mean, prediction, step_seconds
from rca.arrays import FloatArray
from rca.errors import RcaError
from rca.lab.testbed.bed import Bed
from rca.lab.testbed.capture import capture
from rca.lab.testbed.catalogue import FAULTS
from rca.lab.testbed.names import node_name
from rca.lab.testbed.ranks.host import Average
from rca.lab.testbed.ranks.shared import NEUTRAL, SLOTS, Knob
from rca.lab.testbed.ranks.shared import Row as Column
from rca.lab.testbed.scenario import WARM_UP_STEPS, CaptureScenario, TestbedFault, TestbedJob
from rca.recovery.work_shares import SHORT_WINDOW, equal_finish
from rca.sources.labels import LabelledCause
from rca.window.fragments import between_steps

#: Steps without the fault, of each turn under it, and of each turn with the action.
USUAL, LEFT_STEPS, TAKEN_STEPS = 28, 32, 26
CYCLE = LEFT_STEPS + TAKEN_STEPS
#: First steps of a turn that do not count: batches that are loaded already, and connections that recover.
SETTLES = 8
#: CPU weight of the job, relative to that of one other process of the machine.
WEIGHT = 32
#: First and last step of the turns under the fault, and of those with the action between them.
LEFT = tuple((first, first + LEFT_STEPS - 1) for first in range(USUAL, USUAL + 3 * CYCLE, CYCLE))
TAKEN = tuple((last + 1, last + TAKEN_STEPS) for _, last in LEFT[:-1])
STEPS = LEFT[-1][1] + 1


@dataclass(frozen=True)
class Switch:
    """An action on a running job, and its opposite."""

    take: Callable[[Bed], None]
    take_back: Callable[[Bed], None]


@dataclass(frozen=True)
class Remedied:
    """A fault, and an action that is really carried out against it.

    Attributes
    ----------
    name, action : str
    done : str
        What is really done.
    fault : dict
        Of `rca.lab.testbed.scenario.TestbedFault`, without its steps.
    switch : Switch or None
        None where the action ends the fault itself.
    whole : bool
        The action works around the fault: its gain is not that of a cause.
    average : callable or None
        Averages gradients while the action is taken (`rca.lab.testbed.ranks.host.HostPlan`).
    samples : float
        Share of a step's samples that count while the action is taken.
    beside : tuple of dict
        Faults that act all the time, and belong to the job.
    model, pipeline
        Of the job.
    nodes, per_node : int
        Ranks.
    """

    name: str
    action: str
    done: str
    fault: dict[str, object]
    switch: Switch | None = None
    whole: bool = False
    model: str = "mlp"
    pipeline: int = 1
    nodes: int = 2
    per_node: int = 2
    average: Average | None = None
    samples: float = 1.0
    beside: tuple[dict[str, object], ...] = ()

    def scenario(self, seed: int) -> CaptureScenario:
        """The job with the fault; without a switch the fault pauses while the action is taken."""
        spans = [(USUAL, None)] if self.switch or self.average else [*LEFT[:-1], (LEFT[-1][0], None)]
        return CaptureScenario(
            name=re.sub("[ ,_]+", "-", f"{self.name} {self.action} {seed}"),
            seed=seed,
            job=TestbedJob.model_validate(
                {
                    "model": self.model,
                    "pipeline": self.pipeline,
                    "world_size": self.per_node * self.nodes,
                    "nodes": self.nodes,
                    "steps": STEPS,
                }
            ),
            faults=tuple(
                TestbedFault.model_validate({**self.fault, "first_step": first, "last_step": last})
                for first, last in spans
            )
            + tuple(TestbedFault.model_validate({**each, "first_step": 0}) for each in self.beside),
        )


def knobs(settings: dict[Knob, float], back: dict[Knob, float] | None = None) -> Switch:
    """Settings of all ranks, and those without the action."""
    neutral = back or {knob: NEUTRAL[knob] for knob in settings}

    def set_all(bed: Bed, values: dict[Knob, float]) -> None:
        for held in bed.ranks:
            for knob, value in values.items():
                held.shared.knobs[knob] = value

    return Switch(lambda bed: set_all(bed, settings), lambda bed: set_all(bed, neutral))


def more_loaders(rank: int, count: int) -> Switch:
    """Further loader processes of a rank, each with a batch of its own in work."""
    opened: list[int] = []

    def take(bed: Bed) -> None:
        held = bed.ranks[rank]
        held.shared.knobs[Knob.MORE_LOADERS] = count
        for number in range(1, count + 1):
            read = partial(held.read, number=number)
            bed.process_table.spawn("loader", read, bed.placement_near(rank))
        if not opened:
            opened.extend(range(SLOTS, SLOTS + count))
            for slot in opened:
                held.pipes.slots.send(bytes([slot]))

    def take_back(bed: Bed) -> None:
        bed.ranks[rank].shared.knobs[Knob.MORE_LOADERS] = 0

    return Switch(take, take_back)


def take_shares(bed: Bed) -> None:
    """Batches by the speed of the ranks in the last steps, as `AdjustBatchSizes` sets them."""
    step = min(held.shared.step for held in bed.ranks)
    rows = np.array([held.shared.rows[step - SHORT_WINDOW : step] for held in bed.ranks])
    grows = np.median(rows[:, :, Column.FORWARD] + rows[:, :, Column.BACKWARD], axis=1)
    work = rows[:, :, Column.ARRIVAL_TIME] - rows[:, :, Column.START] + rows[:, :, Column.OPTIMIZER]
    for held, share in zip(bed.ranks, equal_finish(np.median(work, axis=1) - grows, grows), strict=True):
        held.shared.knobs[Knob.BATCH_SHARE] = share


def leave_shares(bed: Bed) -> None:
    """Equal batches again."""
    for held in bed.ranks:
        held.shared.knobs[Knob.BATCH_SHARE] = 1.0


def balanced_stages(level: float) -> Switch:
    """Kernels of the last stage that take `level` times as long are spread over two stages."""

    def set_factors(bed: Bed, first: float, last: float) -> None:
        for held in bed.ranks:
            is_last = bed.job.stage_of(held.rank) == bed.job.pipeline - 1
            held.shared.knobs[Knob.KERNEL_FACTOR] = last if is_last else first

    middle = (1.0 + level) / 2
    return Switch(lambda bed: set_factors(bed, middle, middle), lambda bed: set_factors(bed, 1.0, level))


def is_taken(step: int) -> bool:
    """Whether the action is taken in a step, for a function that runs in the ranks."""
    return any(first <= step <= last for first, last in TAKEN)


def straggler_aware(straggler: int) -> Average:
    """StragglAR among all ranks."""

    def average(gradients: Any, step: int) -> bool:
        if is_taken(step):
            import torch.distributed as dist

            from rca.runtime.stragglar.execution import all_reduce

            gradients /= dist.get_world_size()
            all_reduce(gradients, straggler)
        return is_taken(step)

    return average


def without(straggler: int) -> Average:
    """The gradients of all ranks but one, which goes on by itself."""
    groups: list[Any] = []

    def average(gradients: Any, step: int) -> bool:
        import torch.distributed as dist

        others = [rank for rank in range(dist.get_world_size()) if rank != straggler]
        if not groups:
            groups.append(dist.new_group(others))
        if is_taken(step) and dist.get_rank() != straggler:
            dist.all_reduce(gradients, group=groups[0])
            gradients /= len(others)
        return is_taken(step)

    return average


def _on(scope: str, kind: str, severity: int = 2) -> dict[str, object]:
    """A fault of rank 3, of node 1, or of the whole job or last stage."""
    places: dict[str, dict[str, object]] = {"rank": {"ranks": (3,)}, "node": {"nodes": (1,)}}
    return {"kind": kind, "scope": scope, "severity": severity, **places.get(scope, {})}


PAIRS = (
    Remedied("cpu hogs of a rank", "evict_other_process", "hogs killed", _on("rank", "cpu_hogs")),
    Remedied("cpu hogs of a node", "evict_other_process", "hogs killed", _on("node", "cpu_hogs")),
    Remedied("cpu quota", "evict_other_process", "quota lifted", _on("rank", "cpu_quota")),
    Remedied("memory limit", "evict_other_process", "limit lifted", _on("rank", "memory_pressure")),
    Remedied(
        "slow dataset", "add_loader_workers", "two more loader processes, four batches in work",
        _on("rank", "slow_dataset"), more_loaders(3, 2),
    ),
    Remedied(
        "heavy decoding", "add_loader_workers", "batches decoded in advance", _on("rank", "heavy_decoding")
    ),
    Remedied(
        "heavy decoding beside", "add_loader_workers", "two more loaders on the same core",
        _on("rank", "heavy_decoding", 3), more_loaders(3, 2),
    ),
    Remedied(
        "gc pauses", "plan_garbage_collection", "objects frozen (gc.freeze) on all ranks",
        _on("rank", "gc_pauses", 3), knobs({Knob.FREEZE_OBJECTS: 1.0}),
    ),
    Remedied(
        "checkpoints", "checkpoint_asynchronously", "written by a thread",
        _on("job", "checkpoint_stall"), knobs({Knob.CHECKPOINT_IN_BACKGROUND: 1.0}),
    ),
    Remedied(
        "checkpoints seldom", "checkpoint_asynchronously", "every 24 steps, not every 6",
        _on("job", "checkpoint_stall"), knobs({Knob.CHECKPOINT_EVERY: 24}, {Knob.CHECKPOINT_EVERY: 6}),
    ),
    Remedied("disk limit", "call_storage_team", "limit lifted", _on("node", "storage_throttle", 3)),
    Remedied("nic rate", "drain_node", "a sound node in its place", _on("node", "nic_rate", 3), nodes=3),
    Remedied("nic delay", "drain_node", "a sound node in its place", _on("node", "nic_delay"), nodes=3),
    Remedied("fabric rate", "call_network_team", "limit lifted on all nodes", _on("job", "fabric_rate")),
    Remedied("slow device", "drain_node", "a sound device in its place", _on("rank", "device_clock")),
    Remedied(
        "slow device shared", "adjust_batch_sizes", "batches by equal_finish, gradients weighted",
        _on("rank", "device_clock"), Switch(take_shares, leave_shares), whole=True,
    ),
    Remedied(
        "slow device waits", "backup_workers", "its gradients left out; it gets no updates meanwhile",
        _on("rank", "device_clock"), whole=True, nodes=4, average=without(3), samples=7 / 8,
    ),
    Remedied(
        "slow device, slow links", "straggler_aware_all_reduce", "StragglAR over gloo",
        _on("rank", "device_clock", 3), whole=True, nodes=8, per_node=1, average=straggler_aware(3),
        beside=(_on("job", "fabric_rate", 3),),
    ),
    Remedied("copy link", "drain_node", "foreign copiers ended", _on("node", "copy_bandwidth")),
    Remedied(
        "unequal sequences", "rebalance_sequences", "batches of the same mean cost on all ranks",
        _on("job", "sequence_lengths", 3), knobs({Knob.BALANCED_LENGTHS: 1.0}), model="transformer",
    ),
    Remedied(
        "full last stage", "rebalance_stages", "its longer kernels spread over both stages",
        _on("stage", "full_last_stage"), balanced_stages(FAULTS["full_last_stage"].level(2)),
        pipeline=2,
    ),
)  # fmt: skip


def carried_out(pair: Remedied, seed: int) -> GainRow:
    """Run one job, plan from its turns under the fault, and measure the action."""
    scenario = pair.scenario(seed)
    captured = capture(scenario, at_step=_Alternation(pair.switch), average=pair.average)
    usual = between_steps(captured.window, WARM_UP_STEPS, USUAL - 1)
    true = None if pair.whole else _truth(scenario)
    predictions = []
    for first, last in LEFT:
        window = between_steps(captured.window, first + SETTLES, last)
        plan = rca.plan(rca.diagnose(window, earlier=usual), window)
        predictions.append(prediction(plan, pair.action, true))
    step, seconds = step_seconds(captured.window)
    left = seconds[_counted(step, LEFT)]
    # With fewer samples a step is worth less: then more steps make the same progress.
    measured = difference(left, seconds[_counted(step, TAKEN)] / pair.samples)
    return GainRow(pair.name, pair.action, scenario.name, mean(predictions), *measured, float(left.mean()))


def in_child(index: int, seed: int) -> GainRow | str:
    """`carried_out` in a process of its own, which keeps no pipe of the job; or why it failed."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_row_or_reason, (index, seed))


def _row_or_reason(index: int, seed: int) -> GainRow | str:
    try:
        return carried_out(PAIRS[index], seed)
    except RcaError as error:
        return error.message


def prefer(bed: Bed) -> None:
    """Give the job a larger share of the machine than other work has, so that this disturbs less."""
    of_node = bed.groups.path("cpu", 0)
    if of_node is not None and (of_node.parent / "cpu.shares").exists():
        (of_node.parent / "cpu.shares").write_text(str(1024 * WEIGHT))


class _Alternation:
    """Takes an action in some turns of a job."""

    def __init__(self, switch: Switch | None) -> None:
        self._switch = switch
        self._taken = False

    def __call__(self, bed: Bed, step: int) -> None:
        if step < 0:
            prefer(bed)
        due = is_taken(step)
        if self._switch is None or due == self._taken:
            return
        (self._switch.take if due else self._switch.take_back)(bed)
        self._taken = due


def _counted(step: FloatArray, turns: tuple[tuple[int, int], ...]) -> FloatArray:
    return np.logical_or.reduce([(step >= first + SETTLES) & (step <= last) for first, last in turns])


def _truth(scenario: CaptureScenario) -> LabelledCause:
    fault, job = scenario.faults[0], scenario.job
    ranks = fault.affected_ranks(job)
    nodes = sorted({node_name(job.node_of(rank)) for rank in ranks}) if fault.scope != "job" else []
    return LabelledCause(
        cause=fault.spec.cause,
        ranks=tuple(ranks),
        nodes=tuple(nodes),
        accepted=[fault.spec.cause, *fault.spec.alike],
    )
