"""The page as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rca.runbook.page import Entry, RunbookPage
from rca.runbook.phrases import Name, Phrase
from rca.runbook.summary import Summary

# Underscores inside words never start emphasis, so `gpu_throttling` stays readable unescaped.
_SPECIAL = re.compile(r"([\\`*\[\]|]|<(?=[A-Za-z/!?])|~(?=~)|&(?=#?\w+;)|^[>#]|^[+-](?=\s)|(?<!\w)_|_(?!\w))")


def markdown(page: RunbookPage) -> str:
    """Render `page`; ends with a newline."""
    blocks = [f"# {_text(page.summary.headline)}", _summary(page.summary), "## Cost", _bullets(page.facts)]
    if page.findings:
        blocks += ["## What the machines show", _bullets(page.findings)]
    if page.straggler_rows:
        blocks += ["## Who", _table(RunbookPage.STRAGGLER_COLUMNS, page.straggler_rows)]
        blocks += map(_evidence, page.suspicions)
    if page.causes or page.unexplained:
        blocks += ["## Why", *_causes(page)]
    if page.actions or page.next_check:
        blocks += ["## What to do", *_what_to_do(page)]
    if page.missing:
        blocks += ["## Missing signals", f"Not in this window: {_list(page.missing)}."]
    blocks += ["## Quality of the window", _bullets(page.quality), "---", _text(page.footer)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(summary: Summary) -> str:
    lines = []
    for title, told in summary.rows:
        first, *more = map(_text, told)
        lines += [f"- **{title}:** {first}", *(f"  - {each}" for each in more)]
    return "\n".join(lines)


def _causes(page: RunbookPage) -> Iterable[str]:
    if page.causes:
        yield _table(page.cause_columns, [entry.row for entry in page.causes])
        yield from (_evidence(entry) for entry in page.causes)
    yield _text(page.unexplained)


def _evidence(entry: Entry) -> str:
    title = _text(entry.title)
    if not entry.evidence:
        return f"{title}."
    return "\n".join([f"{title}. Evidence:", "", _bullets(entry.evidence)])


def _what_to_do(page: RunbookPage) -> Iterable[str]:
    yield "\n".join(f"{n}. {_text(action)}" for n, action in enumerate(page.actions, start=1))
    if page.next_check:
        yield f"Next check: {_text(page.next_check)}"


def _bullets(lines: Sequence[Phrase]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _list(names: Sequence[Phrase]) -> str:
    return ", ".join(_text(entry) for entry in names)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Phrase]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    # GFM splits cells before it reads code spans, so a bar is escaped inside them too.
    lines += [f"| {' | '.join(_text(cell, in_table=True) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _text(phrase: Phrase, *, in_table: bool = False) -> str:
    return "".join(
        _code(part, in_table=in_table) if isinstance(part, Name) else _SPECIAL.sub(r"\\\1", part)
        for part in phrase
    )


def _code(text: str, *, in_table: bool) -> str:
    """Quote `text` in a code span that no backtick inside it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    inner = text.replace("|", "\\|") if in_table else text
    return f"{fence}{pad}{inner}{pad}{fence}"
