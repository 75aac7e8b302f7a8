"""An evaluation as files: judged rows, tables, picture and scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rca.errors import SourceError
from rca.lab.evaluation.detection_delay import delay_summary
from rca.lab.evaluation.judged_rows import (
    GROUPINGS,
    HEALTHY,
    PRODUCT,
    JudgedRow,
    grouped,
    methods_of,
    select,
    to_table,
)
from rca.lab.evaluation.pictures import write_confusion
from rca.lab.evaluation.run import FOREST, Evaluation
from rca.lab.evaluation.signal_sets import SIGNAL_SETS
from rca.lab.evaluation.summary import summarise
from rca.lab.evaluation.tables import (
    BRIEF,
    GROUP_SCORES,
    TextTable,
    alarm_rate,
    alarms_table,
    compared,
    confusion,
    delay_table,
    differences_table,
    errors_table,
    group_table,
    methods_table,
)


def tables(evaluation: Evaluation, by: Sequence[str], *, brief: bool = False) -> list[TextTable]:
    """Every table beyond the totals: methods and differences, groups, false alarms, delay."""
    plan, rows = evaluation.plan, evaluation.rows
    found: list[TextTable] = []
    if plan.methods:
        found = [methods_table(rows, signals) for signals in plan.signals]
        found.insert(1, differences_table(rows, evaluation.signals))
    for name in by:
        members = rows if name == "signals" else evaluation.product_rows
        found.append(group_table(members, name, BRIEF if brief else tuple(GROUP_SCORES)))
    found += [errors_table(evaluation.product_rows), alarms_table(rows)]
    if plan.delay:
        found.append(delay_table(rows))
    return found


def document(evaluation: Evaluation, by: Sequence[str] = tuple(GROUPINGS)) -> dict[str, Any]:
    """Everything as plain data for JSON; infinite and unknown numbers are null."""
    from rca.whatif.result import finite

    rows, product = evaluation.rows, evaluation.product_rows
    content: dict[str, Any] = {
        "model": evaluation.model,
        "n_windows": len(evaluation.cases),
        "signals": evaluation.signals,
        "scores": summarise([row.judged for row in product]),
        "confusion": confusion(product),
        "methods": {
            signals: {method: _method(select(members, method=method)) for method in methods_of(members)}
            for signals, members in grouped(rows, "signals").items()
        },
        "differences": _differences(evaluation),
        "groups": {
            name: {
                group: summarise([row.judged for row in members])
                for group, members in grouped(
                    select(rows, method=PRODUCT) if name == "signals" else product, name
                ).items()
            }
            for name in by
        },
        "errors": Counter(row.judged.kind for row in product if row.judged.kind),
        "windows": [{"id": row.window, **vars(row.judged)} for row in product],
    }
    if evaluation.plan.delay:
        content["detection_delay_steps"] = {
            name: _delay([row for row in product if (row.cause == HEALTHY) == (name == HEALTHY)])
            for name in ("faulty", HEALTHY)
        }
    plain: dict[str, Any] = finite(content)
    return plain


def _delay(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    found = delay_summary(rows)
    return {**found._asdict(), "median": found.median.as_row()}


def _method(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    return {
        "scores": summarise([row.judged for row in rows]),
        "false_alarms_per_healthy_job_hour": alarm_rate(rows)._asdict(),
    }


def _differences(evaluation: Evaluation) -> dict[str, Any]:
    """Product minus baseline: ``{signals: {baseline: {score: {...}}}}``."""
    return {
        signals: {
            method: {
                each.score: {**each.estimate.as_row(), "differing": each.differing, "verdict": each.verdict}
                for each in found
            }
            for method, found in compared(evaluation.rows, signals)
        }
        for signals in (evaluation.plan.signals if evaluation.plan.methods else ())
    }


def write_report(evaluation: Evaluation, folder: Path, title: str) -> None:
    """Write ``judged.parquet``, ``scores.json``, ``report.md`` and ``confusion.png``.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    SourceError
        If the folder cannot be written.
    """
    import orjson
    import pyarrow.parquet as pq

    try:
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_table(evaluation.rows), folder / "judged.parquet")
        content = orjson.dumps(document(evaluation), option=orjson.OPT_INDENT_2)
        (folder / "scores.json").write_bytes(content + b"\n")
        (folder / "report.md").write_text(_markdown(evaluation, title), encoding="utf-8")
        write_confusion(confusion(evaluation.product_rows), folder / "confusion.png")
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error


def _markdown(evaluation: Evaluation, title: str) -> str:
    plan = evaluation.plan
    lines = [
        f"# Evaluation of {title}",
        "",
        f"{len(evaluation.cases)} windows, model {evaluation.model}, totals with signals: "
        f"{evaluation.signals} ({SIGNAL_SETS[evaluation.signals]}). Brackets are 95 % intervals: exact for "
        "shares and rates, bootstrap over windows for other scores. A dash: the score does not apply.",
    ]
    if plan.forest is not None:
        lines += ["", f"The {FOREST} was fitted on {plan.forest.n_windows} other windows."]
    parts = [] if plan.methods else [methods_table(evaluation.rows, signals) for signals in plan.signals]
    parts += tables(evaluation, tuple(GROUPINGS))
    picture = "## Confusion\n\n![first cause answered, by true cause](confusion.png)\n"
    return "\n\n".join(["\n".join(lines), *(part.to_markdown().rstrip() for part in parts), picture])
