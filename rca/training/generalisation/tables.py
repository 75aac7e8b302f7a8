"""What the folds answered, as lines with intervals: text tables, Markdown, plain data, judged rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.errors import SourceError
from rca.evaluation.intervals import Estimate
from rca.evaluation.rows import JudgedRow, grouped, in_order, to_table
from rca.evaluation.summary import Difference, differences, estimates
from rca.evaluation.tables import TextTable, cell
from rca.training.generalisation.folds import CAPTURE_SIZES, SEEN, SEVERITY, WORLD_SIZE, capture_size
from rca.training.generalisation.run import Generalisation
from rca.training.held_out import SIGNALS

#: Shown per line; the plain data has every score.
SCORES = {
    "failure_mode_accuracy": "failure mode",
    "false_alarm_rate": "false alarms",
    "ranks_exact": "ranks exact",
    "cause_ac@1": "cause AC@1",
    "abstention_rate": "abstained",
    "out_of_distribution_rate": "called strange",
}
#: Compared, window by window, with a model that has learned from windows like the asked ones.
COMPARED = ("failure_mode_accuracy", "ranks_exact", "cause_ac@1")
#: Grouping of the captures' answers by nothing but what their model had learned from.
LEARNED_FROM = "learned from"
CAPTURES = "captures"
#: Questions and groupings shown with every set of signals.
_WITH_SIGNALS = {
    (SEEN, "severity"),
    (SEVERITY, "severity"),
    (WORLD_SIZE, "world size"),
    (CAPTURES, LEARNED_FROM),
}
#: Names shown of those a cause was mistaken for.
MISTAKEN_SHOWN = 2


@dataclass(frozen=True)
class Line:
    """Scores of one group of answers.

    Attributes
    ----------
    question, by, group, signals : str
    windows : int
    scores : dict of str to Estimate
    lost : dict of str to Difference
        Score minus that of models that had learned from windows like these; empty where nobody asked them.
    mistaken : dict of str to int
        First causes answered that are wrong, whatever the ranks, the most frequent first; a failure mode
        stands where no cause was named.
    """

    question: str
    by: str
    group: str
    signals: str
    windows: int
    scores: dict[str, Estimate]
    lost: dict[str, Difference]
    mistaken: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The line for JSON."""
        return {
            "question": self.question,
            "by": self.by,
            "group": self.group,
            "signals": self.signals,
            "windows": self.windows,
            "scores": {name: found.as_row() for name, found in self.scores.items()},
            "minus_seen": {
                name: {**found.estimate.as_row(), "differing": found.differing, "verdict": found.verdict}
                for name, found in self.lost.items()
            },
            "mistaken_for": self.mistaken,
        }


Grouping = Callable[[Sequence[JudgedRow]], dict[str, list[JudgedRow]]]


def lines(found: Generalisation) -> list[Line]:
    """Every question's answers by every grouping that says something about it."""
    by_question: dict[str, list[JudgedRow]] = {}
    for each in found.answered:
        by_question.setdefault(each.question, []).extend(each.rows)
    seen = {(row.window, row.signals): row for row in by_question.get(SEEN, ())}
    result = []
    for question, rows in by_question.items():
        for by, grouping in _groupings(question, found).items():
            for group, members in grouping(rows).items():
                result += [
                    _line(question, by, group, signals, held, seen)
                    for signals, held in grouped(members, "signals").items()
                ]
    return result


def _groupings(question: str, found: Generalisation) -> dict[str, Grouping]:
    if question in (SEEN, SEVERITY):
        return {
            "severity": lambda rows: grouped(rows, "severity"),
            "cause": lambda rows: grouped(rows, "cause"),
            "cause and severity": _by_cell,
        }
    if question == WORLD_SIZE:
        return {"world size": lambda rows: grouped(rows, "world_size")}
    sizes = [name for _, name in CAPTURE_SIZES]
    return {
        LEARNED_FROM: lambda rows: {question: list(rows)},
        "model": lambda rows: _by(rows, lambda row: found.origins[row.window].model or "not known", ()),
        "world size": lambda rows: _by(rows, lambda row: capture_size(row.world_size), sizes),
    }


def _by_cell(rows: Sequence[JudgedRow]) -> dict[str, list[JudgedRow]]:
    return {
        f"{cause}, {severity}": held
        for cause, members in grouped(rows, "cause").items()
        for severity, held in grouped(members, "severity").items()
    }


def _by(
    rows: Sequence[JudgedRow], name_of: Callable[[JudgedRow], str], order: Iterable[str]
) -> dict[str, list[JudgedRow]]:
    held: dict[str, list[JudgedRow]] = {}
    for row in rows:
        held.setdefault(name_of(row), []).append(row)
    return {name: held[name] for name in in_order(held, order)}


