"""From resources to phases: who works how long, who waits for whom, when each step ends.

Between two collectives a rank works alone; a collective starts for everybody when its last member arrives.
With ``L[s]`` the last arrival of step ``s`` and ``after[r, s]`` what rank ``r`` does after it (transfer,
optimizer, checkpoint), rank ``r`` starts its next step at ``L[s] + after[r, s]``. All of it is max-plus
linear, so ``L[s+1] - L[s]`` depends on ``after[:, s]`` and the work of step ``s+1`` alone and no loop over
steps is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.simulation.noise import Noise
from rca.simulation.resources import FloatArray, Resources
from rca.simulation.scenario import Scenario

# Where Python code runs, and with it the collector: share of pauses per phase. On a GPU job the host only
# dispatches the backward from native code, so pauses fall into the forward and around it.
GC_PHASES = ("data_loading", "host_to_device", "forward", "backward", "optimizer")
GC_SHARES_TESTBED = (0.45, 0.12, 0.16, 0.12, 0.15)
GC_SHARES_GPU = (0.1, 0.03, 0.77, 0.0, 0.1)
# Where launch gaps fall.
GAP_SHARES_TESTBED = {"host_to_device": 0.06, "forward": 0.4, "backward": 0.47, "optimizer": 0.07}
GAP_SHARES_GPU = {"host_to_device": 0.05, "forward": 0.6, "backward": 0.15, "optimizer": 0.2}


@dataclass(frozen=True)
class Timing:
    """What the ranks did.

    Attributes
    ----------
    phases : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        By format column; ``gc_seconds`` is contained in the others, which add up to ``step_seconds``.
    start, arrival : ndarray of shape (n_ranks, n_steps), seconds
        Since the job's first step, on one true clock.
    last_arrival : ndarray of shape (n_steps,), seconds
    """

    phases: dict[str, FloatArray]
    start: FloatArray
    arrival: FloatArray
    last_arrival: FloatArray

    @property
    def step_seconds(self) -> FloatArray:
        """Time from when all ranks have ended one step to when all have ended the next, (n_steps,)."""
        ends = self.start + self.phases["step_seconds"]
        return np.diff(ends.max(axis=0), prepend=0.0)


def run_steps(scenario: Scenario, resources: Resources, noise: Noise) -> Timing:
    """Evaluate one job."""
    work = _own_work(scenario, resources, noise)
    transfer = _transfer(scenario, resources, noise)
    checkpoint = resources.checkpoint + noise.slow_step
    before = work["data_loading"] + work["host_to_device"] + work["forward"] + work["backward"]
    after = transfer + work["optimizer"] + checkpoint
    lateness = np.concatenate([np.zeros((scenario.world_size, 1)), after[:, :-1]], axis=1)
    increments = last_arrivals(scenario, lateness + before, work["forward"] + work["backward"])
    last = np.cumsum(increments)
    start = np.concatenate([[0.0], last[:-1]]) + lateness
    arrival = start + before
    wait = np.maximum(last - arrival, 0.0)
    phases = {
        "data_loading_seconds": work["data_loading"],
        "host_to_device_seconds": work["host_to_device"],
        "forward_seconds": work["forward"],
        "backward_seconds": work["backward"],
        "communication_wait_seconds": wait,
        "communication_transfer_seconds": transfer,
        "communication_seconds": wait + transfer,
        "optimizer_seconds": work["optimizer"],
        "checkpoint_seconds": checkpoint,
        "gc_seconds": resources.gc,
        "step_seconds": before + wait + after,
    }
    return Timing(phases, start, arrival, last)


def last_arrivals(scenario: Scenario, ready: FloatArray, compute: FloatArray) -> FloatArray:
    """Time from the previous last arrival to the next, per step.

    Parameters
    ----------
    ready : ndarray of shape (n_ranks, n_steps), seconds
        When each rank would arrive if it waited for nobody, since the previous last arrival.
    compute : ndarray of shape (n_ranks, n_steps), seconds
        Forward and backward; what a pipeline spreads over microbatches.

    Returns
    -------
    ndarray of shape (n_steps,), seconds

    Notes
    -----
    Tensor groups and replicas join by maximum. A pipeline of stage times ``c`` over ``m`` microbatches takes
    its slowest stage plus one microbatch of each other stage (fill and drain).
    """
    sizes = scenario.parallelism
    if sizes.pipeline == 1:
        return np.asarray(ready.max(axis=0))
    grid = (sizes.pipeline, sizes.data * sizes.context, sizes.tensor, scenario.n_steps)
    stage_ready = ready.reshape(grid).max(axis=2)
    stage_compute = compute.reshape(grid).max(axis=2)
    fill = (stage_compute.sum(axis=0) - stage_compute.max(axis=0)) / scenario.workload.microbatches
    return np.asarray((stage_ready.max(axis=0) + fill).max(axis=0))


def launch_gap_ratio(scenario: Scenario, resources: Resources) -> FloatArray:
    """Launch time added by run-queue waiting, in units of the unhindered launch time, (n_ranks, n_steps).

    A host that waits a share ``w`` of its runnable time needs ``1 / (1 - w)`` as long.
    """
    calm = 1 / (1 - scenario.workload.run_queue_share)
    return np.maximum(1 / (1 - np.minimum(resources.run_queue, 0.95)) - calm, 0.0)


def _own_work(scenario: Scenario, resources: Resources, noise: Noise) -> dict[str, FloatArray]:
    load, testbed = scenario.workload, scenario.dialect == "cpu_testbed"
    gap = load.launch_seconds * launch_gap_ratio(scenario, resources)
    shares = GAP_SHARES_TESTBED if testbed else GAP_SHARES_GPU
    kernel = resources.compute_stretch * resources.work * noise.job * _stage_share(scenario)
    lost = resources.gpu_stall + noise.hiccup
    work = {
        "data_loading": load.data_loading_seconds * noise.loading + resources.input_stall,
        "host_to_device": load.host_to_device_seconds * noise.copy * resources.copy_stretch,
        "forward": load.forward_seconds * noise.forward * kernel + 0.4 * lost + 0.7 * noise.warmup,
        "backward": load.backward_seconds * noise.backward * kernel + 0.6 * lost + 0.3 * noise.warmup,
        "optimizer": load.optimizer_seconds * noise.optimizer * resources.compute_stretch,
    }
    for phase, share in shares.items():
        work[phase] += share * gap
    if resources.gc.any():
        edges = np.cumsum(GC_SHARES_TESTBED if testbed else GC_SHARES_GPU)
        chosen = np.searchsorted(edges[:-1], noise.gc_draw, side="right")
        for index, phase in enumerate(GC_PHASES):
            work[phase] += resources.gc * (chosen == index)
    return work


def _stage_share(scenario: Scenario) -> FloatArray:
    """Relative compute per rank, (n_ranks, 1): stages differ a little in any real job."""
    share = np.ones((scenario.world_size, 1))
    if scenario.parallelism.pipeline > 1:
        per_stage = scenario.world_size // scenario.parallelism.pipeline
        share[-per_stage:] += scenario.workload.last_stage_extra
    return share


def _transfer(scenario: Scenario, resources: Resources, noise: Noise) -> FloatArray:
    """Transfer time of each rank: a ring moves at the pace of its slowest member."""
    load, sizes = scenario.workload, scenario.parallelism
    node_of = np.arange(scenario.world_size) // scenario.ranks_per_node
    coupling = 1 + load.host_coupling * launch_gap_ratio(scenario, resources)
    inside = np.maximum(resources.nvlink_stretch[node_of], 1.0)
    grid = (sizes.pipeline, sizes.data * sizes.context, sizes.tensor, scenario.n_steps)

    def group_max(values: FloatArray) -> FloatArray:
        slowest = values.reshape(grid).max(axis=1, keepdims=True)
        return np.broadcast_to(slowest, grid).reshape(values.shape)

    nodes = np.broadcast_to(node_of[:, None], (scenario.world_size, scenario.n_steps)).astype(np.float64)
    spans = group_max(nodes) > -group_max(-nodes)
    between = np.where(spans, group_max(resources.nic_stretch[node_of]), group_max(inside))
    share = load.intra_node_share
    factor = (1 - share) * between * group_max(coupling) + share * inside * coupling
    return np.asarray(load.transfer_seconds * noise.transfer * noise.transfer_rank * factor)
