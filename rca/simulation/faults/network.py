"""Faults of links: one node's NIC, the fabric, the links inside a node."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, jitter, nodes_of, variant_of
from rca.simulation.resources import Resources
from rca.simulation.sampling_job import log_uniform
from rca.simulation.scenario import Fault, Scenario


def nic(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Make one port slow, late or lossy; a ring collective slows down for all its members."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    shape = (nodes.size, scenario.n_steps)
    variant, severity = variant_of(fault, "bandwidth"), fault.severity
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


def congestion(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
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


def nvlink(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Links inside one node retrain and replay; collectives inside it take longer."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    slowdown = 14 * fault.strength * fault.force**2 * jitter(rng, (nodes.size, scenario.n_steps), 0.15)
    resources.nvlink_stretch[nodes] *= 1 + slowdown * active
