"""The sweep of windows: each that has no answer yet is diagnosed on workers. The answers are a data set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from rca.diagnosis import Bundle, diagnose
from rca.diagnosis.result import Cause, Slowdown
from rca.sweep.archive import Found
from rca.sweep.data_set import TIME, DataSet, Row
from rca.sweep.filling import Progress, Swept, fill
from rca.workers import HERE, Workers

_TEXT, _NUMBER = pa.string(), pa.float64()
_RANKS, _NODES = pa.list_(pa.int64()), pa.list_(_TEXT)
#: A cause of the window, and its part of the loss.
_CAUSE = pa.struct(
    [
        ("cause", _TEXT), ("probability", _NUMBER), ("ranks", _RANKS), ("nodes", _NODES),
        ("seconds_per_step", _NUMBER), ("gpu_hours_lost", _NUMBER),
    ]
)  # fmt: skip
#: Columns of a row. Times are those of the window; costs are in seconds per step and in GPU-hours. The
#: document is the whole answer, as `rca diagnose --format json` prints it.
SCHEMA = pa.schema(
    [
        ("url", _TEXT), ("version", _TEXT), ("model_sha256", _TEXT), ("swept_at", TIME),
        ("job_id", _TEXT), ("window_id", _TEXT), ("window_start", TIME), ("window_end", TIME),
        ("verdict", _TEXT), ("failure_mode", _TEXT), ("failure_mode_probability", _NUMBER),
        ("abstention", _TEXT), ("cause", _TEXT), ("cause_probability", _NUMBER), ("owner", _TEXT),
        ("ranks", _RANKS), ("nodes", _NODES), ("since", TIME), ("seconds_per_step", _NUMBER),
        ("gpu_hours_lost", _NUMBER), ("causes", pa.list_(_CAUSE)), ("error", _TEXT),
        ("error_message", _TEXT), ("document", _TEXT),
    ]
)  # fmt: skip


#: Windows of one task: the way of a task takes as long as a tenth of a diagnosis.
CHUNK = 4


class Answers(DataSet):
    """A data set of answers."""

    schema = SCHEMA
    maker = "model_sha256"
    outcome = "verdict"
    holds = "answers"


def sweep(
    windows: Sequence[Found],
    answers: Answers,
    *,
    bundle: Bundle,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
    retry: bool = False,
) -> Swept:
    """Diagnose every window that has no answer of this bundle, and keep the answers.

    Parameters
    ----------
    windows : sequence of Found
        Of `rca.sweep.archive.archived`, or of `rca.sweep.prometheus_jobs.job_windows`. Workers read them
        themselves.
    progress : callable
        ``(done, total)`` windows.
    retry : bool
        Try windows again that could not be diagnosed.

    Returns
    -------
    Swept
        Outcomes are verdicts.
    """
    return fill(
        windows,
        answers,
        partial(diagnosed, bundle=bundle),
        bundle.model.sha256,
        workers=workers,
        chunk=CHUNK,
        progress=progress,
        retry=retry,
    )


def diagnosed(found: Found, *, bundle: Bundle) -> Row:
    """The row of a window."""
    diagnosis = diagnose(found.read(), bundle=bundle)
    first = next(iter(diagnosis.causes), None)
    place = first or next(iter(diagnosis.stragglers), None)
    row = Answers.row(
        found,
        bundle.model.sha256,
        job_id=diagnosis.job_id,
        window_id=diagnosis.window_id,
        verdict=diagnosis.verdict,
        failure_mode=diagnosis.failure_mode,
        failure_mode_probability=diagnosis.failure_mode_probability[diagnosis.failure_mode],
        since=diagnosis.since,
        seconds_per_step=diagnosis.slowdown.seconds_per_step,
        gpu_hours_lost=diagnosis.slowdown.gpu_hours_lost,
        causes=_causes(diagnosis.causes, diagnosis.slowdown),
        document=diagnosis.to_json(),
    )
    if diagnosis.window is not None:
        row |= {"window_start": diagnosis.window.start, "window_end": diagnosis.window.end}
    if diagnosis.abstention_reason is not None:
        row["abstention"] = diagnosis.abstention_reason.code
    if first is not None:
        row |= {"cause": first.cause, "cause_probability": first.probability, "owner": first.owner}
    if place is not None:
        row |= {"ranks": place.ranks, "nodes": place.nodes}
    return row


def _causes(causes: Sequence[Cause], slowdown: Slowdown) -> list[dict[str, Any]]:
    """Causes with their parts of the loss, whose sum is not above it. The first stop has all idle time."""
    idle = slowdown.gpu_hours_idle or 0.0
    priced = sum(each.seconds_per_step or 0.0 for each in causes)
    whole = max(priced, slowdown.seconds_per_step or 0.0)
    lost_per_second = ((slowdown.gpu_hours_lost or 0.0) - idle) / whole if whole else 0.0
    first_stop = next((each for each in causes if each.stops_the_job), None)
    found = []
    for each in causes:
        hours = idle if each is first_stop else None
        if each.seconds_per_step is not None:
            hours = each.seconds_per_step * lost_per_second
        own = {name: getattr(each, name) for name in _CAUSE.names if name != "gpu_hours_lost"}
        found.append(own | {"gpu_hours_lost": hours})
    return found
