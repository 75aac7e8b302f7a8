"""A diagnosis to render, and a way to vary it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rca.diagnosis.result import (
    Action,
    Cause,
    Diagnosis,
    Evidence,
    ModelVersion,
    Quality,
    Slowdown,
    Straggler,
)

THROTTLED = Diagnosis(
    diagnosis_id="d-1",
    window_id="w-1",
    job_id="llama-7b",
    created_at=datetime(2026, 3, 1, 3, 0, tzinfo=UTC),
    model=ModelVersion(name="baseline", version="0.1.0", sha256="ab" * 32),
    failure_mode="fail_slow",
    failure_mode_probability={"healthy": 0.01, "fail_slow": 0.99, "fail_stop": 0.0},
    slowdown=Slowdown(
        ratio=1.28, seconds_per_step=0.032, versus_own_past=1.27, interval=(0.028, 0.036), gpu_hours_lost=0.01
    ),
    stragglers=[
        Straggler(
            ranks=[6],
            nodes=["node-3"],
            scope="rank",
            straggler_type="compute",
            pattern="persistent",
            probability=0.93,
            first_step=12,
            last_step=65,
        )
    ],
    causes=[
        Cause(
            cause="gpu_throttling",
            ranks=[6],
            nodes=["node-3"],
            probability=0.83,
            seconds_per_step=0.029,
            interval=(0.02, 0.033),
            share=0.906,
            owner="infrastructure",
            evidence=[
                Evidence(
                    signal="DCGM_FI_DEV_SM_CLOCK",
                    value=1410.0,
                    reference=1755.0,
                    unit="MHz",
                    note="while busy",
                )
            ],
        )
    ],
    unexplained_seconds_per_step=0.003,
    abstained=False,
    next_check="nvidia-smi -q -d PERFORMANCE on node-3",
    actions=[
        Action(
            action="drain_node",
            expected_seconds_per_step_saved=0.029,
            interval=(0.02, 0.033),
            cost_seconds=600.0,
            break_even_steps=20690,
            runbook="Cordon the node, then restart from the last checkpoint.",
        )
    ],
    missing_signals=["DCGM_FI_DEV_XID_ERRORS"],
    quality=Quality(
        rows_used=520,
        rows_unused=8,
        steps_used=65,
        warmup_steps=1,
        metric_samples_used=31619,
        events_used=0,
        events_unused=0,
        metric_samples_unused=0,
        unknown_metrics=["foo_total"],
        notes=["rank 3 reports no metrics"],
    ),
)


@pytest.fixture(scope="session")
def throttled() -> Diagnosis:
    return THROTTLED


@pytest.fixture
def varied() -> Callable[..., Diagnosis]:
    """Build the throttled diagnosis with some fields replaced."""

    def build(**changes: Any) -> Diagnosis:
        return THROTTLED.model_copy(update=changes)

    return build
