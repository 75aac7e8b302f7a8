"""A recovery plan as Markdown or for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from rca.probability import probability
from rca.recovery.option import Option
from rca.recovery.planner import Plan
from rca.runbook.numbers import count, rank_list, seconds, seconds_interval

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADER = ("Action", "On", "Saves per step", "Costs once", "Pays off after", "Due", "Cause is right")
_MAX_CERTAIN = 0.999
#: Nodes named in a table; the JSON has all.
MAX_NODES = 4


def headline(plan: Plan) -> str:
    """The first action and why, in a line."""
    known = plan.seconds_per_step_lost
    lost = "cost unknown" if known is None else f"{seconds(known)} per step lost"
    if plan.mode == "fail_stop":
        lost = "the job stands still"
    first = "wait" if plan.first == "none" else plan.first
    return f"{first}: {plan.why}" if plan.mode == "healthy" else f"{first}: {plan.why} ({lost})"


def plan_markdown(plan: Plan, *, verbose: bool = False) -> str:
    """The plan for a chat or a ticket."""
    lines = [f"# {headline(plan)}", ""]
    if plan.options:
        header, rows = _table(plan.options)
        lines += [_row(header), _row("---" for _ in header), *map(_row, rows)]
        lines += ["", *(f"- `{each.action}`: {_how(each)}" for each in _distinct(plan.options))]
    if verbose:
        lines += ["", "Not now:", "", *(f"- `{each.action}`: {each.reason}." for each in plan.rejected)]
    else:
        lines += ["", f"{count(len(plan.rejected), 'other action')} judged; --verbose says why not."]
    return "\n".join(lines)


def plan_terminal(plan: Plan, *, verbose: bool = False) -> RenderableType:
    """The plan for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(plan), style="bold")]
    if plan.options:
        header, rows = _table(plan.options)
        table = Table()
        for title in header:
            # A cut name of an action could not be looked up.
            table.add_column(title, overflow="fold", no_wrap=title == HEADER[0])
        for row in rows:
            table.add_row(*map(Text, row))
        parts.append(table)
        parts += [Text(f"{each.action}: {_how(each)}") for each in _distinct(plan.options)]
    if verbose:
        parts += [Text(f"not now: {each.action}: {each.reason}", style="dim") for each in plan.rejected]
    else:
        parts.append(Text(f"{count(len(plan.rejected), 'other action')} judged; --verbose says why not."))
    return Group(*parts)


def _table(options: Sequence[Option]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows, without the columns that are empty in every row."""
    rows = [_cells(each) for each in options]
    filled = [any(column) for column in zip(*rows, strict=True)]
    return tuple(compress(HEADER, filled)), [tuple(compress(row, filled)) for row in rows]


def _cells(option: Option) -> tuple[str, ...]:
    interval = "" if option.interval is None else f" ({seconds_interval(option.interval)})"
    saved = option.seconds_per_step_saved
    after = count(option.break_even_steps, "step") if option.break_even_steps else ""
    steps = option.escalate_after_steps
    due = "" if steps is None else "now" if steps == 0 else f"in {count(steps, 'step')}"
    return (
        option.action,
        _places(option),
        ("unknown" if saved is None else seconds(saved)) + interval,
        seconds(option.one_off_seconds) if option.one_off_seconds else "nothing",
        after,
        due,
        # A cause that was found by a model is never certain.
        probability(min(option.chance, _MAX_CERTAIN)),
    )


def _places(option: Option) -> str:
    if option.nodes:
        shown = ", ".join(option.nodes[:MAX_NODES])
        more = len(option.nodes) - MAX_NODES
        return shown + (f" and {more} more" if more > 0 else "")
    if not option.ranks:
        return "the job"
    return f"rank{'s' if len(option.ranks) > 1 else ''} {rank_list(option.ranks)}"


def _how(option: Option) -> str:
    return f"{option.instruction}. Risk: {option.risk}."


def _distinct(options: Iterable[Option]) -> list[Option]:
    """One option of each action."""
    return list({each.action: each for each in reversed(list(options))}.values())[::-1]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
