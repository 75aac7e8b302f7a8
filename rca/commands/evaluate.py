"""`rca evaluate`: diagnose a labelled collection, score the answers, compare them with baselines."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.commands.progress import ProgressReport, progress
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.errors import InvalidInput, RcaError
from rca.terminal import OutputFormat, fail, rendered, table_of, write

if TYPE_CHECKING:
    from rich.table import Table

    from rca.lab.evaluation.baselines_forest import Forest
    from rca.lab.evaluation.run import Evaluation, EvaluationPlan
    from rca.lab.evaluation.tables import TextTable
    from rca.sources.labels import CollectionEntry
    from rca.workers import Workers

EXAMPLES = """
rca evaluate data/windows
rca evaluate my-incidents --part test --format json > scores.json    only windows that were not learned from
rca evaluate corpus --signals every --by cause --by signals --processes 2
rca evaluate corpus --baselines --delay --output evaluation    judged.parquet, report.md, ...
"""


class Signals(StrEnum):
    """Signals of a window that the methods may use."""

    all = "all"
    no_gpu_metrics = "no-gpu-metrics"
    no_kernel_metrics = "no-kernel-metrics"
    exporters_and_step_times = "exporters-and-step-times"
    phases_only = "phases-only"
    step_times_only = "step-times-only"
    every = "every"


class PartName(StrEnum):
    """Part of the data of a window, by the manifest's split or the hash of its group."""

    train = "train"
    calibration = "calibration"
    validation = "validation"
    test = "test"


class By(StrEnum):
    """Facts that scores are grouped by."""

    cause = "cause"
    severity = "severity"
    slowdown = "slowdown"
    world_size = "world_size"
    telemetry = "telemetry"
    mechanism = "mechanism"
    source = "source"
    signals = "signals"


def command(
    collection: Annotated[Path, typer.Argument(help="Folder with manifest.json and labelled windows.")],
    format_: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="Output format.")
    ] = OutputFormat.table,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    signals: Annotated[
        list[Signals] | None,
        typer.Option(help="Signals that the methods may use; repeat for several sets. [default: all]"),
    ] = None,
    by: Annotated[list[By] | None, typer.Option(help="Also score by groups; repeat for several.")] = None,
    part: Annotated[
        list[PartName] | None,
        typer.Option(
            help="Only windows of this part, split as by `rca train`; repeat for several. [default: all]"
        ),
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Also compare with published methods.")
    ] = False,
    forest_from: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Collection to fit the random forest on. [default: simulated]"),
    ] = None,
    forest_windows: Annotated[
        int, typer.Option(min=20, help="Simulated windows to fit the random forest on.")
    ] = 600,
    delay: Annotated[
        bool,
        typer.Option("--delay", help="Also measure the detection delay; takes several times as long."),
    ] = False,
    processes: Processes = None,
    scheduler: Scheduler = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Also write judged.parquet, scores.json, report.md, confusion.png.",
        ),
    ] = None,
) -> None:
    """Score the diagnoses of a labelled collection, window by window and in total."""
    from rca.lab.evaluation.run import evaluate_entries

    try:
        entries, notice = _entries(collection, part or [], bundle)
        if notice is not None:
            typer.echo(notice, err=True)
        with progress() as report, workers_of(processes, scheduler) as workers:
            plan = _plan(signals or [], bundle, delay)
            if baselines:
                plan = _with_baselines(plan, collection, forest_from, forest_windows, workers, report)
            evaluation = evaluate_entries(
                entries,
                plan,
                workers=workers,
                progress=lambda done, total: report("diagnosing", done, total),
            )
        if output is not None:
            from rca.lab.evaluation.report import write_report

            write_report(evaluation, output, collection.resolve().name)
    except RcaError as error:
        fail(error, as_json=format_ is OutputFormat.json)
    groups = [each.value for each in by or []]
    write(_json(evaluation, groups) if format_ is OutputFormat.json else _text(evaluation, groups))


def _entries(
    collection: Path, parts: list[PartName], bundle: Path | None
) -> tuple[list[CollectionEntry], str | None]:
    """The windows to score, and a note about windows that may have been learned from."""
    from rca.lab.training.incidents import incidents
    from rca.sources.labels import read_collection

    held = incidents(read_collection(collection))
    wanted = {each.value for each in parts}
    chosen = [each for each in held if not wanted or each.part in wanted]
    if not chosen:
        counted = Counter(each.part for each in held)
        has = ", ".join(f"{name} {n}" for name, n in sorted(counted.items())) or "no windows"
        raise InvalidInput(f"{collection}: no window to score; the collection has {has}")
    entries = [each.entry for each in chosen]
    seen = sum(each.part != "test" for each in chosen)
    if not seen or not _learned_from_real_windows(bundle):
        return entries, None
    return entries, (
        f"note: {seen} of {len(chosen)} windows are not in the test part. If this collection was learned "
        "from, their scores are no test. Use --part test to leave them out."
    )