def _line(
    question: str,
    by: str,
    group: str,
    signals: str,
    rows: Sequence[JudgedRow],
    seen: dict[tuple[str, str], JudgedRow],
) -> Line:
    pairs = [
        (row.judged, seen[row.window, row.signals].judged)
        for row in rows
        if question != SEEN and (row.window, row.signals) in seen
    ]
    lost = differences([one for one, _ in pairs], [other for _, other in pairs]) if pairs else []
    # Not by comparing names: a label may accept several causes that its signals cannot tell apart.
    wrong = Counter(row.first_cause for row in rows if row.judged.rank_of_cause_name > 1)
    return Line(
        question=question,
        by=by,
        group=group,
        signals=signals,
        windows=len(rows),
        scores=estimates([row.judged for row in rows]),
        lost={each.score: each for each in lost if each.score in COMPARED},
        mistaken=dict(sorted(wrong.items(), key=lambda item: (-item[1], item[0]))),
    )


def tables(found: Sequence[Line], *, brief: bool = False) -> Iterator[TextTable]:
    """One table per question and grouping; brief ones have room on a terminal.

    Finer groupings are about whole windows: with every set of signals they would be hundreds of lines.
    """
    by_table: dict[tuple[str, str], list[Line]] = {}
    for each in found:
        about = each.question if each.question in (SEEN, SEVERITY, WORLD_SIZE) else CAPTURES
        whole_only = (about, each.by) not in _WITH_SIGNALS
        if each.signals == SIGNALS[0] or not (whole_only or brief):
            by_table.setdefault((about, each.by), []).append(each)
    for (about, by), held in by_table.items():
        if not (brief and by == "cause and severity"):
            yield _table(f"{about}, by {by}" if by != LEARNED_FROM else about, by, held, brief)


def _table(title: str, by: str, held: Sequence[Line], brief: bool) -> TextTable:
    columns: dict[str, list[str]] = {}
    if len({each.question for each in held}) > 1:
        columns[LEARNED_FROM] = [each.question for each in held]
    columns[by] = [each.group for each in held]
    if len({each.signals for each in held}) > 1:
        columns["signals"] = [each.signals for each in held]
    columns["windows"] = [str(each.windows) for each in held]
    for score, name in SCORES.items():
        if brief and score in ("abstention_rate", "out_of_distribution_rate"):
            continue
        columns[name] = [cell(each.scores[score]) for each in held]
        if not brief:
            columns[f"{name}, minus seen"] = [_lost(each.lost.get(score)) for each in held]
    if by == "cause":
        columns["taken for"] = [_taken_for(each) for each in held]
    shown = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    return TextTable(title, tuple(shown), tuple(zip(*shown.values(), strict=True)))


def _lost(found: Difference | None) -> str:
    if found is None:
        return "-"
    estimate = found.estimate
    return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"


def _taken_for(line: Line) -> str:
    shown = list(line.mistaken.items())[:MISTAKEN_SHOWN]
    return ", ".join(f"{name} {count}" for name, count in shown) or "none"


def document(found: Generalisation, held: Sequence[Line]) -> dict[str, Any]:
    """Everything as plain data for JSON; unknown numbers are null."""
    from rca.whatif.result import finite

    plain: dict[str, Any] = finite(
        {
            "command": found.command,
            "corpus_sha256": found.corpus_sha256,
            "folds": [
                {
                    "question": each.question,
                    "held_out": each.name,
                    "learned": each.learned,
                    "asked": len({row.window for row in each.rows}),
                    "lacking": each.lacking,
                }
                for each in found.answered
            ],
            "lines": [each.as_dict() for each in held],
        }
    )
    return plain


def to_markdown(found: Generalisation, held: Sequence[Line]) -> str:
    """The report as a page."""
    lacking = [f"- {each.question}, {each.name}: {each.lacking}" for each in found.answered if each.lacking]
    head = [
        "# Generalisation",
        "",
        f"`{found.command}`, corpus `{found.corpus_sha256[:16]}`. Brackets are 95 % bootstrap intervals over "
        "windows. *Minus seen*: the same windows answered by models that had learned from others like them, "
        "subtracted window by window. A dash: the score does not apply to any window.",
    ]
    if lacking:
        head += ["", "Not asked, because too little was left to learn from:", "", *lacking]
    return "\n\n".join(["\n".join(head), *(each.to_markdown().rstrip() for each in tables(held))]) + "\n"


def write_report(found: Generalisation, held: Sequence[Line], folder: Path) -> None:
    """Write ``report.md``, ``scores.json`` and ``judged.parquet`` (a row per question, window and signals).

    Raises
    ------
    SourceError
        If the folder cannot be written.
    """
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for each in found.answered for row in each.rows]
    told = [f"{each.question}/{each.name}" for each in found.answered for _ in each.rows]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.md").write_text(to_markdown(found, held), encoding="utf-8")
        content = orjson.dumps(document(found, held), option=orjson.OPT_INDENT_2)
        (folder / "scores.json").write_bytes(content + b"\n")
        if rows:
            pq.write_table(to_table(rows).add_column(0, "fold", pa.array(told)), folder / "judged.parquet")
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error
