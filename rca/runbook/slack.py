"""The summary of an answer as a message for a Slack webhook (Block Kit)."""

from __future__ import annotations

import json
import re

from rca.runbook.phrases import Name, Phrase, name, plain
from rca.runbook.summary import Summary

# Limits of Block Kit, in characters.
_HEADER, _SECTION = 150, 3000
_COLOURS = {"healthy": "#18794e", "fail_slow": "#ad5700", "fail_stop": "#c62a2f", "undecided": "#4f5d9e"}
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
#: Characters that start or end Slack's own markup.
_MARKUP = re.compile(r"[*_~`]")


def slack(summary: Summary, job_id: str) -> str:
    """The message as JSON: `text` for notifications, and one attachment with the blocks."""
    headline = plain(summary.headline)
    fields = [
        {"type": "section", "text": {"type": "mrkdwn", "text": _row(title, lines)}}
        for title, lines in summary.rows
    ]
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(headline, _HEADER)}},
        *fields,
        {"type": "context", "elements": [{"type": "mrkdwn", "text": f"job {_escaped((name(job_id),))}"}]},
    ]
    message = {
        "text": without_links(headline),
        "attachments": [{"color": _COLOURS[summary.verdict], "blocks": blocks}],
    }
    return json.dumps(message, ensure_ascii=False)


def without_links(text: str) -> str:
    """Text in which Slack sees no link, mention or channel."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _row(title: str, lines: tuple[Phrase, ...]) -> str:
    return _cut(f"*{title}*  " + "\n".join(map(_escaped, lines)), _SECTION)


def _escaped(phrase: Phrase) -> str:
    """Text without links, mentions and markup; names in backticks."""
    parts = []
    for part in phrase:
        text = without_links(part)
        code = "`" + text.replace("`", "'") + "`"
        parts.append(code if isinstance(part, Name) else _MARKUP.sub(_inert, text))
    return "".join(parts)


def _inert(found: re.Match[str]) -> str:
    """A markup character with a zero-width space, so that Slack shows it as it is."""
    return f"\u200b{found[0]}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
