"""Sound machines count errors, too: what a healthy fleet shows, and that it costs nothing."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import change, cluster_workload, phase, scenario

from rca.lab.simulation import Benign, Telemetry, sample_scenario, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.healthy_job import GcPauses
from rca.lab.simulation.impact import VISIBLE_SLOWDOWN
from rca.lab.simulation.machine_differences import BACKGROUND_RATES
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.timing import run_steps

SEEN = Telemetry(exporters=tuple(EXPORTERS), interval_seconds=1.0)


def healthy(seed: int, **changes):
    """A healthy cluster job of 128 steps with every exporter."""
    return simulate(scenario(dialect="mixed", seed=seed, n_steps=128, telemetry=SEEN, **changes))


@pytest.mark.parametrize(
    ("name", "scope"),
    [("node_network_receive_drop_total", "node"), ("container_cpu_cfs_throttled_seconds_total", "rank")],
)
def test_counters_rise_on_some_healthy_fleets_only(name: str, scope: str) -> None:
    rises = []
    for seed in range(12):
        made = healthy(seed)
        assert made.label["failure_mode"] == "healthy"
        rises.append(
            max(change(made.window, name, scope, made.window.job.start, made.window.job.end).values())
        )
    assert min(rises) == 0.0
    assert 0.0 < max(rises) < 20 * BACKGROUND_RATES[name].high


def test_every_metric_in_the_table_is_exported() -> None:
    exported = {
        name if device is None else f"{name}/{device}"
        for seed in (0, 1)
        for name, device in _series(healthy(seed).window)
    }
    exported |= {name.split("/")[0] for name in exported}
    assert set(BACKGROUND_RATES) <= exported


def _series(window) -> set[tuple[str, str | None]]:
    names, devices = (window.metrics[column].to_pylist() for column in ("name", "device"))
    return set(zip(names, devices, strict=True))


@pytest.mark.parametrize("together", [True, False])
def test_planned_gc_pauses_are_short(together: bool) -> None:
    planned = Benign(gc_pauses=GcPauses(every=10, seconds=0.002, together=together))
    window = healthy(3, benign=planned, workload=cluster_workload()).window
    pauses = phase(window, "gc_seconds")
    assert ((pauses > 0).sum(axis=1) >= 12).all()
    starts = {int(np.flatnonzero(row)[0]) for row in pauses > 0}
    assert (len(starts) == 1) is together


def test_gc_pauses_of_every_step_differ_between_ranks() -> None:
    planned = Benign(gc_pauses=GcPauses(every=1, seconds=0.002, together=False, uneven=0.6))
    pauses = phase(healthy(3, benign=planned, workload=cluster_workload()).window, "gc_seconds")
    assert (pauses > 0).all()
    assert 0.001 < np.median(pauses) < 0.004
    first, second = (half.mean(axis=1) for half in np.array_split(pauses, 2, axis=1))
    assert np.corrcoef(np.log(first), np.log(second))[0, 1] > 0.9
    assert first.max() > 1.3 * first.min()


def test_sampled_gc_pauses_cost_little() -> None:
    rng = np.random.default_rng(11)
    drawn = [sample_scenario(rng, cause="healthy") for _ in range(400)]
    always = [each for each in drawn if each.benign.gc_pauses and each.benign.gc_pauses.every == 1]
    small = [each for each in always if each.world_size <= 64]
    assert len(small) > 20
    for each in small:
        without = each.model_copy(update={"benign": each.benign.model_copy(update={"gc_pauses": None})})
        paused, calm = (
            run_steps(one, apply_faults(one), draw_noise(one)).step_seconds.mean() for one in (each, without)
        )
        assert paused / calm - 1 < VISIBLE_SLOWDOWN
