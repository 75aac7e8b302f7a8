"""Answers of the folds as scores with intervals: text tables, Markdown, plain data, judged rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.errors import SourceError
from rca.lab.evaluation.intervals import Estimate
from rca.lab.evaluation.judged_rows import JudgedRow, grouped, to_table
from rca.lab.evaluation.summary import Difference, differences, estimates
from rca.lab.evaluation.tables import TextTable, cell
from rca.lab.training.cross_validation.folds import SEEN, SEVERITY
from rca.lab.training.cross_validation.generalise import Generalisation
from rca.lab.training.held_out import SIGNALS
from rca.whatif.result import finite

#: Scores of a table; the plain data has every score.
SCORES = {
    "failure_mode_accuracy": "failure mode",
    "false_alarm_rate": "false alarms",
    "ranks_exact": "ranks exact",
    "cause_ac@1": "cause AC@1",
    "abstention_rate": "abstained",
    "out_of_distribution_rate": "out of distribution",
}
#: Scores that a terminal has room for.
BRIEF_SCORES = ("failure_mode_accuracy", "false_alarm_rate", "ranks_exact", "cause_ac@1")
#: Scores compared, window by window, with a bundle that learned from windows of the same kind.
COMPARED = ("failure_mode_accuracy", "ranks_exact", "cause_ac@1")
HELD_OUT = "held out"


@dataclass(frozen=True)
class Line:
    """Scores of one group of answers.

    Attributes
    ----------
    minus_seen : dict of str to Difference
        Score minus that of bundles which learned from windows of the same kind; empty without such answers.
    """

    split: str
    by: str
    group: str
    signals: str
    windows: int
    scores: dict[str, Estimate]
    minus_seen: dict[str, Difference]


def lines(found: Generalisation) -> list[Line]:
    """Every split's answers: by severity and cause, or by what was held out."""
    by_split: dict[str, dict[str, list[JudgedRow]]] = {}
    for fold in found.folds:
        by_split.setdefault(fold.split, {}).setdefault(fold.held_out, []).extend(fold.rows)
    seen = {(row.window, row.signals): row for rows in by_split.get(SEEN, {}).values() for row in rows}
    result = []
    for split, by_held_out in by_split.items():
        groupings = {HELD_OUT: by_held_out}
        if split in (SEEN, SEVERITY):
            rows = [row for each in by_held_out.values() for row in each]
            groupings = {by: grouped(rows, by) for by in ("severity", "cause")}
        for by, groups in groupings.items():
            for group, members in groups.items():
                for signals, held in grouped(members, "signals").items():
                    result.append(_line(split, by, group, signals, held, {} if split == SEEN else seen))
    return result


def _line(
    split: str,
    by: str,
    group: str,
    signals: str,
    rows: Sequence[JudgedRow],
    seen: dict[tuple[str, str], JudgedRow],
) -> Line:
    pairs = [
        (row.judged, seen[row.window, row.signals].judged)
        for row in rows
        if (row.window, row.signals) in seen
    ]
    compared = differences([one for one, _ in pairs], [other for _, other in pairs]) if pairs else []
    return Line(
        split=split,
        by=by,
        group=group,
        signals=signals,
        windows=len(rows),
        scores=estimates([row.judged for row in rows]),
        minus_seen={each.score: each for each in compared if each.score in COMPARED},
    )


def tables(found: Sequence[Line], *, brief: bool = False) -> Iterator[TextTable]:
    """One table per split and grouping; brief tables fit a terminal and are about all signals."""
    by_table: dict[tuple[str, str], list[Line]] = {}
    for each in found:
        if each.signals == SIGNALS[0] or not (brief or each.by == "cause"):
            by_table.setdefault((each.split, each.by), []).append(each)
    for (split, by), held in by_table.items():
        yield _table(f"{split}, by {by}" if by != HELD_OUT else split, by, held, brief)


def _table(title: str, by: str, held: Sequence[Line], brief: bool) -> TextTable:
    columns = {by: [each.group for each in held]}
    if not brief:
        columns["signals"] = [each.signals for each in held]
    columns["windows"] = [str(each.windows) for each in held]
    for score in BRIEF_SCORES if brief else SCORES:
        columns[SCORES[score]] = [cell(each.scores[score]) for each in held]
        if not brief:
            columns[f"{SCORES[score]}, minus seen"] = [_change(each.minus_seen.get(score)) for each in held]
    shown = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    return TextTable(title, tuple(shown), tuple(zip(*shown.values(), strict=True)))


def _change(found: Difference | None) -> str:
    if found is None:
        return "-"
    estimate = found.estimate
    return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"


def document(found: Generalisation, held: Sequence[Line]) -> dict[str, Any]:
    """Everything as plain data for JSON; unknown numbers are null."""
    plain: dict[str, Any] = finite(
        {
            "command": found.command,
            "corpus_sha256": found.corpus_sha256,
            "folds": [
                {
                    "split": fold.split,
                    "held_out": fold.held_out,
                    "learned": fold.learned,
                    "tested": len({row.window for row in fold.rows}),
                    "lacking": fold.lacking,
                }
                for fold in found.folds
            ],
            "lines": [
                {
                    **vars(each),
                    "scores": {name: value.as_row() for name, value in each.scores.items()},
                    "minus_seen": {
                        name: {
                            **value.estimate.as_row(),
                            "differing": value.differing,
                            "verdict": value.verdict,
                        }
                        for name, value in each.minus_seen.items()
                    },
                }
                for each in held
            ],
        }
    )
    return plain


def to_markdown(found: Generalisation, held: Sequence[Line]) -> str:
    """The report as a page."""
    lacking = [f"- {fold.split}, {fold.held_out}: {fold.lacking}" for fold in found.folds if fold.lacking]
    head = [
        "# Generalisation",
        "",
        f"`{found.command}`, corpus `{found.corpus_sha256[:16]}`. Brackets are 95 % intervals over windows. "
        "*Minus seen* is the difference to bundles that learned from windows of the same kind, window by "
        "window. A dash means that the score does not apply to any window.",
    ]
    if lacking:
        head += ["", "Not tested, because too few windows were left to learn from:", "", *lacking]
    return "\n\n".join(["\n".join(head), *(each.to_markdown().rstrip() for each in tables(held))]) + "\n"


def write_report(found: Generalisation, held: Sequence[Line], folder: Path) -> None:
    """Write ``report.md``, ``scores.json`` and ``judged.parquet`` (a row per fold, window and signals).

    Raises
    ------
    SourceError
        If the folder cannot be written.
    """
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for fold in found.folds for row in fold.rows]
    names = [f"{fold.split}/{fold.held_out}" for fold in found.folds for _ in fold.rows]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.md").write_text(to_markdown(found, held), encoding="utf-8")
        content = orjson.dumps(document(found, held), option=orjson.OPT_INDENT_2)
        (folder / "scores.json").write_bytes(content + b"\n")
        if rows:
            pq.write_table(to_table(rows).add_column(0, "fold", pa.array(names)), folder / "judged.parquet")
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error
