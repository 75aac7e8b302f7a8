"""The sweep: every window that has no answer yet is diagnosed on workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rca.diagnosis import Bundle, diagnose
from rca.sweep.answers import Answers, row_of
from rca.sweep.archive import Found
from rca.sweep.data_set import Row
from rca.sweep.filling import Progress, Swept, Task, content_of, fill
from rca.workers import HERE, Workers

#: Windows of one task: the way of a task takes as long as a tenth of a diagnosis.
CHUNK = 4


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
        Of `rca.sweep.archive.archived`, or of `rca.sweep.prometheus_jobs.job_windows`. Workers read URLs
        themselves; a cluster gets the content of files.
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
        workers=lambda todo: workers.for_few(len(todo)),
        chunk=CHUNK,
        progress=progress,
        retry=retry,
    )


def diagnosed(task: Task, *, bundle: Bundle) -> Row:
    """The row of a window."""
    return row_of(task[0], bundle.model.sha256, diagnose(content_of(task), bundle=bundle))
