"""Hand-made labels, answers and judged rows."""

from __future__ import annotations

from math import nan
from typing import Any

from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.judged_rows import PRODUCT, JudgedRow
from rca.lab.evaluation.scores import judge
from rca.sources.labels import WindowLabel

HEALTHY = WindowLabel(failure_mode="healthy")
SILENT = MethodAnswer("healthy", confidence=0.9)


def slow_label(cause: str = "gpu_throttling", ranks: tuple[int, ...] = (6,), **known: Any) -> WindowLabel:
    return WindowLabel.model_validate(
        {
            "failure_mode": "fail_slow",
            "straggler_type": "compute",
            "pattern": "transient",
            "causes": [{"cause": cause, "ranks": ranks, **known}],
        }
    )


def slow_answer(cause: str = "gpu_throttling", ranks: tuple[int, ...] = (6,), **more: Any) -> MethodAnswer:
    held = frozenset(ranks)
    return MethodAnswer("fail_slow", held, (NamedCause(cause, held),), **{"confidence": 0.9, **more})


def row(
    answer: MethodAnswer,
    label: WindowLabel = HEALTHY,
    *,
    window: str = "w",
    method: str = PRODUCT,
    signals: str = "all",
    world_size: int = 8,
    severity: float = nan,
    hours: float = 1.0,
    delay_steps: float = nan,
) -> JudgedRow:
    return JudgedRow(
        window=window,
        source=label.source,
        cause=label.causes[0].cause if label.causes else "healthy",
        severity=severity,
        world_size=world_size,
        hours=hours,
        signals=signals,
        method=method,
        first_cause=answer.causes[0].cause if answer.causes else answer.mode,
        judged=judge(answer, label),
        delay_steps=delay_steps,
    )
