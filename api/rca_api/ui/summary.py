"""A diagnosis in the words of the runbook page, as plain data for `/ui`."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from rca.diagnosis.result import Diagnosis, Verdict
from rca.runbook.page import RunbookPage
from rca.runbook.phrases import Phrase, plain


class SummaryRow(BaseModel):
    """One part of the text."""

    title: str
    lines: list[str]


class DiagnosisText(BaseModel):
    """The text of a diagnosis: what a person needs first, and the rest."""

    verdict: Verdict
    headline: str
    rows: list[SummaryRow]
    more: list[SummaryRow]
    window_digest: str | None


def text_of(diagnosis: Diagnosis, window_digest: str | None) -> DiagnosisText:
    """Put a diagnosis into words.

    Parameters
    ----------
    window_digest : str or None
        None once retention has deleted the window.
    """
    page = RunbookPage.from_diagnosis(diagnosis)
    suspicions = [_row(plain(each.title), each.evidence) for each in page.suspicions]
    more = [
        _row("All actions", page.actions),
        _row("Cost", [*page.facts, page.unexplained]),
        *(_row(plain(each.title), each.evidence) for each in page.causes),
        *suspicions,
        _row("Evidence for the verdict", page.verdict_evidence),
        _row("Signals that the window does not have", page.missing),
        _row("Quality of the window", page.quality),
        _row("Identity", [page.footer]),
    ]
    return DiagnosisText(
        verdict=page.summary.verdict,
        headline=plain(page.summary.headline),
        rows=[_row(title, lines) for title, lines in page.summary.rows],
        more=[row for row in more if row.lines],
        window_digest=window_digest,
    )


def _row(title: str, lines: Iterable[Phrase]) -> SummaryRow:
    return SummaryRow(title=title, lines=[plain(line) for line in lines if line])
