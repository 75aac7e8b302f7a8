"""Faults of links: one node's NIC, the fabric, the links inside a node."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.faults.kind import envelope, event_seconds, jitter, nodes_of, ranks_of, variant_of
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import Fault, SimulationScenario

#: Share of ports with less bandwidth that have trained to a lower rate; the others are limited elsewhere.
TRAINED_LOWER_SHARE = 0.6


def nic(resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator) -> None:
    """Make one port slow, late or lossy; a ring collective slows down for all its members."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    shape = (nodes.size, scenario.n_steps)
    variant, severity = variant_of(fault, "bandwidth"), fault.severity
    if variant == "flap":
        _flap(resources, fault, scenario, rng)
        return
    if variant == "delay":
        slowdown = 3.6 * fault.strength * fault.force**3.5 * jitter(rng, shape, 0.12)
        resources.nic_delay[nodes] += active * 0.0034 * severity**2
        if scenario.dialect != "cpu_testbed":
            # A late port sends again what its link corrupted.
            resources.nic_errors[nodes] += active * severity * rng.choice([0.0, 0.1, 1.0])
    elif variant == "loss":
        slowdown = 18 * fault.strength * fault.force**3.8 * jitter(rng, shape, 0.6)
        resources.nic_loss[nodes] += active * 0.06 * severity**2
    else:
        slowdown = 2.1 * fault.strength * fault.force**3.5 * jitter(rng, shape, 0.08)
        if scenario.dialect != "cpu_testbed":
            slowdown = slowdown * 3
        resources.nic_queue[nodes] += active * severity**2
        resources.nic_delay[nodes] += active * log_uniform(rng, 5e-5, 2e-3) * severity
        # Downgraded links often show errors, but not always.
        resources.nic_errors[nodes] += active * severity * rng.choice([0.0, 0.05, 1.0])
    resources.nic_stretch[nodes] *= 1 + slowdown * active
    if variant == "bandwidth" and scenario.corpus > 1 and rng.random() < TRAINED_LOWER_SHARE:
        # A port trains to a rate of a power of two, next to what is left of its bandwidth.
        halvings = np.maximum(np.ceil(np.log2(1 + slowdown * active) - 0.3), 0.0)
        resources.port_rate[nodes] = np.minimum(resources.port_rate[nodes], 0.5**halvings)


def _flap(resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator) -> None:
    """A port goes down now and then, and comes up again within seconds; transfers wait for it."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    acting = np.flatnonzero(active > 0)
    count = min(acting.size, max(2, round(acting.size / (fault.every or max(2, acting.size // 5)))))
    steps = rng.choice(acting, count, replace=False)
    # One of the events is the last step before the port stays down.
    steps[0] = acting[-1]
    away = event_seconds(fault, scenario, 3.0) * jitter(rng, (nodes.size, count), 0.5)
    resources.nic_stretch[np.ix_(nodes, steps)] *= 1 + away / scenario.workload.transfer_seconds
    resources.port_down[np.ix_(nodes, steps)] += rng.integers(1, 4, (nodes.size, count))
    resources.nic_errors[np.ix_(nodes, steps)] += rng.choice([0.0, 0.3, 3.0])


def misconfiguration(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Let collectives share an adapter, use a far one, or TCP sockets; no counter of errors moves."""
    ranks, nodes, active = ranks_of(fault), nodes_of(fault), envelope(fault, scenario, rng)
    variant = variant_of(fault, "shared_adapter")
    longer = jitter(rng, (ranks.size, scenario.n_steps), 0.04) * active
    if variant == "sockets":
        slowdown = 9 * fault.strength * fault.force * jitter(rng, (1, scenario.n_steps), 0.1)
        resources.nic_stretch[nodes] *= 1 + slowdown * active
        resources.sockets[nodes] = np.maximum(resources.sockets[nodes], active)
        # The processor copies what the adapter moved by itself.
        resources.own_cores[ranks] += 0.1 * active
        return
    if variant == "shared_adapter":
        sharing = max(2.0, ranks.size / max(nodes.size, 1))
        longer = (sharing - 1) * np.clip(fault.strength, 0.8, 1.1) * longer
        resources.crossed_port[nodes] = np.where(active > 0, 1 + scenario.seed % 4, 0)
    else:
        longer = 3 * fault.strength * fault.force * longer
    resources.adapter_stretch[ranks] += fault.own_share * longer
    resources.ring_stretch[ranks] += (1 - fault.own_share) * longer


def congestion(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Congest the shared fabric: many ports mark, pause and queue, and none of them is faulty."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    tide = jitter(rng, (1, scenario.n_steps), 0.25)
    own = jitter(rng, (nodes.size, 1), 0.15) * jitter(rng, (nodes.size, scenario.n_steps), 0.1)
    worst = 6.0 * fault.strength * fault.force**2
    resources.nic_stretch[nodes] *= 1 + worst * active * tide * own
    if fault.rail is not None:
        resources.only_port[nodes] = 1 + fault.rail
    resources.congestion[nodes] += active * fault.severity * tide * own
    # Full queues drop packets or delay them, depending on their configuration.
    resources.nic_loss[nodes] += rng.choice([0.0, 0.5, 1.0]) * active * 0.004 * fault.severity * own
    resources.nic_delay[nodes] += active * log_uniform(rng, 1e-4, 4e-3) * fault.severity * own
    resources.nic_queue[nodes] += log_uniform(rng, 0.1, 1.2) * active * fault.severity * own


def nvlink(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Links inside one node retrain and replay; collectives inside it take longer."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    slowdown = 14 * fault.strength * fault.force**2 * jitter(rng, (nodes.size, scenario.n_steps), 0.15)
    resources.nvlink_stretch[nodes] *= 1 + slowdown * active
