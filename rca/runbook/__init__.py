"""A diagnosis as a page: Markdown for tickets, HTML for browsers, Slack blocks, a Rich layout for terminals.

`summary` and `page` decide the content and the words; the renderers decide the looks only.
They are imported on first use, because a JSON answer does not need Jinja2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

__all__ = ["render"]

TextFormat = Literal["markdown", "html", "slack"]


@overload
def render(
    diagnosis: Diagnosis,
    format_: TextFormat,
    *,
    verbose: bool = False,
    window: Window | None = None,
    path: str | None = None,
) -> str: ...


@overload
def render(
    diagnosis: Diagnosis,
    format_: Literal["terminal"],
    *,
    verbose: bool = False,
    window: Window | None = None,
    path: str | None = None,
) -> RenderableType: ...


def render(
    diagnosis: Diagnosis,
    format_: TextFormat | Literal["terminal"],
    *,
    verbose: bool = False,
    window: Window | None = None,
    path: str | None = None,
) -> str | RenderableType:
    """Render the runbook page of a diagnosis.

    Parameters
    ----------
    format_ : {"markdown", "html", "slack", "terminal"}
        GitHub-flavoured Markdown, whose first line is the verdict. One standalone HTML document without
        scripts or external files. A message for a Slack webhook, as JSON. A Rich renderable for terminals and
        notebooks.
    verbose : bool
        Also print the internal names of signals. Without it, a terminal shows the
        summary alone.
    window : Window, optional
        The diagnosed window, for the pictures of lateness and signals in HTML.
    path : str, optional
        Of the diagnosed window, for the command that shows the runbook. HTML and Slack pages leave this
        machine, so they have the command without it.

    Raises
    ------
    ValueError
        Unknown format.
    """
    from rca.runbook.page import RunbookPage
    from rca.runbook.summary import Summary

    if format_ == "slack":
        from rca.runbook.slack import slack

        return slack(Summary.from_diagnosis(diagnosis), diagnosis.job_id)
    if format_ == "terminal" and not verbose:
        from rca.runbook.terminal import brief

        return brief(Summary.from_diagnosis(diagnosis, path))
    page = RunbookPage.from_diagnosis(diagnosis, verbose=verbose, path=None if format_ == "html" else path)
    if format_ == "markdown":
        from rca.runbook.markdown import markdown

        return markdown(page)
    if format_ == "html":
        from rca.runbook.html import html
        from rca.runbook.pictures import pictures_of

        return html(page, pictures_of(diagnosis, window))
    if format_ == "terminal":
        from rca.runbook.terminal import terminal

        return terminal(page)
    raise ValueError(f"unknown format {format_!r}: use markdown, html, slack or terminal")
