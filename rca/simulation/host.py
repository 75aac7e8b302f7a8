"""Host cores: what waiting for one costs the launches of kernels."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario

BETWEEN = "between steps"
HOST_PHASES = ("data_loading", "host_to_device", "forward", "backward", "optimizer", BETWEEN)
# Where Python code runs, and with it the collector: share of pauses per phase. On a GPU job the host only
# dispatches the backward from native code, so pauses fall into the forward and around it. Who calls the
# collector himself does so between steps, where no phase is timed.
GC_SHARES_TESTBED = (0.4, 0.12, 0.16, 0.12, 0.15, 0.05)
GC_SHARES_GPU = (0.1, 0.03, 0.72, 0.0, 0.1, 0.05)
GC_SHARES_CALLED = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
# Where single stalls of a host fall: mostly where it launches kernels one by one.
STALL_SHARES = (0.07, 0.12, 0.49, 0.2, 0.07, 0.05)
# Where launch gaps fall.
GAP_SHARES_TESTBED = {
    "data_loading": 0.04, "host_to_device": 0.04, "forward": 0.38, "backward": 0.46, "optimizer": 0.08
}  # fmt: skip
GAP_SHARES_GPU = {
    "data_loading": 0.02, "host_to_device": 0.03, "forward": 0.6, "backward": 0.15, "optimizer": 0.2
}  # fmt: skip


def launch_gap_ratio(scenario: Scenario, resources: Resources) -> FloatArray:
    """Launch time added by run-queue waiting, in units of the unhindered launch time, (n_ranks, n_steps).

    A host that waits a share ``w`` of its runnable time needs ``1 / (1 - w)`` as long.
    """
    calm = 1 / (1 - scenario.workload.run_queue_share)
    return np.maximum(1 / (1 - np.minimum(resources.run_queue, 0.95)) - calm, 0.0)


def launch_gaps(scenario: Scenario, resources: Resources, noise: FloatArray) -> dict[str, FloatArray]:
    """Seconds of launch gaps by phase, each (n_ranks, n_steps).

    Parameters
    ----------
    noise : ndarray of shape (5, n_ranks, n_steps) or (1, 1, 1)
        Factors by phase: whether a stranger is in the way is decided launch by launch.
    """
    gap = scenario.workload.launch_seconds * launch_gap_ratio(scenario, resources)
    return {
        phase: share * gap * noise[index % noise.shape[0]]
        for index, (phase, share) in enumerate(_gap_shares(scenario).items())
    }


def _gap_shares(scenario: Scenario) -> dict[str, float]:
    shares = GAP_SHARES_TESTBED if scenario.dialect == "cpu_testbed" else GAP_SHARES_GPU
    backward = scenario.workload.backward_gap_share
    if backward is None:
        return shares
    rest = (1 - backward) / (1 - shares["backward"])
    return {phase: backward if phase == "backward" else rest * share for phase, share in shares.items()}


def collector_pauses(scenario: Scenario, resources: Resources, draw: FloatArray) -> dict[str, FloatArray]:
    """Seconds of collector pauses by phase, each (n_ranks, n_steps); a step's pause falls into one phase."""
    shares = GC_SHARES_TESTBED if scenario.dialect == "cpu_testbed" else GC_SHARES_GPU
    if scenario.workload.calls_collector:
        shares = GC_SHARES_CALLED
    return _into_phases(resources.gc, shares, draw)


def host_stalls(scenario: Scenario, seconds: FloatArray, draw: FloatArray) -> dict[str, FloatArray]:
    """Seconds for which hosts stand still, by phase, each (n_ranks, n_steps).

    The backward needs little of the host, so fewer of its stalls are felt there.
    """
    backward = scenario.benign.hiccup_backward
    rest = (1 - backward) / (1 - STALL_SHARES[3])
    shares = tuple(backward if index == 3 else rest * share for index, share in enumerate(STALL_SHARES))
    return _into_phases(seconds, shares, draw)


def _into_phases(seconds: FloatArray, shares: tuple[float, ...], draw: FloatArray) -> dict[str, FloatArray]:
    if not seconds.any():
        return {}
    chosen = np.searchsorted(np.cumsum(shares)[:-1], draw, side="right")
    return {phase: seconds * (chosen == index) for index, phase in enumerate(HOST_PHASES)}
