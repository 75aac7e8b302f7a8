"""The page as Rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rca.diagnosis.result import Verdict
from rca.runbook.page import Entry, RunbookPage
from rca.runbook.phrases import Name, Phrase
from rca.runbook.summary import Summary

_COLOURS: dict[Verdict, str] = {
    "healthy": "green",
    "fail_slow": "yellow",
    "fail_stop": "red",
    "undecided": "blue",
}
_NUMERIC = {"Cost per step", "Interval", "Share", "Probability"}
_NAME_STYLE = "bold"


def brief(summary: Summary) -> RenderableType:
    """The summary on one screen; `Text` throughout, so no user string is read as markup."""
    colour = _COLOURS[summary.verdict]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, lines in summary.rows:
        first, *more = lines
        style = "bold" if title == "Do this" else ""
        table.add_row(title, _text(first, style=style))
        for line in more:
            table.add_row("", _text(line))
    return Group(_text(summary.headline, style=f"bold {colour}"), table)


def terminal(page: RunbookPage) -> RenderableType:
    """The summary, then every section."""
    parts: list[RenderableType] = [brief(page.summary), _heading("Cost"), *_bullets(page.facts)]
    if page.findings:
        parts += [_heading("What the machines show"), *_bullets(page.findings)]
    if page.straggler_rows:
        parts.append(_table("Who", RunbookPage.STRAGGLER_COLUMNS, page.straggler_rows))
        parts += _entries(page.suspicions)
    if page.causes or page.unexplained:
        parts += _causes(page)
    if page.actions or page.next_check:
        parts += _what_to_do(page)
    if page.missing:
        parts += [_heading("Missing signals"), Text(", ").join(_text(m) for m in page.missing)]
    parts += [_heading("Quality of the window"), *_bullets(page.quality, style="dim")]
    parts += [Text(), _text(page.footer, style="dim")]
    return Group(*parts)


def _causes(page: RunbookPage) -> Iterable[RenderableType]:
    if page.causes:
        yield _table("Why", page.cause_columns, [entry.row for entry in page.causes])
        yield from _entries(page.causes)
    else:
        yield _heading("Why")
    if page.unexplained:
        yield _text(page.unexplained)


def _entries(entries: Iterable[Entry]) -> Iterable[RenderableType]:
    for entry in entries:
        yield _text((*entry.title, "."))
        yield from _bullets(entry.evidence)


def _what_to_do(page: RunbookPage) -> Iterable[RenderableType]:
    yield _heading("What to do")
    for number, action in enumerate(page.actions, start=1):
        yield _text((f"{number}. ", *action))
    if page.next_check:
        yield _text(("Next check: ", *page.next_check))


def _heading(title: str) -> Text:
    return Text(f"\n{title}", style="bold underline")


def _bullets(lines: Sequence[Phrase], style: str = "") -> Iterable[Text]:
    return (_text(("• ", *line), style=style) for line in lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Phrase]]) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold underline", box=None, padding=(0, 2, 0, 0)
    )
    for column in columns:
        table.add_column(
            column, justify="right" if column in _NUMERIC else "left", header_style="dim", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _text(phrase: Phrase, style: str = "") -> Text:
    text = Text(style=style)
    for part in phrase:
        text.append(str(part), _NAME_STYLE if isinstance(part, Name) else None)
    return text
