"""Reports of NVRx as its callback for Lightning logs them, as a print shows them, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def logged(
    scores: Mapping[int, float], *, minute: int = 0, kind: str = "relative", shown: int = 3
) -> list[str]:
    """Lines of one report; of many ranks the worst and the best are shown."""
    lines = [f"[NeMo I 2026-03-21 02:{minute:02d}:08 nemo_logging:393] ", f"GPU {kind} performance:"]
    ordered = sorted(scores, key=lambda rank: scores[rank])
    if len(scores) > 2 * shown:
        parts = {"Worst": ordered[:shown], "Best": ordered[::-1][:shown]}
    else:
        parts = {"": ordered}
    for name, ranks in parts.items():
        if name:
            lines.append(f" {name} performing {shown}/{len(scores)} ranks:")
        lines += [f"  Rank={rank} Node=node-{rank // 4} Score={scores[rank]:.2f}" for rank in ranks]
    stamp = f"[NeMo I 2026-03-21 02:{minute:02d}:08 straggler_det_callback:283]"
    return [*lines, "", f"{stamp} Straggler report processing time: 0.042 sec."]


def warning(*ranks: int) -> str:
    named = ", ".join(f"StragglerId(rank={rank}, node='node-{rank // 4}')" for rank in ranks)
    return (
        "[NeMo W 2026-03-21 02:00:08 straggler_det_callback:163] STRAGGLER DETECTION WARNING: Some GPUs have "
        f"worse relative performance. Affected ranks: {{{named}}}"
    )


def document(
    rank: int,
    *,
    sections: Mapping[str, float] | None = None,
    kernel: float | None = None,
    relative: float | None = None,
    **members: Any,
) -> dict[str, Any]:
    """A report of one rank as JSON; sections are milliseconds, the kernel microseconds."""
    summary = {"MIN": 1.0, "AVG": 1.0, "STD": 0.1, "NUM": 60}
    return {
        "gpu_relative_perf_scores": {} if relative is None else {str(rank): relative},
        "section_relative_perf_scores": {},
        "gpu_individual_perf_scores": {},
        "section_individual_perf_scores": {},
        "rank_to_node": {str(rank): f"node-{rank // 4}"},
        "local_section_summaries": {name: {**summary, "MED": ms} for name, ms in (sections or {}).items()},
        "local_kernel_summaries": {}
        if kernel is None
        else {"gemm_128": {**summary, "MED": kernel}, "ncclDevKernel_AllReduce": {**summary, "MED": 9e9}},
        "generate_report_elapsed_time": 0.04,
        "gather_on_rank0": False,
        "rank": rank,
        **members,
    }


def json_lines(reports: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in reports)
