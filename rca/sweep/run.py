"""The sweep: every window of an archive that has no answer yet is diagnosed on workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rca.diagnosis import Bundle, diagnose
from rca.errors import RcaError
from rca.sweep.answers import Answers, row_of
from rca.sweep.archive import archived
from rca.sweep.data_set import Row
from rca.sweep.filling import Progress, Swept, Task, content_of, fill
from rca.workers import HERE, Workers

#: Windows of one task: the way of a task takes as long as a tenth of a diagnosis.
CHUNK = 4


def sweep(
    urls: Iterable[str],
    answers: Answers,
    *,
    bundle: Bundle,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
) -> Swept:
    """Diagnose every window under the URLs that has no answer of this bundle, and keep the answers.

    Parameters
    ----------
    urls : iterable of str
        See `rca.sweep.archive.archived`. Workers read URLs themselves; a cluster gets the content of files.
    answers : Answers
    bundle : Bundle
    workers : Workers
        Without influence on the answers.
    progress : callable
        ``(done, total)`` windows.

    Returns
    -------
    Swept
        Outcomes are verdicts.
    """
    return fill(
        archived(urls),
        answers,
        _Diagnosing(bundle),
        workers=lambda todo: workers.for_few(len(todo)),
        chunk=CHUNK,
        progress=progress,
    )


@dataclass(frozen=True)
class _Diagnosing:
    bundle: Bundle

    @property
    def maker(self) -> str:
        return self.bundle.model.sha256

    def row(self, task: Task) -> Row:
        found, _ = task
        try:
            return row_of(found, self.maker, diagnose(content_of(task), bundle=self.bundle))
        except RcaError as error:
            return Answers.error_row(found, self.maker, error)
