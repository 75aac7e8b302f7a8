"""Recovery actions that are carried out on a real job of the testbed, and what each of them gains.

A job runs as usual, then a fault begins. The steps under the fault are diagnosed and planned for. Then the
action is taken and taken back in turn, within the same job, so that other load of the machine hits both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import rca
from benchmarks.recovery_gains import Row, difference, prediction, step_seconds
from rca.arrays import FloatArray
from rca.recovery.work_shares import SHORT_WINDOW, equal_finish
from rca.telemetry.fragments import between_steps
from rca.telemetry.labels import LabelledCause
from rca.testbed.bed import Bed
from rca.testbed.capture import capture
from rca.testbed.catalogue import FAULTS
from rca.testbed.names import node_name
from rca.testbed.ranks.shared import NEUTRAL, SLOTS, Knob
from rca.testbed.ranks.shared import Row as Column
from rca.testbed.scenario import WARM_UP_STEPS, Fault, JobShape, Scenario

#: Steps without the fault, then under it before the action, and of each turn with or without the action.
USUAL, DIAGNOSED, TURN = 28, 40, 20
TURNS = 4
#: First steps of a turn that do not count: batches that are loaded already, and connections that recover.
SETTLES = 8
#: CPU weight of the job, relative to that of one other process of the machine.
WEIGHT = 8
BEGIN = USUAL + DIAGNOSED
STEPS = BEGIN + TURNS * TURN
#: Turns with the action: the first, the third.
TAKEN = tuple((BEGIN + turn * TURN, BEGIN + (turn + 1) * TURN - 1) for turn in range(0, TURNS, 2))
LEFT = tuple((BEGIN + turn * TURN, BEGIN + (turn + 1) * TURN - 1) for turn in range(1, TURNS, 2))


@dataclass(frozen=True)
class Switch:
    """An action on a running job, and its opposite."""

    take: Callable[[Bed], None]
    take_back: Callable[[Bed], None]


@dataclass(frozen=True)
class Pair:
    """A fault, and an action that is really carried out against it.

    Attributes
    ----------
    name, action : str
    done : str
        What is really done.
    fault : dict
        Of `rca.testbed.scenario.Fault`, without its steps.
    switch : Switch or None
        None where the action ends the fault itself.
    whole : bool
        The action works around the fault: its gain is not that of a cause.
    model, pipeline
        Of the job.
    nodes : int
        With two ranks each.
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

    def scenario(self, seed: int) -> Scenario:
        """The job with the fault; without a switch the fault pauses while the action is taken."""
        spans = [(USUAL, None)]
        if self.switch is None:
            ends = [USUAL, *(last + 1 for _, last in TAKEN)]
            spans = [(first, taken - 1) for first, (taken, _) in zip(ends, TAKEN, strict=False)]
            spans.append((ends[-1], None))
        return Scenario(
            name=f"{self.name.replace(' ', '-').lower()}-{self.action.replace('_', '-')}-{seed}",
            seed=seed,
            job=JobShape.model_validate(
                {
                    "model": self.model,
                    "pipeline": self.pipeline,
                    "world_size": 2 * self.nodes,
                    "nodes": self.nodes,
                    "steps": STEPS,
                }
            ),
            faults=tuple(
                Fault.model_validate({**self.fault, "first_step": first, "last_step": last})
                for first, last in spans
            ),
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
            bed.process_table.spawn(
                "loader", lambda number=number: held.read(number=number), bed.placement_near(rank)
            )
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


def _rank(kind: str, severity: int = 2) -> dict[str, object]:
    return {"kind": kind, "scope": "rank", "ranks": (3,), "severity": severity}


def _node(kind: str, severity: int = 2) -> dict[str, object]:
    return {"kind": kind, "scope": "node", "nodes": (1,), "severity": severity}


def _job(kind: str, severity: int = 2, scope: str = "job") -> dict[str, object]:
    return {"kind": kind, "scope": scope, "severity": severity}


#: Steps between checkpoints, and with the action.
EVERY, RARER = 6, 24

PAIRS = (
    Pair("cpu hogs of a rank", "evict_other_process", "hogs killed", _rank("cpu_hogs")),
    Pair("cpu hogs of a node", "evict_other_process", "hogs killed", _node("cpu_hogs")),
    Pair("cpu quota", "evict_other_process", "quota lifted", _rank("cpu_quota")),
    Pair("memory limit", "evict_other_process", "limit lifted", _rank("memory_pressure")),
    Pair(
        "slow dataset", "add_loader_workers", "two more loader processes, four batches in work",
        _rank("slow_dataset"), more_loaders(3, 2),
    ),
    Pair("heavy decoding", "add_loader_workers", "batches decoded in advance", _rank("heavy_decoding")),
    Pair(
        "heavy decoding beside", "add_loader_workers", "two more loader processes on the same core",
        _rank("heavy_decoding", 3), more_loaders(3, 2),
    ),
    Pair(
        "gc pauses", "plan_garbage_collection", "objects frozen (gc.freeze) on all ranks",
        _rank("gc_pauses", 3), knobs({Knob.FREEZE_OBJECTS: 1.0}),
    ),
    Pair(
        "checkpoints", "checkpoint_asynchronously", "written by a thread",
        _job("checkpoint_stall"), knobs({Knob.CHECKPOINT_IN_BACKGROUND: 1.0}),
    ),
    Pair(
        "checkpoints seldom", "checkpoint_asynchronously", f"every {RARER} steps, not every {EVERY}",
        _job("checkpoint_stall"), knobs({Knob.CHECKPOINT_EVERY: RARER}, {Knob.CHECKPOINT_EVERY: EVERY}),
    ),
    Pair("disk limit", "call_storage_team", "limit lifted", _node("storage_throttle", 3)),
    Pair("nic rate", "drain_node", "a node with a sound link in its place", _node("nic_rate", 3), nodes=3),
    Pair("nic delay", "drain_node", "a node with a sound link in its place", _node("nic_delay"), nodes=3),
    Pair("fabric rate", "call_network_team", "limit lifted on all nodes", _job("fabric_rate")),
    Pair("slow device", "drain_node", "a sound device in its place", _rank("device_clock")),
    Pair(
        "slow device shared", "adjust_batch_sizes", "batches by equal_finish, gradients weighted",
        _rank("device_clock"), Switch(take_shares, leave_shares), whole=True,
    ),
    Pair("copy link", "drain_node", "foreign copiers ended", _node("copy_bandwidth")),
    Pair(
        "full last stage", "rebalance_stages", "its longer kernels spread over both stages",
        _job("full_last_stage", scope="stage"), balanced_stages(FAULTS["full_last_stage"].level(2)),
        pipeline=2,
    ),
)  # fmt: skip


def carried_out(pair: Pair, seed: int) -> Row:
    """Run one job with a pair, plan from the steps under the fault, and measure the action."""
    scenario = pair.scenario(seed)
    captured = capture(scenario, at_step=_Alternation(pair.switch))
    usual = between_steps(captured.window, WARM_UP_STEPS, USUAL - 1)
    under_fault = between_steps(captured.window, USUAL + 2, BEGIN - 1)
    plan = rca.plan(rca.diagnose(under_fault, earlier=usual), under_fault)
    step, seconds = step_seconds(captured.window)
    left = seconds[_counted(step, LEFT)]
    measured = difference(left, seconds[_counted(step, TAKEN)])
    true = None if pair.whole else _truth(scenario)
    predicted = prediction(plan, pair.action, true)
    return Row(pair.name, pair.action, scenario.name, predicted, *measured, float(left.mean()))


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
        due = any(first <= step <= last for first, last in TAKEN)
        if self._switch is None or due == self._taken:
            return
        (self._switch.take if due else self._switch.take_back)(bed)
        self._taken = due


def _counted(step: FloatArray, turns: tuple[tuple[int, int], ...]) -> FloatArray:
    return np.logical_or.reduce([(step >= first + SETTLES) & (step <= last) for first, last in turns])


def _truth(scenario: Scenario) -> LabelledCause:
    fault, job = scenario.faults[0], scenario.job
    ranks = fault.affected_ranks(job)
    nodes = sorted({node_name(job.node_of(rank)) for rank in ranks}) if fault.scope != "job" else []
    return LabelledCause.model_validate(
        {
            "cause": fault.spec.cause,
            "accepted": [fault.spec.cause, *fault.spec.alike],
            "ranks": ranks,
            "nodes": nodes,
            "first_step": fault.first_step,
        }
    )