def _learned_from_real_windows(bundle: Path | None) -> bool:
    from rca.diagnosis.bundle import Bundle, baseline

    held = baseline() if bundle is None else Bundle.load(bundle)
    return bool(held.manifest.get("provenance", {}).get("n_real_windows"))


def _plan(signals: list[Signals], bundle: Path | None, delay: bool) -> EvaluationPlan:
    from rca.lab.evaluation.run import EvaluationPlan
    from rca.lab.evaluation.signal_sets import SIGNAL_SETS

    chosen = list(dict.fromkeys(each.value for each in signals)) or ["all"]
    return EvaluationPlan(tuple(SIGNAL_SETS) if "every" in chosen else tuple(chosen), bundle, delay=delay)


def _with_baselines(
    plan: EvaluationPlan,
    collection: Path,
    source: Path | None,
    n_windows: int,
    workers: Workers,
    report: ProgressReport,
) -> EvaluationPlan:
    from dataclasses import replace

    return replace(plan, baselines=True, forest=_forest(collection, source, n_windows, workers, report))


def _forest(
    collection: Path, source: Path | None, n_windows: int, workers: Workers, report: ProgressReport
) -> Forest:
    from rca.lab.evaluation.baselines_forest import Forest
    from rca.lab.evaluation.run import forest_from_collection

    phase = "reading the random forest's windows"
    if source is not None:
        return forest_from_collection(source, collection, lambda done, total: report(phase, done, total))
    from rca.lab.evaluation.simulated import simulated_forest_examples

    examples = []
    for example in simulated_forest_examples(training_seeds(n_windows), workers=workers):
        examples.append(example)
        report("simulating the random forest's windows", len(examples), n_windows)
    return Forest.fit(examples)


def training_seeds(n_windows: int) -> list[int]:
    """Seeds of simulated scenarios of the part ``train``, which are in no test."""
    from rca.lab.training.split import seeds_of

    return seeds_of("train", n_windows)


def _text(evaluation: Evaluation, by: list[str]) -> str:
    from rca.lab.evaluation.report import tables
    from rca.lab.evaluation.summary import rounded, summarise

    scores = rounded(summarise([row.judged for row in evaluation.product_rows]))
    parts = [table_of(_cases_table(evaluation)), scores_table(scores, "scores")]
    parts += [table_of(table) for table in tables(evaluation, by, brief=True)]
    return "".join(map(rendered, parts))


def scores_table(scores: dict[str, Any], title: str) -> Table:
    """Render scores with their intervals."""
    from rich.table import Table

    table = Table("score", "value", "95 % interval", "windows", title=title)
    for name, row in scores.items():
        interval = f"{row['low']:.3f} .. {row['high']:.3f}" if "low" in row else ""
        table.add_row(name, f"{row['value']:.3f}", interval, f"{row['n']:.0f}")
    return table


def _cases_table(evaluation: Evaluation) -> TextTable:
    from rca.lab.evaluation.tables import TextTable

    lines = []
    for case in evaluation.cases:
        true = ", ".join(f"{cause.cause} {cause.ranks}" for cause in case.label.causes)
        diagnosis = case.diagnosis
        first = diagnosis.causes[0] if diagnosis.causes else None
        named = sorted({rank for found in diagnosis.stragglers for rank in found.ranks})
        lines.append(
            (
                case.id,
                f"{case.label.failure_mode} {true}",
                f"{diagnosis.failure_mode} {diagnosis.failure_mode_probability[diagnosis.failure_mode]:.2f}",
                str(named) if named else "",
                f"{first.cause} {first.probability:.2f}" if first else "",
                _seconds(diagnosis.slowdown.seconds_per_step),
            )
        )
    header = ("window", "true", "answer", "ranks", "first cause", "s/step")
    return TextTable("", header, tuple(lines))


def _seconds(lost: float | None) -> str:
    """Seconds per step, or that the cost is unknown, as of a window without steps."""
    return "unknown" if lost is None else f"{lost:.4g}"


def _json(evaluation: Evaluation, by: list[str]) -> str:
    import json

    from rca.lab.evaluation.report import document

    return json.dumps(document(evaluation, by), indent=2)
