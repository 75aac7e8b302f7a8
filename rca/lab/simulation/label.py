"""The label of a simulated window.

A fault that costs less than `VISIBLE_SLOWDOWN` of a step is *invisible*: users would see no slowdown. A
window with invisible faults only is labelled healthy, and its notes name the faults.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from rca.lab.simulation.faults import FAULTS
from rca.lab.simulation.faults.host import OWN_PROCESSES
from rca.lab.simulation.faults.job import UNEXPLAINED_TYPES
from rca.lab.simulation.faults.kind import variant_of
from rca.lab.simulation.impact import VISIBLE_SLOWDOWN, Runs, impacts, stop_step_of, total_impact
from rca.lab.simulation.noise import Noise
from rca.lab.simulation.phase_accounting import columns_not_timed
from rca.lab.simulation.scenario import HARDLY_VISIBLE, Fault, SimulationScenario
from rca.lab.simulation.timing import Timing
from rca.window.causes import UNKNOWN, pattern_of

Label = dict[str, Any]

# Exporters that show the end of a process: its memory becomes free, its series end.
SHOWS_PROCESS_END = frozenset({"process", "container", "dcgm", "events"})
# Causes that look alike unless the window has one of these exporters or columns.
INDISTINGUISHABLE: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "gpu_throttling": (("gpu_contention", "gpu_memory_errors"), frozenset({"dcgm"})),
    "gpu_contention": (("gpu_throttling", "gpu_memory_errors"), frozenset({"dcgm"})),
    "gpu_memory_errors": (("gpu_contention", "gpu_throttling"), frozenset({"dcgm"})),
    "nvlink_degradation": (("nic_degradation", "network_congestion"), frozenset({"dcgm"})),
    "nic_degradation": (("network_congestion",), frozenset({"infiniband", "network", "qdisc", "tcp"})),
    "network_congestion": (("nic_degradation",), frozenset({"infiniband", "network", "qdisc", "tcp"})),
    "cpu_contention": (("memory_pressure",), frozenset({"cpu", "process", "pressure", "container"})),
    "memory_pressure": (("cpu_contention",), frozenset({"memory", "pressure"})),
    "data_loader_stall": (("storage_degradation",), frozenset({"disk", "pressure", "container"})),
    "storage_degradation": (("data_loader_stall",), frozenset({"disk", "pressure", "container"})),
    "runtime_gc": (("cpu_contention",), frozenset({"python", "gc_seconds"})),
    "process_crash": (("hang",), SHOWS_PROCESS_END),
    "hang": (("process_crash",), SHOWS_PROCESS_END),
    "allocator_retries": ((UNKNOWN,), frozenset({"dcgm"})),
    "communication_misconfiguration": (("nic_degradation", UNKNOWN), frozenset({"infiniband"})),
    # No exporter shows what a compiler does.
    "recompilation": ((UNKNOWN,), frozenset()),
}


def label_of(
    scenario: SimulationScenario, noise: Noise, timing: Timing, node_names: Sequence[str] | None
) -> Label:
    """Label of a simulated window; `node_names` is None where the window names no nodes."""
    runs = Runs(scenario, noise, actual=timing.step_seconds)
    costs = impacts(runs)
    stop_step = stop_step_of(scenario)
    causes, hidden = [], []
    for fault, cost in zip(scenario.faults, costs, strict=True):
        fail_stop = FAULTS[fault.cause].straggler_type is None
        if (fail_stop and fault.first_step == stop_step) or cost["ratio"] - 1 >= VISIBLE_SLOWDOWN:
            causes.append((fault, cost))
        else:
            hidden.append(fault)
    impact = total_impact(runs)
    slow = [pair for pair in causes if FAULTS[pair[0].cause].straggler_type is not None]
    stopped = len(slow) < len(causes)
    main = max(slow, key=lambda pair: (pair[1]["seconds_per_step"], pair[1]["ratio"]))[0] if slow else None
    slow_only = None if stopped else main
    return {
        "format": 1,
        "failure_mode": "fail_stop" if stopped else "fail_slow" if slow else "healthy",
        "straggler_type": None if slow_only is None else _type(slow_only),
        "pattern": None if slow_only is None else _pattern(slow_only, scenario),
        "causes": [_cause(fault, cost, scenario, node_names) for fault, cost in causes],
        "source": "simulation",
        "notes": _notes(scenario, hidden),
        "visible": bool(causes),
        "impact": impact,
        **({"mechanism": scenario.mechanism} if scenario.mechanism else {}),
    }


def _cause(
    fault: Fault, cost: dict[str, float], scenario: SimulationScenario, node_names: Sequence[str] | None
) -> dict[str, Any]:
    fail_stop = FAULTS[fault.cause].straggler_type is None
    nodes = sorted({rank // scenario.ranks_per_node for rank in fault.ranks} | set(fault.nodes))
    last = scenario.n_steps - 1 if fault.last_step is None else min(fault.last_step, scenario.n_steps - 1)
    first_number = scenario.first_step_number
    return {
        "cause": fault.cause,
        "accepted": _accepted(fault, scenario),
        "ranks": list(fault.ranks),
        "nodes": [] if node_names is None else [node_names[node] for node in nodes],
        "first_step": fault.first_step + first_number,
        "last_step": None if fail_stop else last + first_number,
        "severity": fault.severity,
        "seconds_per_step": None if fail_stop else cost["seconds_per_step"],
        "alone_seconds_per_step": None if fail_stop else cost["alone_seconds_per_step"],
        **_shared(fault, scenario),
        **_whose_processes(fault, scenario),
    }


def _whose_processes(fault: Fault, scenario: SimulationScenario) -> dict[str, str]:
    """Whose processes take the CPUs: of strangers, or of the job itself."""
    if fault.cause != "cpu_contention" or scenario.corpus == 1:
        return {}
    return {"processes": "own" if fault.variant in OWN_PROCESSES else "others"}


def _shared(fault: Fault, scenario: SimulationScenario) -> dict[str, dict[str, str]]:
    """The part of the wiring that a fault is of; empty if it is of none."""
    if scenario.wiring is None or not fault.ranks:
        return {}
    node, gpu = divmod(fault.ranks[0], scenario.ranks_per_node)
    leaf, switch = scenario.wiring.leaf(node), scenario.wiring.switch(gpu)
    if fault.rail is not None:
        return {"shared": {"level": "rail", "name": str(fault.rail), "within": leaf}}
    mates = [
        rank
        for rank in scenario.ranks_on(node)
        if scenario.wiring.switch(rank % scenario.ranks_per_node) == switch
    ]
    if fault.cause == "pcie_degradation" and list(fault.ranks) == mates and len(mates) > 1:
        return {"shared": {"level": "pcie_switch", "name": switch}}
    nodes = [each for each in range(scenario.n_nodes) if scenario.wiring.leaf(each) == leaf]
    if fault.cause == "network_congestion" and list(fault.nodes) == nodes and len(nodes) < scenario.n_nodes:
        return {"shared": {"level": "leaf_switch", "name": leaf}}
    return {}


def _type(fault: Fault) -> str | None:
    return (
        UNEXPLAINED_TYPES[variant_of(fault, "compute")]
        if fault.cause == UNKNOWN
        else FAULTS[fault.cause].straggler_type
    )


def _accepted(fault: Fault, scenario: SimulationScenario) -> list[str]:
    """List the cause, and the causes that this window's telemetry cannot separate from it."""
    telemetry = scenario.telemetry
    seen = set(telemetry.exporters)
    if telemetry.events:
        seen.add("events")
    blind = telemetry.visibility in HARDLY_VISIBLE
    if not blind and "gc_seconds" not in telemetry.missing_phases:
        seen.add("gc_seconds")
    alike, tells = INDISTINGUISHABLE.get(fault.cause, ((), frozenset()))
    accepted = [fault.cause]
    testbed_device = scenario.dialect == "cpu_testbed" and fault.cause == "gpu_throttling"
    if not seen & tells or testbed_device:
        accepted += list(alike)
    accepted += [name for name in _alike_by_variant(fault, scenario, seen) if name not in accepted]
    if blind and UNKNOWN not in accepted and FAULTS[fault.cause].straggler_type is not None:
        accepted.append(UNKNOWN)
    return accepted


