"""What-if analysis of an archive: every trace that has no result yet is replayed on workers.

The results are a data set: what each job lost, and to what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rca.arrays import FloatArray
from rca.errors import InvalidInput, RcaError, TooLarge
from rca.sweep.archive import Found, archived
from rca.sweep.data_set import TIME, DataSet, Row
from rca.sweep.filling import Progress, Swept, fill
from rca.sweep.traces import ArchivedTrace, traces_of
from rca.whatif.analysis import analysed, replay_of, what_if
from rca.whatif.long_trace.long_trace import STREAMED_FROM, stream_replay
from rca.whatif.result import WhatIf, finite
from rca.whatif.trace.reader import count_rows
from rca.workers import HERE, Workers

#: Traces, and bytes of traces, that count as one window when it is decided whether workers start.
SMALL_TRACES, TRACE_BYTES = 8, 2 << 20
#: Traces of one task. More than one, so that this process works until its workers have started.
CHUNK = 2
#: What makes a row: another version replays anew.
ANALYSIS = version("straggler-rca")
ANALYSED, LEFT_OUT = "analysed", "left_out"
_JSON = (".json", ".json.gz", ".json.zst")
#: Most cells of a row of a heat map. More steps, or data ranks, are joined.
MAX_CELLS = 60
_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int64(), pa.float64()
_PARTS = pa.list_(pa.struct([("name", _TEXT), ("seconds_per_step", _NUMBER)]))


class JobLosses(DataSet):
    """A data set of what-if results. Costs are in seconds per step and in GPU-hours.

    - ``outcome``: "analysed"; "left_out" if the file holds none to replay; null beside an error.
    - ``waste``: share of the replayed time that is lost, 1 - 1 / slowdown.
    - ``gpu_hours``: of all replayed steps and GPUs; ``gpu_hours_lost`` of them are lost.
    - ``types``: what each type of operations costs alone, the costliest first. The parts do not add up.
    - ``patterns``: what the steps would save without each pattern, the costliest first. Patterns overlap.
    - ``worst_rank``, ``worst_stage``: with the slowdown if everything else were ideal.
    - ``step_slowdowns``: of the job in up to `MAX_CELLS` blocks of consecutive steps.
    - ``worker_slowdowns``: by stage and data rank, if all else were ideal; the largest of joined ranks.
    - ``document``: the whole answer without its steps, as JSON.
    """

    schema = pa.schema(
        [
            ("url", _TEXT), ("version", _TEXT), ("analysis", _TEXT), ("swept_at", TIME), ("outcome", _TEXT),
            ("job_id", _TEXT), ("steps", _WHOLE), ("world_size", _WHOLE), ("slowdown", _NUMBER),
            ("waste", _NUMBER), ("seconds_per_step", _NUMBER), ("gpu_hours", _NUMBER),
            ("gpu_hours_lost", _NUMBER), ("types", _PARTS), ("patterns", _PARTS), ("worst_rank", _WHOLE),
            ("worst_rank_slowdown", _NUMBER), ("worst_stage", _WHOLE), ("worst_stage_slowdown", _NUMBER),
            ("step_slowdowns", pa.list_(_NUMBER)), ("worker_slowdowns", pa.list_(pa.list_(_NUMBER))),
            ("warnings", pa.list_(_TEXT)), ("error", _TEXT), ("error_message", _TEXT), ("document", _TEXT),
        ]
    )  # fmt: skip
    maker = "analysis"
    outcome = "outcome"
    holds = "what-if results"


def sweep_what_if(
    urls: Iterable[str],
    losses: JobLosses,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
    retry: bool = False,
) -> Swept:
    """Analyse every trace under the URLs that has no result of this version, and keep the results.

    Parameters
    ----------
    urls : iterable of str
        Folders, files and URLs. Parquet files with a column ``optype`` are traces, see `rca.sweep.traces`;
        of windows the operations are replayed, or without them the phases. Workers read them themselves.
    workers : Workers
        Without influence on the results. Each replays one trace at a time; of a trace with more than
        `STREAMED_FROM` rows it keeps 4 bytes per operation.
    progress : callable
        ``(done, total)`` files.
    retry : bool
        Try traces again that could not be replayed.

    Returns
    -------
    Swept
        Outcomes are ``analysed``, ``refused``, and ``left_out`` for files with nothing to replay.
    """
    found = archived(urls, traces_of)
    if not found:
        raise InvalidInput(
            f"no traces under {', '.join(urls)}",
            hint="a trace is a Parquet file with a column optype, or a window",
        )
    return fill(
        found,
        losses,
        _replayed,
        ANALYSIS,
        workers=workers,
        n_windows=_n_windows,
        chunk=CHUNK,
        progress=progress,
        retry=retry,
    )


def _n_windows(todo: Sequence[Found]) -> int:
    n_bytes = sum(each.n_bytes for each in todo)
    return len(todo) // SMALL_TRACES + n_bytes // TRACE_BYTES if len(todo) > 1 else 0


def _replayed(found: Found) -> Row:
    return _of_trace(found) if isinstance(found, ArchivedTrace) else _of_window(found)


def _of_trace(found: ArchivedTrace) -> Row:
    with found.files() as (path, meta):
        try:
            n_rows = count_rows(path)
            if "optype" not in pq.read_schema(path).names:
                return _left_out(found, "it has no column optype")
            return _row(found, found.name, _analysed(path, meta, n_rows))
        except RcaError as error:
            # Without the folder, which may be that of a copy.
            message = error.message.replace(f"{path.parent}/", "").removeprefix(f"{path.name}: ")
            raise error.restated(message) from error


def _analysed(path: Path, meta: Path | None, n_rows: int) -> WhatIf:
    if n_rows > STREAMED_FROM:
        return analysed(stream_replay(path, meta, threads=1))
    return analysed(replay_of(path, meta))


def _of_window(found: Found) -> Row:
    try:
        window = found.read()
    except InvalidInput as error:
        # Other programs write JSON, too. Directories and Arrow files are windows.
        if found.url.endswith(_JSON) and not isinstance(error, TooLarge):
            return _left_out(found, f"it is no window: {str(error).removeprefix(f'{found.url}: ')}")
        raise
    if not window.ops.num_rows and not window.steps.num_rows:
        return _left_out(found, "the window has neither operations nor steps")
    return _row(found, window.job.job_id, what_if(window))


def _left_out(found: Found, reason: str) -> Row:
    return JobLosses.row(found, ANALYSIS, outcome=LEFT_OUT, error_message=reason)


def _row(found: Found, job_id: str, result: WhatIf) -> Row:
    """The row of a result; `job_id` is used if the metadata names no job."""
    exact, ideal = result.workers.slowdown(result.ideal), float(result.ideal.mean())
    worst = int(np.argmax(np.nan_to_num(exact, nan=-np.inf)))
    stage, stage_slowdown = next(iter(result.by_stage.slowdown(result.ideal).items()))
    job = result.job.get("trial_name")
    types = result.by_type.slowdown(result.ideal).items()
    row = JobLosses.row(
        found,
        ANALYSIS,
        outcome=ANALYSED,
        job_id=job_id if job is None else str(job) or job_id,
        steps=int(result.steps.size),
        world_size=result.world_size,
        slowdown=result.slowdown,
        waste=result.waste,
        seconds_per_step=result.seconds_lost_per_step,
        gpu_hours=float(result.no_delay.mean()) * result.steps.size * result.world_size / 3600.0,
        gpu_hours_lost=result.gpu_hours_lost,
        types=[{"name": str(name), "seconds_per_step": (alone - 1) * ideal} for name, alone in types],
        patterns=[
            {"name": each.pattern, "seconds_per_step": each.seconds_per_step} for each in result.findings
        ],
        worst_rank=int(result.workers.rank[worst]),
        worst_rank_slowdown=float(exact[worst]),
        worst_stage=int(stage),
        worst_stage_slowdown=stage_slowdown,
        step_slowdowns=_by_steps(result),
        worker_slowdowns=_by_workers(result, exact),
        warnings=list(result.warnings),
        document=result.to_json(per_step=False),
    )
    known: Row = finite(row)
    return known


def _by_steps(result: WhatIf) -> list[float]:
    blocks = np.array_split(np.arange(result.steps.size), min(result.steps.size, MAX_CELLS))
    return [float(result.no_delay[each].sum() / result.ideal[each].sum()) for each in blocks]


def _by_workers(result: WhatIf, exact: FloatArray) -> list[list[float]]:
    """The slowdown of each stage (row) and block of data ranks (column); NaN where no worker is."""
    stage, data_rank = (
        np.unique(each, return_inverse=True)[1] for each in (result.workers.stage, result.workers.data_rank)
    )
    n_columns = min(int(data_rank.max()) + 1, MAX_CELLS)
    column = data_rank * n_columns // (int(data_rank.max()) + 1)
    found = np.full((int(stage.max()) + 1, n_columns), -np.inf)
    np.maximum.at(found, (stage, column), np.nan_to_num(exact, nan=-np.inf))
    grid: list[list[float]] = np.where(np.isfinite(found), found, np.nan).tolist()
    return grid
