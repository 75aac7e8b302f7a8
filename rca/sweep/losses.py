"""What-if results of the traces of an archive as a data set: what each job lost, and to what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rca.errors import RcaError
from rca.sweep.archive import Found
from rca.sweep.data_set import REFUSED, TIME, DataSet, Row
from rca.whatif.attribution import Decomposition
from rca.whatif.result import WhatIf

ANALYSED, LEFT_OUT = "analysed", "left_out"
_PARTS = [("name", pa.string()), ("slowdown", pa.float64()), ("seconds_per_step", pa.float64())]
_PATTERNS = [("name", pa.string()), ("share", pa.float64()), ("seconds_per_step", pa.float64())]
#: Columns of a row. Costs are in seconds per step and in GPU-hours, shares between 0 and 1.
SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("version", pa.string()),
        ("analysis", pa.string()),
        ("swept_at", TIME),
        # "analysed"; "refused" with an error; "left_out" if the file holds no operations.
        ("outcome", pa.string()),
        ("job_id", pa.string()),
        ("run_id", pa.string()),
        ("steps", pa.int64()),
        ("steps_left_out", pa.int64()),
        ("world_size", pa.int64()),
        ("data_ranks", pa.int64()),
        ("stages", pa.int64()),
        ("slowdown", pa.float64()),
        ("slowdown_lower", pa.float64()),
        ("slowdown_upper", pa.float64()),
        # Share of the replayed time that is lost: 1 - 1 / slowdown.
        ("waste", pa.float64()),
        # Replayed step time, and what of it is lost.
        ("step_seconds", pa.float64()),
        ("seconds_per_step", pa.float64()),
        # Of all replayed steps and GPUs, and what of them is lost.
        ("gpu_hours", pa.float64()),
        ("gpu_hours_lost", pa.float64()),
        ("launch_slowdown", pa.float64()),
        ("fidelity", pa.float64()),
        # What each type of operations costs alone, the costliest first. The parts do not add up.
        ("types", pa.list_(pa.struct(_PARTS))),
        ("worst_type", pa.string()),
        ("worst_stage", pa.int64()),
        ("worst_stage_slowdown", pa.float64()),
        ("worst_rank", pa.int64()),
        ("worst_rank_slowdown", pa.float64()),
        ("m_w", pa.float64()),
        ("m_s", pa.float64()),
        # What the steps would save without each pattern, the costliest first. Patterns overlap.
        ("patterns", pa.list_(pa.struct(_PATTERNS))),
        ("warnings", pa.list_(pa.string())),
        ("error", pa.string()),
        ("error_message", pa.string()),
        # The whole answer without its steps, as JSON.
        ("document", pa.string()),
    ]
)


class Losses(DataSet):
    """A data set of what-if results."""

    schema = SCHEMA
    maker = "analysis"
    holds = "what-if results"

    @staticmethod
    def outcome_of(row: Row) -> str:
        """Whether the trace was analysed, refused or left out."""
        return str(row["outcome"])

    @classmethod
    def error_row(cls, found: Found, made_by: str, error: RcaError) -> Row:
        """The row of a trace that cannot be replayed."""
        return super().error_row(found, made_by, error) | {"outcome": REFUSED}


def row_of(found: Found, analysis: str, job_id: str, result: WhatIf) -> Row:
    """The row of a result.

    Parameters
    ----------
    analysis : str
        Version of the analysis.
    job_id : str
        Used if the metadata names no job.
    """
    lower, upper = result.intervals["slowdown"]
    step = float(result.no_delay.mean())
    exact = result.workers.slowdown(result.ideal)
    worst = int(np.argmax(np.nan_to_num(exact, nan=-np.inf)))
    types = _parts(result.by_type, result)
    stage, stage_slowdown = next(iter(result.by_stage.slowdown(result.ideal).items()))
    return Losses.empty_row(found, analysis) | {
        "outcome": ANALYSED,
        "job_id": _text(result.job, "trial_name") or job_id,
        "run_id": _text(result.job, "run_id"),
        "steps": int(result.steps.size),
        "steps_left_out": int(result.left_out),
        "world_size": result.world_size,
        "data_ranks": len(result.by_data_rank.labels),
        "stages": len(result.by_stage.labels),
        "slowdown": _known(result.slowdown),
        "slowdown_lower": _known(lower),
        "slowdown_upper": _known(upper),
        "waste": _known(result.waste),
        "step_seconds": step,
        "seconds_per_step": result.seconds_lost_per_step,
        "gpu_hours": step * result.steps.size * result.world_size / 3600.0,
        "gpu_hours_lost": result.gpu_hours_lost,
        "launch_slowdown": _known(result.launch_slowdown),
        "fidelity": _known(result.fidelity),
        "types": types,
        "worst_type": types[0]["name"] if types else None,
        "worst_stage": int(stage),
        "worst_stage_slowdown": _known(stage_slowdown),
        "worst_rank": int(result.workers.rank[worst]),
        "worst_rank_slowdown": _known(float(exact[worst])),
        "m_w": result.m_w.exact,
        "m_s": result.m_s.exact,
        "patterns": [
            {"name": each.pattern, "share": each.share, "seconds_per_step": each.seconds_per_step}
            for each in result.findings
        ],
        "warnings": list(result.warnings),
        "document": result.to_json(per_step=False),
    }


def row_without_operations(found: Found, analysis: str, reason: str) -> Row:
    """The row of a file that is no trace, or of a window without operations."""
    return Losses.empty_row(found, analysis) | {"outcome": LEFT_OUT, "error_message": reason}


def _parts(parts: Decomposition, result: WhatIf) -> list[dict[str, Any]]:
    ideal = float(result.ideal.mean())
    return [
        {"name": str(label), "slowdown": _known(slowdown), "seconds_per_step": _known((slowdown - 1) * ideal)}
        for label, slowdown in parts.slowdown(result.ideal).items()
    ]


def _text(job: Mapping[str, Any], name: str) -> str | None:
    return None if job.get(name) is None else str(job[name])


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
