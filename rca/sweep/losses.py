"""What-if results of the traces of an archive as a data set: what each job lost, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rca.errors import RcaError
from rca.sweep.archive import Found
from rca.sweep.data_set import REFUSED, TIME, DataSet, Row
from rca.whatif.attribution import Decomposition
from rca.whatif.result import WhatIf, finite

ANALYSED, LEFT_OUT = "analysed", "left_out"
_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int64(), pa.float64()
_PARTS = pa.struct([("name", _TEXT), ("slowdown", _NUMBER), ("seconds_per_step", _NUMBER)])
_PATTERNS = pa.struct([("name", _TEXT), ("share", _NUMBER), ("seconds_per_step", _NUMBER)])
#: Columns of a row. Costs are in seconds per step and in GPU-hours, shares between 0 and 1.
#:
#: - `outcome`: "analysed"; "refused" with an error; "left_out" if the file holds no operations.
#: - `waste`: share of the replayed time that is lost, 1 - 1 / slowdown.
#: - `step_seconds`: replayed step time; `seconds_per_step` of it is lost.
#: - `gpu_hours`: of all replayed steps and GPUs; `gpu_hours_lost` of them are lost.
#: - `types`: what each type of operations costs alone, the costliest first. The parts do not add up.
#: - `patterns`: what the steps would save without each pattern, the costliest first. Patterns overlap.
#: - `document`: the whole answer without its steps, as JSON.
SCHEMA = pa.schema(
    [
        ("url", _TEXT), ("version", _TEXT), ("analysis", _TEXT), ("swept_at", TIME), ("outcome", _TEXT),
        ("job_id", _TEXT), ("run_id", _TEXT), ("steps", _WHOLE), ("steps_left_out", _WHOLE),
        ("world_size", _WHOLE), ("data_ranks", _WHOLE), ("stages", _WHOLE), ("slowdown", _NUMBER),
        ("slowdown_lower", _NUMBER), ("slowdown_upper", _NUMBER), ("waste", _NUMBER),
        ("step_seconds", _NUMBER), ("seconds_per_step", _NUMBER), ("gpu_hours", _NUMBER),
        ("gpu_hours_lost", _NUMBER), ("launch_slowdown", _NUMBER), ("fidelity", _NUMBER),
        ("types", pa.list_(_PARTS)), ("worst_type", _TEXT), ("worst_stage", _WHOLE),
        ("worst_stage_slowdown", _NUMBER), ("worst_rank", _WHOLE), ("worst_rank_slowdown", _NUMBER),
        ("m_w", _NUMBER), ("m_s", _NUMBER), ("patterns", pa.list_(_PATTERNS)),
        ("warnings", pa.list_(_TEXT)), ("error", _TEXT), ("error_message", _TEXT), ("document", _TEXT),
    ]
)  # fmt: skip


class Losses(DataSet):
    """A data set of what-if results."""

    schema = SCHEMA
    maker = "analysis"
    outcome = "outcome"
    holds = "what-if results"

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
    row = Losses.row(
        found,
        analysis,
        outcome=ANALYSED,
        job_id=_text(result.job, "trial_name") or job_id,
        run_id=_text(result.job, "run_id"),
        steps=int(result.steps.size),
        steps_left_out=int(result.left_out),
        world_size=result.world_size,
        data_ranks=len(result.by_data_rank.labels),
        stages=len(result.by_stage.labels),
        slowdown=result.slowdown,
        slowdown_lower=lower,
        slowdown_upper=upper,
        waste=result.waste,
        step_seconds=step,
        seconds_per_step=result.seconds_lost_per_step,
        gpu_hours=step * result.steps.size * result.world_size / 3600.0,
        gpu_hours_lost=result.gpu_hours_lost,
        launch_slowdown=result.launch_slowdown,
        fidelity=result.fidelity,
        types=types,
        worst_type=types[0]["name"] if types else None,
        worst_stage=int(stage),
        worst_stage_slowdown=stage_slowdown,
        worst_rank=int(result.workers.rank[worst]),
        worst_rank_slowdown=float(exact[worst]),
        m_w=result.m_w.exact,
        m_s=result.m_s.exact,
        patterns=[
            {"name": each.pattern, "share": each.share, "seconds_per_step": each.seconds_per_step}
            for each in result.findings
        ],
        warnings=list(result.warnings),
        document=result.to_json(per_step=False),
    )
    known: Row = finite(row)
    return known


def row_without_operations(found: Found, analysis: str, reason: str) -> Row:
    """The row of a file that is no trace, or of a window without operations."""
    return Losses.row(found, analysis, outcome=LEFT_OUT, error_message=reason)


def _parts(parts: Decomposition, result: WhatIf) -> list[dict[str, Any]]:
    ideal = float(result.ideal.mean())
    return [
        {"name": str(label), "slowdown": slowdown, "seconds_per_step": (slowdown - 1) * ideal}
        for label, slowdown in parts.slowdown(result.ideal).items()
    ]


def _text(job: Mapping[str, Any], name: str) -> str | None:
    return None if job.get(name) is None else str(job[name])