def _alike_by_variant(fault: Fault, scenario: SimulationScenario, seen: Set[str]) -> tuple[str, ...]:
    """Further causes that the later variants of faults cannot be separated from."""
    hidden = {*scenario.telemetry.missing_phases, *columns_not_timed(scenario.telemetry.phase_accounting)}
    if fault.cause == "checkpoint_stall" and fault.seconds is not None and "checkpoint_seconds" in hidden:
        return (UNKNOWN,)
    if fault.variant == "turns" and not seen & {"python", "gc_seconds"}:
        return (UNKNOWN,)
    if fault.variant == "own_loaders":
        return ("data_loader_stall",)
    # The port that ends the job is the cause of the crash.
    return ("nic_degradation", "hang") if fault.variant == "link" else ()


def _pattern(fault: Fault, scenario: SimulationScenario) -> str:
    if fault.variant == "older":
        return "deterministic"
    _, end = scenario.steps_with_rows(stop_step_of(scenario))
    return pattern_of(fault.cause, ends_inside=fault.last_step is not None and fault.last_step < end - 1)


def _notes(scenario: SimulationScenario, hidden: Sequence[Fault]) -> str:
    injected = ", ".join(f"{fault.cause}/{fault.variant or 'default'}" for fault in scenario.faults)
    text = f"{scenario.dialect}: {injected or 'nothing injected'}"
    if hidden:
        text += "; without visible effect: " + ", ".join(fault.cause for fault in hidden)
    if scenario.benign.harmless:
        text += "; harmless: " + ", ".join(signal.kind for signal in scenario.benign.harmless)
    return text
