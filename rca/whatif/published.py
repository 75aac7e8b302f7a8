"""The result in the layout of the published tool, so that its users can switch and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput

if TYPE_CHECKING:
    from rca.whatif.result import WhatIf


def published_result(result: WhatIf) -> dict[str, Any]:
    """Keys of ``result-*.json`` plus ``Mw`` and ``Ms``; slowdowns sorted from the largest.

    Raises
    ------
    InvalidInput
        If phases were replayed: the layout has no place to say that its operation types are phases, and
        whoever compares it with the published tool's would not see it.
    """
    if result.source != "operations":
        raise InvalidInput(
            "the published format describes operation traces; this job is known by its phases only",
            hint="use the json format, which says so",
        )
    steps = [str(step) for step in result.steps]
    blocking = result.no_delay / result.ideal
    launch = result.measured.astype(np.float64) / result.no_delay
    answer: dict[str, Any] = {
        "job_meta": dict(result.job),
        "step_t_base": _by_step(steps, result.measured.astype(np.float64)),
        "step_t_nodelay": _by_step(steps, result.no_delay),
        "step_t_noblk": _by_step(steps, result.ideal),
        "launch_slowdown": result.launch_slowdown,
        "blocking_slowdown": result.slowdown,
        "blocking_step_slowdown": _largest_first(steps, blocking),
        "launch_step_slowdown": _largest_first(steps, launch),
    }
    order = np.argsort(-blocking, kind="stable")
    for name, parts in (
        ("dp_rank", result.by_data_rank),
        ("stage", result.by_stage),
        ("optype", result.by_type),
    ):
        answer[f"blocking_decompose_by_{name}"] = _text_keys(parts.slowdown(result.ideal))
        answer[f"launch_decompose_by_{name}"] = None
        answer[f"blocking_decompose_by_{name}_per_step"] = {
            steps[k]: _text_keys(parts.step_slowdown(result.ideal, int(k))) for k in order
        }
        answer[f"launch_decompose_by_{name}_per_step"] = None
    answer["Mw"] = result.m_w.published
    answer["Ms"] = result.m_s.published
    return answer


def _by_step(steps: list[str], values: FloatArray) -> dict[str, float]:
    return dict(zip(steps, values.tolist(), strict=True))


def _largest_first(steps: list[str], values: FloatArray) -> dict[str, float]:
    return {steps[k]: float(values[k]) for k in np.argsort(-values, kind="stable")}


def _text_keys(slowdowns: dict[Any, float]) -> dict[str, float]:
    return {str(label): value for label, value in slowdowns.items()}
