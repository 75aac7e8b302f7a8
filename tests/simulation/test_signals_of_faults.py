"""Each cause moves its exporters' signals on its victims, against healthy peers and against before."""

from __future__ import annotations

from simulated import change, scenario

from rca.lab.simulation import HarmlessSignal, SimulationScenario, simulate
from tests.for_each import for_each

# Cause, variant, signal, scope, dialect, direction.
SIGNALS = [
    ("gpu_throttling", "thermal", "DCGM_FI_DEV_SM_CLOCK", "rank", "mixed", "down"),
    ("gpu_throttling", "thermal", "DCGM_FI_DEV_GPU_TEMP", "rank", "mixed", "up"),
    ("gpu_throttling", "thermal", "DCGM_FI_DEV_THERMAL_VIOLATION", "rank", "mixed", "up"),
    ("gpu_throttling", "power", "DCGM_FI_DEV_POWER_VIOLATION", "rank", "mixed", "up"),
    ("gpu_contention", "process", "DCGM_FI_PROF_SM_ACTIVE", "rank", "mixed", "up"),
    ("gpu_memory_errors", "remap", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "rank", "mixed", "up"),
    ("pcie_degradation", "generation", "DCGM_FI_DEV_PCIE_LINK_GEN", "rank", "mixed", "down"),
    ("pcie_degradation", "width", "DCGM_FI_DEV_PCIE_LINK_WIDTH", "rank", "mixed", "down"),
    ("pcie_degradation", "replay", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "rank", "mixed", "up"),
    ("nvlink_degradation", "errors", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "rank", "mixed", "up"),
    ("nic_degradation", "bandwidth", "node_infiniband_port_transmit_wait_total", "node", "mixed", "up"),
    ("nic_degradation", "bandwidth", "node_qdisc_backlog", "node", "cpu_testbed", "up"),
    ("nic_degradation", "delay", "node_tcp_rtt_seconds", "node", "cpu_testbed", "up"),
    ("nic_degradation", "loss", "node_netstat_Tcp_RetransSegs", "node", "cpu_testbed", "up"),
    ("network_congestion", "fabric", "node_infiniband_port_transmit_wait_total", "node", "mixed", "up"),
    ("cpu_contention", "hogs", "process_schedstat_waiting_seconds_total", "rank", "cpu_testbed", "up"),
    ("cpu_contention", "hogs", "node_pressure_cpu_waiting_seconds_total", "node", "mixed", "up"),
    ("cpu_contention", "hogs", "node_cpu_seconds_total", "node", "cpu_testbed", "up"),
    ("cpu_contention", "quota", "container_cpu_cfs_throttled_seconds_total", "rank", "cpu_testbed", "up"),
    ("memory_pressure", "reclaim", "node_pressure_memory_waiting_seconds_total", "node", "mixed", "up"),
    ("memory_pressure", "reclaim", "process_major_page_faults_total", "rank", "cpu_testbed", "up"),
    ("data_loader_stall", "decoding", "process_cpu_seconds_total", "rank", "cpu_testbed", "up"),
    ("storage_degradation", "disk", "container_pressure_io_waiting_seconds_total", "rank", "mixed", "up"),
    ("storage_degradation", "disk", "node_disk_io_time_seconds_total", "node", "mixed", "up"),
    ("runtime_gc", "leak", "python_gc_pause_seconds_total", "rank", "cpu_testbed", "up"),
]  # fmt: skip


def _observed(drawn: SimulationScenario):
    window = simulate(drawn).window
    steps = window.steps.to_pandas()
    at = steps.groupby("step").start_time.min()
    return window, (float(at[3]), float(at[20])), (float(at[22]), float(at[50]))


@for_each(("cause", "variant", "signal", "scope", "dialect", "direction"), SIGNALS)
def test_signals_change_on_the_affected_ranks(cause, variant, signal, scope, dialect, direction):
    drawn = scenario(cause, dialect=dialect)
    injected = drawn.faults[0].model_copy(update={"variant": variant})
    window, before, during = _observed(drawn.model_copy(update={"faults": (injected,)}))
    names = window.job.topology.node_names
    hit = set(injected.ranks) if scope == "rank" else {names[node] for node in injected.nodes}
    calm, now = change(window, signal, scope, *before), change(window, signal, scope, *during)
    sign = 1 if direction == "up" else -1
    victims = [sign * now[entity] for entity in now if entity in hit]
    peers = [sign * now[entity] for entity in now if entity not in hit]
    past = [sign * calm[entity] for entity in calm if entity in hit]
    assert sum(victims) / len(victims) > max(peers)
    assert sum(victims) > sum(past)


def test_waiting_healthy_gpus_lower_their_clock():
    drawn = scenario("data_loader_stall", dialect="mixed")
    slow = drawn.workload.model_copy(
        update={name: getattr(drawn.workload, name) * 10 for name in ("forward_seconds", "backward_seconds")}
    )
    window, before, during = _observed(drawn.model_copy(update={"workload": slow}))
    power = "DCGM_FI_DEV_POWER_USAGE"
    calm, now = change(window, power, "rank", *before), change(window, power, "rank", *during)
    assert all(now[rank] < 0.95 * calm[rank] for rank in range(8))


def _retransmits(observed):
    window, _before, during = _observed(observed)
    return change(window, "node_netstat_Tcp_RetransSegs", "node", *during)


def test_a_harmless_signal_rises_without_a_cause_or_a_cost():
    drawn = scenario(dialect="mixed")
    noisy = drawn.benign.model_copy(update={"harmless": (HarmlessSignal(kind="tcp_retransmits", rank=4),)})
    made = simulate(drawn.model_copy(update={"benign": noisy}))
    rates, usual = (_retransmits(each) for each in (made.scenario, drawn))
    guilty_looking = made.window.job.topology.node_names[2]
    assert rates[guilty_looking] > usual[guilty_looking] + 3
    assert made.label["failure_mode"] == "healthy"
    assert made.label["causes"] == []
