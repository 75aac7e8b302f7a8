"""Actions that remove one cause: each is the first remedy of its causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rca.recovery.option import Gain, Option, Rejection, Weight, option, removal
from rca.recovery.situation import BlamedCause, Situation
from rca.recovery.stage_balance import balancing_gain
from rca.window.causes import CAUSES, STOP_CAUSES


@dataclass(frozen=True)
class Remedy:
    """Removes a cause without a change of the training algorithm.

    Attributes
    ----------
    weight : {"light", "heavy"}
        Heavy actions restart the job.
    causes : tuple of str
        It removes these; it is their first remedy.
    asks : bool
        Asks others to act: how long that takes is unknown, so it delays no other action.
    hardware : bool
        Takes a machine out of service. It needs a named cause of the infrastructure and its signals.
    """

    name: str
    weight: Weight
    causes: tuple[str, ...]
    risk: str
    instruction: str
    hardware: bool = False
    asks: bool = False

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """One option for each fault that this removes; the stop causes of the same ranks are one."""
        if not situation.of_cause(*self.causes):
            return [Rejection(action=self.name, reason=self._why_not(situation))]
        found: list[Option | Rejection] = []
        for alternatives in _alternatives([each for each in situation.faults if each.cause in self.causes]):
            fault = next((each for each in alternatives if each.actionable), None)
            if fault is None:
                continue
            refused = self.hardware and _no_hardware_action(fault, situation)
            if refused:
                found.append(Rejection(action=self.name, reason=refused))
                continue
            found.append(
                option(
                    self,
                    self._gain(fault, situation),
                    chance=sum(each.probability for each in alternatives),
                    causes=[each.cause for each in alternatives],
                    ranks=fault.ranks,
                    nodes=fault.nodes,
                    one_off=situation.site.restart_cost if self.weight == "heavy" else 0.0,
                    takes_out=self.hardware,
                    risk=self.risk,
                    instruction=self.instruction,
                )
            )
        return found

    def _gain(self, fault: BlamedCause, situation: Situation) -> Gain:  # noqa: ARG002
        return removal(fault)

    def _why_not(self, situation: Situation) -> str:
        seen = sorted({fault.cause for fault in situation.faults if fault.cause in self.causes})
        if seen:
            return f"{', '.join(seen)}: too unlikely, or explains too little of the delay"
        return f"helps only against {', '.join(self.causes)}"


class StageBalancing(Remedy):
    """Moves layers between the stages: their work stays in the pipeline, so it is replayed."""

    def _gain(self, fault: BlamedCause, situation: Situation) -> Gain:  # noqa: ARG002
        return balancing_gain(situation)


def _alternatives(faults: Sequence[BlamedCause]) -> list[list[BlamedCause]]:
    """Each fault alone, but the stop causes of the same ranks together: a rank stops for one reason."""
    found: dict[tuple[str, tuple[int, ...]], list[BlamedCause]] = {}
    for each in faults:
        found.setdefault(("" if each.cause in STOP_CAUSES else each.cause, each.ranks), []).append(each)
    return list(found.values())


def _no_hardware_action(fault: BlamedCause, situation: Situation) -> str | None:
    """Why no machine may be taken out of service for a fault; None if one may."""
    if CAUSES[fault.cause].owner == "workload":
        return f"{fault.cause} belongs to the workload: another machine would be as slow"
    if not situation.decided:
        return f"{fault.cause} is not certain; a machine is taken out only for a named cause"
    if not fault.evident:
        return f"no exporter signal shows {fault.cause}; step times alone fit too many causes"
    return None


NO_RISK = "none for convergence"
RESTART_RISK = "none for convergence; work since the last checkpoint is done again"

REBALANCE_STAGES = StageBalancing(
    "rebalance_stages",
    "heavy",
    ("stage_imbalance",),
    RESTART_RISK,
    "move layers from the slow stage to the others",
)

REMEDIES = (
    Remedy(
        "evict_other_process",
        "light",
        ("gpu_contention", "cpu_contention", "memory_pressure"),
        NO_RISK,
        "move other processes off the node, or give the job whole nodes; if the processes are its own, use "
        "fewer loader workers and threads",
    ),
    Remedy(
        "add_loader_workers",
        "light",
        ("data_loader_stall",),
        NO_RISK,
        "raise the number of loader workers or the prefetch depth; where no core is free, decode in advance",
    ),
    Remedy(
        "plan_garbage_collection",
        "light",
        ("runtime_gc",),
        "none for convergence; memory grows between collections",
        "collect garbage at the same step on all ranks, and freeze long-lived objects",
    ),
    Remedy(
        "checkpoint_asynchronously",
        "light",
        ("checkpoint_stall",),
        "a failure loses more work if checkpoints become rarer",
        "write checkpoints in the background, or less often",
    ),
    Remedy(
        "free_device_memory",
        "light",
        ("allocator_retries",),
        "none if activations are computed again; a smaller microbatch needs more of them per step",
        "use expandable segments, compute activations again, or make microbatches smaller",
    ),
    Remedy(
        "fix_input_shapes",
        "light",
        ("recompilation",),
        "none for convergence; padding computes more",
        "pad inputs to a few fixed shapes, or compile with dynamic shapes",
    ),
    Remedy(
        "rebalance_sequences",
        "light",
        ("sequence_length_imbalance",),
        "none if samples only change ranks within one global batch",
        "pack batches by the sum of squared sequence lengths",
    ),
    Remedy(
        "call_network_team",
        "light",
        ("network_congestion",),
        NO_RISK,
        "send the network team the nodes and the time span; no single node is at fault",
        asks=True,
    ),
    Remedy(
        "call_storage_team",
        "light",
        ("storage_degradation",),
        NO_RISK,
        "send the storage team the nodes and the time span; cache data locally meanwhile",
        asks=True,
    ),
    REBALANCE_STAGES,
    Remedy(
        "correct_communication_settings",
        "heavy",
        ("communication_misconfiguration",),
        RESTART_RISK,
        "set the adapters and the transport of the collectives, and restart from the last checkpoint",
    ),
    Remedy(
        "drain_node",
        "heavy",
        ("gpu_throttling", "pcie_degradation", "nvlink_degradation", "nic_degradation"),
        RESTART_RISK,
        "cordon the node, restart from the last checkpoint without it, and check the node",
        hardware=True,
    ),
    Remedy(
        "replace_gpu",
        "heavy",
        ("gpu_memory_errors",),
        RESTART_RISK,
        "take the GPU out of service and restart from the last checkpoint on another",
        hardware=True,
    ),
    Remedy(
        "restart_from_checkpoint",
        "heavy",
        tuple(sorted(STOP_CAUSES)),
        RESTART_RISK,
        "check the named node and restart from the last checkpoint, on another node if the pool has one",
    ),
)

#: First remedy by cause.
REMEDY_OF = {cause: remedy.name for remedy in REMEDIES for cause in remedy.causes}
