"""A runbook as Markdown and as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rca.runbook.phrases import clean
from rca.runbook.procedures.runbook import Runbook, Step, UndoneStep
from rca.runbook.procedures.sources import PLATFORMS

#: Marks a step that changes something.
CHANGES = "CHANGES"
#: Width of prose in plain text; commands are never wrapped.
_WIDTH = 80


def markdown(runbook: Runbook) -> str:
    """The runbook for a chat, a ticket or a wiki."""
    lines = [f"# {_title(runbook)}", "", *(f"- {line}" for line in _facts(runbook))]
    if runbook.replace:
        lines += ["", "Replace in the commands:", ""]
        for each in runbook.replace:
            find = f" Find it: `{each.find}`" if each.find else ""
            lines.append(f"- `{each.written}`: {each.meaning}.{find}")
    for title, steps in _sections(runbook):
        lines += ["", f"## {title}", ""]
        if title == "Fix" and runbook.plan:
            lines += [*(f"- Planned: {line}." for line in runbook.plan), ""]
        for step in steps:
            lines += [f"{step.number}. {_marked(step, bold='**')}", *_block(step.commands, "   ")]
            lines += [f"   - {seen}" for seen in _seen(step, title)]
        if not steps:
            lines.append("Nothing to do.")
        if title == "Fix":
            lines += [*_rolled_back(runbook.roll_back), *_escalated(runbook)]
    return "\n".join(lines) + "\n"


def _rolled_back(undone: Sequence[UndoneStep]) -> Iterator[str]:
    yield from ("", "## Roll back", "")
    if not undone:
        yield "No step changes anything."
    for each in undone:
        yield f"- {_of_step(each)}{each.do}"
        yield from _block(each.commands, "  ")


def _escalated(runbook: Runbook) -> Iterator[str]:
    yield from ("", "## Escalate", "", "| when | to | send |", "|---|---|---|")
    for each in runbook.escalate:
        cells = (cell.replace("|", "\\|") for cell in (each.when, each.to, each.send))
        yield f"| {' | '.join(cells)} |"


def _block(commands: Sequence[str], indent: str) -> Iterator[str]:
    if commands:
        yield from (f"{indent}```bash", *(f"{indent}{command}" for command in commands), f"{indent}```")


def text(runbook: Runbook) -> str:
    """The runbook for a terminal: prose is wrapped, commands are on lines of their own."""
    others = " or ".join(each for each in PLATFORMS if each != runbook.platform)
    lines = [
        *_wrapped([_title(runbook)], "", "  "),
        *_wrapped([*_facts(runbook), f"For another platform: --platform {others}."], "  "),
    ]
    if runbook.replace:
        lines += ["", "REPLACE IN THE COMMANDS"]
        for each in runbook.replace:
            lines += _wrapped([f"{each.written}: {each.meaning}"], "  ")
            lines += [f"      {each.find}"] if each.find else []
    for title, steps in _sections(runbook):
        lines += ["", title.upper()]
        if title == "Fix":
            lines += _wrapped((f"Planned: {line}." for line in runbook.plan), "  ")
        for step in steps:
            lines += _wrapped([_marked(step)], f"{step.number:>2}. ", "    ")
            lines += [f"      {command}" for command in step.commands]
            lines += _wrapped(_seen(step, title), "    - ", "      ")
        if not steps:
            lines.append("  Nothing to do.")
        if title == "Fix":
            lines += _text_of_end(runbook)
    return "\n".join(lines) + "\n"


def _text_of_end(runbook: Runbook) -> Iterator[str]:
    yield from ("", "ROLL BACK")
    if not runbook.roll_back:
        yield "  No step changes anything."
    for each in runbook.roll_back:
        yield from _wrapped([f"{_of_step(each)}{each.do}"], "  - ", "    ")
        yield from (f"      {command}" for command in each.commands)
    yield from ("", "ESCALATE")
    for escalation in runbook.escalate:
        line = f"{escalation.when}: {escalation.to}. Send {escalation.send}."
        yield from _wrapped([line], "  - ", "    ")


def _wrapped(lines: Sequence[str] | Iterator[str], first: str, rest: str | None = None) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line,
            _WIDTH,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _title(runbook: Runbook) -> str:
    return f"Runbook {runbook.cause}: {runbook.meaning}"


def _facts(runbook: Runbook) -> list[str]:
    source = " The site's own runbook." if runbook.of_site else ""
    facts = [f"Owner: {runbook.owner}. Commands for: {runbook.platform}.{source}"]
    if runbook.diagnosis_id is not None:
        places = "; ".join(runbook.places) or "the whole job"
        facts.append(f"Diagnosis {clean(runbook.diagnosis_id)}: {places}.")
    return facts + runbook.notes


def _sections(runbook: Runbook) -> list[tuple[str, list[Step]]]:
    return [
        ("Verify", runbook.verify),
        ("Contain", runbook.contain),
        ("Fix", runbook.fix),
        ("Confirm", runbook.confirm),
    ]


def _marked(step: Step, bold: str = "") -> str:
    return f"{bold}{CHANGES}{bold}: {step.do}" if step.changes else step.do


def _of_step(undone: UndoneStep) -> str:
    return "" if undone.number is None else f"Step {undone.number}: "


def _seen(step: Step, section: str) -> list[str]:
    """What is seen if the cause is confirmed, or the step worked, and if not."""
    good, bad = ("This cause", "Not this cause") if section == "Verify" else ("Expect", "Otherwise")
    seen = [(good, step.confirmed), (bad, step.otherwise)]
    return [f"{word}: {line}" for word, line in seen if line]
