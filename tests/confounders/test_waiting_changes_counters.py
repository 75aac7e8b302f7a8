"""Confounder 2: a GPU that waits lowers its clock, power, PCIe generation and utilisation, and is healthy."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import (
    BUSY_CLOCK,
    HOT_CLOCK,
    KERNELS,
    THERMAL_REASON,
    Exported,
    believed,
    blamed,
    exported,
    idle_gpus,
    names_of,
    replaced,
    waiting_share,
)

import rca
from tests.for_each import for_each

HARDWARE = {"gpu_throttling", "gpu_contention", "gpu_memory_errors", "pcie_degradation"}
STRETCHES = pytest.mark.parametrize("steps", [slice(None), slice(15, 32)], ids=["always", "for a while"])


@STRETCHES
@for_each("n_ranks", [2, 8, 64])
def test_idle_clocks_of_waiting_gpus_are_not_throttling(make_window, n_ranks: int, steps: slice) -> None:
    """Rank 1's loader stalls; the others wait for it at 600 MHz, 95 W and PCIe generation 1."""
    window = make_window(
        n_ranks,
        late={1: 0.2},
        steps=steps,
        phase="data_loading_seconds",
        ranks_per_node=max(1, min(8, n_ranks // 4)),
    )
    diagnosis = rca.diagnose(exported(window, *idle_gpus(window)))
    assert blamed(diagnosis) == {1}
    # Of two ranks one has no third to say what is usual.
    assert not names_of(believed(diagnosis, 0.4 if n_ranks == 2 else 0.2)) & HARDWARE
    # What starves a rank of input, none of whose own signals were collected.
    assert diagnosis.causes[0].cause in {"data_loader_stall", "storage_degradation", "memory_pressure"}


@STRETCHES
def test_a_throttled_gpu_is_named_although_waiting_ones_run_at_lower_clocks(
    make_window, steps: slice
) -> None:
    """1170 MHz while busy is a fault; 600 MHz while waiting for it is not."""
    window = make_window(phase=KERNELS, late={5: 0.16}, steps=steps)
    throttled = waiting_share(window)[0] > 0.3
    series = []
    for each in idle_gpus(window):
        level = np.array(each.level, dtype=float)
        if each.name.endswith("SM_CLOCK"):
            level[5] = np.where(throttled, HOT_CLOCK, BUSY_CLOCK)
        if each.name.endswith("EVENT_REASONS"):
            level[5] = np.where(throttled, THERMAL_REASON, 0)
        if each.name.endswith("GPU_TEMP"):
            level[5] = np.where(throttled, 88.0, 63.0)
        series.append(Exported(each.name, level))
    diagnosis = rca.diagnose(exported(window, *series))
    assert blamed(diagnosis) == {5}
    assert believed(diagnosis) == {("gpu_throttling", (5,))}


def test_the_same_low_clock_is_throttling_on_the_busy_rank_only(make_window) -> None:
    """All ranks at one clock: nothing in the clocks tells whose fault it is, arrival times do."""
    window = make_window(phase=KERNELS, late={5: 0.16}, steps=slice(15, 32))
    series = replaced(idle_gpus(window, above=2.0), 5, SM_CLOCK=BUSY_CLOCK)
    assert blamed(rca.diagnose(exported(window, *series))) == {5}


def test_idle_gpus_of_a_healthy_job_are_nobodys_fault(make_window) -> None:
    """A job that mostly communicates lets all its GPUs rest; so do the first seconds of any job."""
    window = make_window(transfer=0.4)
    rested = [
        Exported("DCGM_FI_DEV_SM_CLOCK", np.full((8, 1), 900.0)),
        Exported("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", np.full((8, 1), 0x1)),
        Exported("DCGM_FI_DEV_PCIE_LINK_GEN", np.full((8, 1), 1)),
        Exported("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", np.full((8, 1), 5)),
    ]
    assert rca.diagnose(exported(window, *rested)).failure_mode == "healthy"


def test_a_gpu_that_idles_at_pcie_generation_1_is_not_degraded(make_window) -> None:
    """Without lateness a low link state is only a sleeping link."""
    window = make_window()
    generation = np.full((8, 40), 5)
    generation[3, 10:] = 1
    diagnosis = rca.diagnose(
        exported(
            window,
            Exported("DCGM_FI_DEV_PCIE_LINK_GEN", generation),
            Exported("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", np.full((8, 1), 5)),
        )
    )
    assert diagnosis.failure_mode == "healthy"
