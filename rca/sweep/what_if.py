"""What-if analysis of an archive: every trace that has no result yet is replayed on workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rca.errors import InvalidInput, RcaError, TooLarge
from rca.sweep.archive import Found, archived
from rca.sweep.data_set import Row
from rca.sweep.filling import Progress, Swept, Task, content_of, fill
from rca.sweep.losses import Losses, row_of, row_without_operations
from rca.sweep.traces import ArchivedTrace, operations_of, refuse_to_send
from rca.whatif.analysis import analysed, replay_of, what_if
from rca.whatif.long_trace.long_trace import STREAMED_FROM, stream_replay
from rca.whatif.result import WhatIf
from rca.whatif.trace.reader import count_rows
from rca.workers import HERE, Workers

#: Traces, and bytes of traces, that count as one window when it is decided whether workers start.
SMALL_TRACES, TRACE_BYTES = 8, 2 << 20
#: Traces of one task. More than one, so that this process works until its workers have started.
CHUNK = 2
#: What makes a row: another version replays anew.
ANALYSIS = version("straggler-rca")
_JSON = (".json", ".json.gz", ".json.zst")


def sweep_what_if(
    urls: Iterable[str],
    losses: Losses,
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
        windows are analysed if they have operations. Workers read URLs themselves, ``file://`` included.
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
        Outcomes are ``analysed``, ``refused``, and ``left_out`` for files without operations.

    Raises
    ------
    InvalidInput
        If a trace is on this machine alone, and too large for a cluster to get as bytes.
    """
    every = [each for each in archived(urls, operations_of) if not losses.has_part(each)]
    return fill(
        every,
        losses,
        _replayed,
        ANALYSIS,
        workers=partial(_chosen, workers),
        chunk=CHUNK,
        progress=progress,
        retry=retry,
    )


def _chosen(workers: Workers, todo: Sequence[Found]) -> Workers:
    if not workers.share_files:
        refuse_to_send(todo)
    n_bytes = sum(each.n_bytes for each in todo)
    return workers.for_few(len(todo) // SMALL_TRACES + n_bytes // TRACE_BYTES if len(todo) > 1 else 0)


def _replayed(task: Task) -> Row:
    found = task[0]
    return _of_trace(found, task) if isinstance(found, ArchivedTrace) else _of_window(task)


def _of_trace(found: ArchivedTrace, task: Task) -> Row:
    sent = None if task[1] is None else content_of(task)
    if "optype" not in found.columns(sent):
        return row_without_operations(found, ANALYSIS, "it has no column optype")
    with found.files(sent) as (path, meta):
        try:
            return row_of(found, ANALYSIS, found.name, _analysed(path, meta))
        except RcaError as error:
            # Without the folder, which may be that of a copy.
            message = error.message.replace(f"{path.parent}/", "").removeprefix(f"{path.name}: ")
            raise error.restated(message) from error


def _of_window(task: Task) -> Row:
    found, _ = task
    try:
        window = content_of(task)
    except InvalidInput as error:
        # Other programs write JSON, too. Directories and Arrow files are windows.
        if found.url.endswith(_JSON) and not isinstance(error, TooLarge):
            reason = str(error).removeprefix(f"{found.url}: ")
            return row_without_operations(found, ANALYSIS, f"it is no window: {reason}")
        raise
    if not window.ops.num_rows:
        return row_without_operations(found, ANALYSIS, "the window has no operations")
    return row_of(found, ANALYSIS, window.job.job_id, what_if(window))


def _analysed(path: Path, meta: Path | None) -> WhatIf:
    if count_rows(path) > STREAMED_FROM:
        return analysed(stream_replay(path, meta, threads=1))
    return analysed(replay_of(path, meta))
