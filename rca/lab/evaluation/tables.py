"""Results of an evaluation as tables of text, for the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rca.lab.evaluation.detection_delay import DelaySummary, delay_summary
from rca.lab.evaluation.error_kinds import KINDS
from rca.lab.evaluation.intervals import Estimate, poisson_rate
from rca.lab.evaluation.judged_rows import HEALTHY, PRODUCT, JudgedRow, grouped, methods_of, select
from rca.lab.evaluation.summary import Difference, differences, estimates

#: Scores shown per group in a report; the JSON output has all.
GROUP_SCORES = {
    "failure_mode_accuracy": "failure mode",
    "false_alarm_rate": "false alarms",
    "ranks_exact": "ranks exact",
    "type_accuracy": "type",
    "cause_ac@1": "cause AC@1",
    "cause_ac@3": "cause AC@3",
    "abstention_rate": "abstained",
}
#: Scores that a terminal has room for.
BRIEF = ("failure_mode_accuracy", "false_alarm_rate", "ranks_exact", "cause_ac@1")


@dataclass(frozen=True)
class TextTable:
    """Header and rows of text under a title."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_markdown(self) -> str:
        """The table under a heading."""
        lines = [
            f"## {self.title[:1].upper()}{self.title[1:]}",
            "",
            _line(self.header),
            _line(["---"] * len(self.header)),
        ]
        return "\n".join([*lines, *(_line(row) for row in self.rows)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cell(estimate: Estimate) -> str:
    """``value [low, high]``, or a dash if the score does not apply."""
    if estimate.n == 0:
        return "-"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def methods_table(rows: Sequence[JudgedRow], signals: str) -> TextTable:
    """Every score of every method on the same windows."""
    methods = methods_of(rows)
    columns = [
        estimates([row.judged for row in select(rows, signals=signals, method=name)]) for name in methods
    ]
    return TextTable(
        f"methods compared, signals: {signals}",
        ("score", *methods),
        tuple((score, *(cell(column[score]) for column in columns)) for score in columns[0]),
    )


def compared(rows: Sequence[JudgedRow], signals: str) -> Iterator[tuple[str, list[Difference]]]:
    """The product with every baseline, window by window."""
    product = [row.judged for row in select(rows, signals=signals, method=PRODUCT)]
    for method in methods_of(rows):
        if method != PRODUCT:
            other = [row.judged for row in select(rows, signals=signals, method=method)]
            yield method, differences(product, other)


def differences_table(rows: Sequence[JudgedRow], signals: str) -> TextTable:
    """The product's score minus each baseline's, window by window."""
    lines = [
        (
            found.score,
            method,
            f"{found.estimate.value:+.3f}",
            f"{found.estimate.low:+.3f} .. {found.estimate.high:+.3f}",
            f"{found.differing} of {found.estimate.n}",
            found.verdict,
        )
        for method, every in compared(rows, signals)
        for found in every
    ]
    header = ("score", "compared with", "difference", "95 % interval", "windows that differ", PRODUCT + " is")
    return TextTable(f"{PRODUCT} minus baseline, signals: {signals}", header, tuple(lines))


def group_table(rows: Sequence[JudgedRow], by: str, scores: Sequence[str] = tuple(GROUP_SCORES)) -> TextTable:
    """The product's main scores group by group."""
    lines = []
    for name, members in grouped(select(rows, method=PRODUCT), by).items():
        found = estimates([row.judged for row in members])
        lines.append((name, str(len(members)), *(cell(found[score]) for score in scores)))
    return TextTable(
        f"by {by.replace('_', ' ')}",
        (by.replace("_", " "), "windows", *(GROUP_SCORES[score] for score in scores)),
        tuple(lines),
    )


def errors_table(rows: Sequence[JudgedRow]) -> TextTable:
    """Number of the product's answers of each kind of error, and how many of them abstain."""
    judged = [row.judged for row in select(rows, method=PRODUCT) if row.judged.kind]
    lines = []
    for kind, meaning in KINDS.items():
        found = [each for each in judged if each.kind == kind]
        if found:
            unsure = sum(each.abstained for each in found)
            lines.append((kind, meaning, str(len(found)), f"{len(found) / len(judged):.3f}", f"{unsure:.0f}"))
    header = ("kind of answer", "meaning", "windows", "share", "of these abstain")
    return TextTable("kinds of errors", header, tuple(lines))


class AlarmRate(NamedTuple):
    """False alarms of one method on healthy windows.

    Attributes
    ----------
    hours : float
        Summed length of the healthy windows.
    rate, low, high : float
        Alarms per healthy job-hour and its exact Poisson 95 % interval.
    """

    alarms: int
    windows: int
    hours: float
    rate: float
    low: float
    high: float


def alarm_rate(rows: Sequence[JudgedRow]) -> AlarmRate:
    """Count the healthy windows that are called anything else; faults without effect do not count."""
    healthy = [row for row in rows if not math.isnan(row.judged.false_alarm)]
    alarms = sum(row.judged.false_alarm == 1 for row in healthy)
    hours = sum(row.hours for row in healthy)
    return AlarmRate(alarms, len(healthy), hours, *poisson_rate(alarms, hours))


def alarms_table(rows: Sequence[JudgedRow]) -> TextTable:
    """False alarms per hour of healthy job, for every method and set of signals."""
    lines = []
    for signals, members in grouped(rows, "signals").items():
        for method in methods_of(members):
            found = alarm_rate(select(members, method=method))
            if found.windows == 0:
                continue
            lines.append(
                (
                    method,
                    signals,
                    f"{found.alarms} of {found.windows}",
                    f"{found.hours:.3g}",
                    f"{found.rate:.3g}",
                    f"{found.low:.3g} .. {found.high:.3g}",
                )
            )
    header = ("method", "signals", "alarms", "healthy job-hours", "per hour", "95 % interval")
    return TextTable("false alarms per healthy job-hour", header, tuple(lines))


def delay_table(rows: Sequence[JudgedRow]) -> TextTable:
    """Steps from a fault's onset to its detection, over all and by cause.

    Healthy windows are truncated in the same way; an alarm in them is a false alarm.
    """
    members = [row for row in select(rows, method=PRODUCT) if not math.isnan(row.delay_steps)]
    lines = []
    for signals, held in grouped(members, "signals").items():
        by_cause = grouped(held, "cause")
        faulty = [row for row in held if row.cause != HEALTHY]
        for cause, of_cause in [("any fault", faulty), *by_cause.items()]:
            found = delay_summary(of_cause)
            if found.windows:
                lines.append((signals, cause, *_delay_cells(found)))
    header = (
        "signals",
        "cause",
        "windows",
        "detected before onset",
        "never",
        "median steps",
        "95 % interval",
    )
    return TextTable("detection delay in steps after the onset", header, tuple(lines))


def _delay_cells(found: DelaySummary) -> tuple[str, ...]:
    counts = (str(found.windows), str(found.before_onset), str(found.never))
    median = found.median
    if median.n == 0:
        return (*counts, "-", "-")
    return (*counts, f"{median.value:.3g}", f"{median.low:.3g} .. {median.high:.3g}")


def confusion(rows: Sequence[JudgedRow]) -> dict[str, dict[str, int]]:
    """Windows by true (outer) and answered (inner) first cause, or failure mode without a cause."""
    table: dict[str, dict[str, int]] = {}
    for true, members in grouped(rows, "cause").items():
        for row in members:
            counts = table.setdefault(true, {})
            counts[row.first_cause] = counts.get(row.first_cause, 0) + 1
    return table
