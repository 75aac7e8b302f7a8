"""A diagnosis as a page: Markdown for chat and tickets, HTML for browsers, a Rich layout for terminals.

`page` decides what is said and in which words; the three renderers only decide how it looks.
They are imported on first use: a JSON answer should not pay for Jinja2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rca.diagnosis.result import Diagnosis

__all__ = ["render_html", "render_markdown", "render_rich"]


def render_markdown(diagnosis: Diagnosis) -> str:
    """Render the runbook page as GitHub-flavoured Markdown; its first line is the verdict."""
    from rca.runbook.markdown import markdown
    from rca.runbook.page import Page

    return markdown(Page.from_diagnosis(diagnosis))


def render_html(diagnosis: Diagnosis) -> str:
    """Render the runbook page as one standalone HTML document, without scripts or external files."""
    from rca.runbook.html import html
    from rca.runbook.page import Page

    return html(Page.from_diagnosis(diagnosis))


def render_rich(diagnosis: Diagnosis) -> RenderableType:
    """Lay the runbook page out as a Rich renderable for terminals and notebooks."""
    from rca.runbook.page import Page
    from rca.runbook.terminal import terminal

    return terminal(Page.from_diagnosis(diagnosis))
