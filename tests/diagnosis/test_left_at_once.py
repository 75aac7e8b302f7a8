"""Who stops a job leaves peers that wait; a job gone from all ranks at once was done, or was ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from simulated_jobs import job

import rca
from rca.features import extract
from rca.simulation import simulate
from rca.telemetry.window import Window

MEMORY = "DCGM_FI_DEV_FB_USED"
DEVICE = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE", MEMORY)
#: What an idle device shows of a busy one's figures.
IDLE = 0.05
LAST = 59


def ended(
    *told: tuple[str, str], busy: tuple[int, ...] = (), holding: tuple[int, ...] = (), **changes: Any
) -> Window:
    """A healthy job without a row after its sixtieth step.

    Parameters
    ----------
    told : (kind, message)
        Events at its end.
    busy, holding : tuple of int
        Ranks whose devices stay busy, or keep their memory.
    """
    window = simulate(job(seed=5, **changes)).window
    steps = window.steps.filter(pa.array(window.steps["step"].to_numpy() <= LAST))
    end = float((steps["start_time"].to_numpy() + steps["step_seconds"].to_numpy()).max())
    metrics = window.metrics.to_pandas()
    metrics = metrics[metrics["name"].isin(DEVICE)]
    held = metrics["name"] == MEMORY
    kept = np.where(held, metrics["rank"].isin(holding), metrics["rank"].isin(busy))
    metrics.loc[(metrics["time"] > end) & ~kept, "value"] *= IDLE
    events = [
        {"time": end, "node": None, "rank": None, "kind": kind, "code": None, "message": message}
        for kind, message in told
    ]
    return replace(
        window,
        steps=steps,
        metrics=pa.Table.from_pandas(metrics, schema=window.metrics.schema, preserve_index=False),
        events=pa.Table.from_pylist(events, schema=window.events.schema),
    )


def test_a_job_gone_from_everybody_at_once_is_no_stop_and_no_health() -> None:
    diagnosis = rca.diagnose(ended(("log", "step 59 | loss 2.31")))
    assert diagnosis.failure_mode == "healthy"
    assert diagnosis.abstention_reason is not None
    assert diagnosis.abstention_reason.code == "left_at_once"
    assert "sacct" in diagnosis.next_check


@pytest.mark.parametrize(
    "told",
    [
        ("process_exit", "exited with 1"),
        ("log", "Traceback (most recent call last)"),
        ("restart", "attempt 2"),
        ("xid", "79"),
    ],
    ids=lambda told: told[0],
)
def test_whoever_complains_makes_it_a_stop(told: tuple[str, str]) -> None:
    assert not extract(ended(told)).endings.left
    assert rca.diagnose(ended(told)).failure_mode == "fail_stop"


@pytest.mark.parametrize("who", [{"busy": (3,)}, {"holding": (3,)}], ids=["spins", "keeps its memory"])
def test_one_rank_that_is_still_there_makes_it_a_stop(who: dict[str, tuple[int, ...]]) -> None:
    assert not extract(ended(**who)).endings.left
    assert rca.diagnose(ended(**who)).failure_mode == "fail_stop"


def test_without_a_device_known_of_every_rank_nobody_can_say_it() -> None:
    window = ended()
    ranks = window.metrics["rank"].to_pandas()
    unknown = replace(window, metrics=window.metrics.filter(pa.array((ranks != 7).to_numpy())))
    assert extract(window).endings.left
    assert not extract(unknown).endings.left
    assert rca.diagnose(unknown).failure_mode == "fail_stop"


def test_who_did_fewer_steps_was_the_first_to_go() -> None:
    window = ended()
    early = (window.steps["rank"].to_numpy() == 2) & (window.steps["step"].to_numpy() > LAST - 2)
    assert not extract(replace(window, steps=window.steps.filter(pa.array(~early)))).endings.left
