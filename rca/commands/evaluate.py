"""`rca evaluate`: diagnose a labelled collection and score the answers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.commands.output import fail, rendered, write
from rca.commands.progress import progress
from rca.errors import RcaError

if TYPE_CHECKING:
    from rich.table import Table

    from rca.training.evaluate import Evaluation

EXAMPLES = """
rca evaluate data/windows
rca evaluate my-incidents --format json > scores.json
"""


class Format(StrEnum):
    """How the scores are written."""

    table = "table"
    json = "json"


def command(
    collection: Annotated[Path, typer.Argument(help="Folder with manifest.json and labelled windows.")],
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="How to write the scores.")
    ] = Format.table,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
) -> None:
    """Score the diagnoses of a labelled collection, window by window and in total."""
    from rca.diagnosis import Bundle
    from rca.training.evaluate import evaluate_collection

    try:
        with progress() as report:
            evaluation = evaluate_collection(
                collection,
                None if bundle is None else Bundle.load(bundle),
                lambda done, total: report("diagnosing", done, total),
            )
    except RcaError as error:
        fail(error, as_json=format_ is Format.json)
    if format_ is Format.json:
        write(_json(evaluation))
        return
    from rca.training.evaluate import rounded

    write(
        rendered(_cases_table(evaluation)) + rendered(scores_table(rounded(evaluation.summary()), "scores"))
    )


def scores_table(scores: dict[str, Any], title: str) -> Table:
    """Render scores with their intervals."""
    from rich.table import Table

    table = Table("score", "value", "95 % interval", "windows", title=title)
    for name, row in scores.items():
        interval = f"{row['low']:.3f} .. {row['high']:.3f}" if "low" in row else ""
        table.add_row(name, f"{row['value']:.3f}", interval, f"{row['n']:.0f}")
    return table


def _cases_table(evaluation: Evaluation) -> Table:
    from rich.table import Table

    table = Table("window", "true", "answer", "ranks", "first cause", "s/step")
    for case in evaluation.cases:
        true = ", ".join(f"{cause.cause} {cause.ranks}" for cause in case.label.causes)
        diagnosis = case.diagnosis
        first = diagnosis.causes[0] if diagnosis.causes else None
        named = sorted({rank for found in diagnosis.stragglers for rank in found.ranks})
        table.add_row(
            case.id,
            f"{case.label.failure_mode} {true}",
            f"{diagnosis.failure_mode} {diagnosis.failure_mode_probability[diagnosis.failure_mode]:.2f}",
            str(named) if named else "",
            f"{first.cause} {first.probability:.2f}" if first else "",
            f"{diagnosis.slowdown.seconds_per_step:.4g}",
        )
    return table


def _json(evaluation: Evaluation) -> str:
    import json
    import math

    def clean(value: float) -> float | None:
        return value if math.isfinite(value) else None

    cases = [
        {"id": case.id}
        | {
            key: clean(value) if isinstance(value, float) else value
            for key, value in vars(case.judged).items()
        }
        for case in evaluation.cases
    ]
    scores = {
        name: {key: clean(value) for key, value in row.items()} for name, row in evaluation.summary().items()
    }
    return json.dumps({"scores": scores, "confusion": evaluation.confusion(), "windows": cases}, indent=2)
