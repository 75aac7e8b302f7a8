"""`rca what-if`: a trace or a window in, the cost of its stragglers out."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.output import fail, write
from rca.errors import InvalidInput, InvalidTrace, RcaError, SourceError

if TYPE_CHECKING:
    from rca.telemetry.window import Window
    from rca.whatif.report import Extras
    from rca.whatif.result import WhatIf
    from rca.whatif.trace_replay import TraceReplay

EXAMPLES = """
rca what-if trace.parquet --meta meta.yaml
rca what-if trace.parquet --meta meta.yaml --format published > result.json
rca what-if trace.parquet --heatmap workers.png --timeline step.json
rca what-if trace.parquet --scenarios scenarios.json --format json
rca what-if data/windows/slow-dataset
"""


STREAMED_FROM = 10_000_000
"""Rows from which a trace is read in blocks: whole, it would need 2.4 GB."""


class Format(StrEnum):
    """How the answer is written."""

    json = "json"
    table = "table"
    published = "published"


def command(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="A Parquet operation trace, or a window (directory or file)."),
    ],
    meta: Annotated[
        Path | None, typer.Option("--meta", metavar="META.yaml", help="Sizes of the job, for traces.")
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="How the answer is written.")
    ] = Format.table,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    heatmap: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Also draw data ranks by stages.")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="OUT.json", help="Also write one step, real and ideal, for Perfetto."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Step of the timeline. [default: the one of median length]")
    ] = None,
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="SCENARIOS.json", help="Also answer a list of described scenarios."),
    ] = None,
    worker_steps: Annotated[
        bool, typer.Option("--worker-steps", help="In JSON, also the slowdown of every worker in every step.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the intervals.")] = 0,
) -> None:
    """Replay a job without its stragglers: what does each cost.

    With --format json or published errors are one JSON object on stderr.
    """
    try:
        _refuse_unused(format_, timeline, step, scenarios, worker_steps=worker_steps)
        # The published tool leaves skewed clocks alone: numbers to compare with its own must too.
        source, replay = _source(trace, meta, correct_clocks=format_ is not Format.published)
        result, extras = _answered(source, replay, scenarios, seed, worker_steps=worker_steps)
        if timeline is not None:
            _write_timeline(replay, timeline, step)
        if heatmap is not None:
            from rca.whatif.report import write_heatmap

            write_heatmap(result, heatmap)
        from rca.whatif.report import render

        text = render(result, format_.value, extras)
    except RcaError as error:
        fail(error, as_json=format_ is not Format.table)
    write(text, output)


def _refuse_unused(
    form: Format, timeline: Path | None, step: int | None, scenarios: Path | None, *, worker_steps: bool
) -> None:
    """An option that could have no effect is a mistake."""
    if step is not None and timeline is None:
        raise InvalidInput("--step is the step of the timeline", hint="give --timeline OUT.json too")
    if worker_steps and form is not Format.json:
        raise InvalidInput("--worker-steps are written as JSON only", hint="give --format json")
    if scenarios is not None and form is Format.published:
        raise InvalidInput(
            "the published layout has no place for scenarios", hint="give --format json or table"
        )


def _source(
    path: Path, meta: Path | None, *, correct_clocks: bool
) -> tuple[Window | TraceReplay, TraceReplay | None]:
    """What to analyse and, where it fits in memory as rows, its replay."""
    from rca.whatif.analysis import replay_of

    if path.is_file() and _is_parquet(path):
        if _n_rows(path) > STREAMED_FROM:
            return _streamed(path, meta, correct_clocks=correct_clocks), None
        replay = replay_of(path, meta, correct_clocks=correct_clocks)
        return replay, replay
    from rca.telemetry import read_window

    if meta is not None:
        raise InvalidInput(
            "--meta gives the sizes of a bare trace; a window carries its own",
            hint="give job.parallelism in the window",
        )
    window = read_window(path)
    return window, replay_of(window, correct_clocks=correct_clocks) if window.ops.num_rows else None


def _answered(
    source: Window | TraceReplay,
    replay: TraceReplay | None,
    scenarios: Path | None,
    seed: int,
    *,
    worker_steps: bool,
) -> tuple[WhatIf, Extras]:
    from rca.whatif.analysis import analysed_scenarios, described_all
    from rca.whatif.report import Extras

    described = described_all(_read_scenarios(scenarios)) if scenarios is not None else []
    result, seconds = analysed_scenarios(source, described, seed=seed, replay=replay)
    return result, Extras(
        worker_steps=worker_steps,
        scenarios=described,
        scenario_seconds=seconds if scenarios is not None else None,
    )


def _read_scenarios(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error


def _n_rows(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: int = pq.read_metadata(path).num_rows
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"{path}: not a readable Parquet trace: {error}") from error
    return rows


def _streamed(path: Path, meta: Path | None, *, correct_clocks: bool) -> TraceReplay:
    """Read step by step, with a bar on stderr where somebody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from rca.whatif.long_trace import stream_replay

    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=1.0)
        return stream_replay(
            path,
            meta,
            correct_clocks=correct_clocks,
            progress=lambda share: bar.update(task, completed=share),
        )


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _write_timeline(replay: TraceReplay | None, path: Path, step: int | None) -> None:
    if replay is None:
        raise InvalidInput("a timeline needs a trace of operations that fits in memory")
    from rca.whatif.report import write_timeline
    from rca.whatif.timeline import timeline as timeline_of

    write_timeline(path, timeline_of(replay, step))
