"""`rca what-if`: report the cost of the stragglers in a trace or a window."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.errors import InvalidInput, RcaError, SourceError
from rca.files import open_file, read_text
from rca.terminal import fail, write

if TYPE_CHECKING:
    from rca.whatif.graph.trace_replay import TraceReplay
    from rca.whatif.report import Extras
    from rca.whatif.result import WhatIf
    from rca.window.window import Window

EXAMPLES = """
rca what-if trace.parquet --meta meta.yaml
rca what-if trace.parquet --meta meta.yaml --format published > result.json
rca what-if trace.parquet --heatmap workers.png --timeline step.json
rca what-if trace.parquet --scenarios scenarios.json --format json
rca what-if data/windows/slow-dataset
"""


class WhatIfFormat(StrEnum):
    """Format of the answer."""

    json = "json"
    table = "table"
    published = "published"


def command(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A Parquet file with an operation trace, or a window (directory or file)."
        ),
    ],
    meta: Annotated[
        Path | None, typer.Option("--meta", metavar="META.yaml", help="Sizes of the job. For traces only.")
    ] = None,
    format_: Annotated[
        WhatIfFormat, typer.Option("--format", "-f", help="Format of the answer.")
    ] = WhatIfFormat.table,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the answer to this file instead of stdout."
        ),
    ] = None,
    heatmap: Annotated[
        Path | None,
        typer.Option(metavar="OUT.png", help="Also draw the slowdown of each data rank and stage."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json", help="Also write a timeline of one step, real and ideal, for Perfetto."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Step of the timeline. [default: the step of median duration]")
    ] = None,
    scenarios: Annotated[
        Path | None,
        typer.Option(
            metavar="SCENARIOS.json", help="Also report the step time under each scenario of this list."
        ),
    ] = None,
    worker_steps: Annotated[
        bool,
        typer.Option(
            "--worker-steps", help="Add the slowdown of every worker in every step to the JSON answer."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
) -> None:
    """Replay a job without its stragglers, and report what each straggler costs.

    With --format json or published, an error is one JSON object on stderr.
    """
    try:
        _refuse_unused(format_, timeline, step, scenarios, worker_steps=worker_steps)
        # The published tool does not correct clocks. Numbers to compare with it must not either.
        source, replay = _source(trace, meta, correct_clocks=format_ is not WhatIfFormat.published)
        result, extras = _answered(source, replay, scenarios, seed, worker_steps=worker_steps)
        if timeline is not None:
            _write_timeline(replay, timeline, step)
        if heatmap is not None:
            from rca.whatif.report import write_heatmap

            write_heatmap(result, heatmap)
        from rca.whatif.report import render

        text = render(result, format_.value, extras)
    except RcaError as error:
        fail(error, as_json=format_ is not WhatIfFormat.table)
    write(text, output)


def _refuse_unused(
    form: WhatIfFormat, timeline: Path | None, step: int | None, scenarios: Path | None, *, worker_steps: bool
) -> None:
    """Refuse options that would have no effect."""
    if step is not None and timeline is None:
        raise InvalidInput("--step needs a timeline", hint="add --timeline OUT.json")
    if worker_steps and form is not WhatIfFormat.json:
        raise InvalidInput("--worker-steps needs the json format", hint="add --format json")
    if scenarios is not None and form is WhatIfFormat.published:
        raise InvalidInput("the published format cannot hold scenarios", hint="use --format json or table")


def _source(
    path: Path, meta: Path | None, *, correct_clocks: bool
) -> tuple[Window | TraceReplay, TraceReplay | None]:
    """The source to analyse, and its replay if it fits in memory as rows."""
    from rca.whatif.analysis import replay_of

    if path.is_file() and _is_parquet(path):
        from rca.whatif.long_trace.long_trace import STREAMED_FROM
        from rca.whatif.trace.reader import count_rows

        if count_rows(path) > STREAMED_FROM:
            return _streamed(path, meta, correct_clocks=correct_clocks), None
        replay = replay_of(path, meta, correct_clocks=correct_clocks)
        return replay, replay
    from rca.sources.read import read_window

    if meta is not None:
        raise InvalidInput(
            "--meta is for traces only; a window has its own sizes",
            hint="write the sizes to job.parallelism in the window",
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
        return json.loads(read_text(path))
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error


def _streamed(path: Path, meta: Path | None, *, correct_clocks: bool) -> TraceReplay:
    """Read in blocks, with a progress bar if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from rca.process import usable_cores
    from rca.whatif.long_trace.long_trace import stream_replay

    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=1.0)
        return stream_replay(
            path,
            meta,
            correct_clocks=correct_clocks,
            threads=usable_cores(),
            progress=lambda share: bar.update(task, completed=share),
        )


def _is_parquet(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4) == b"PAR1"


def _write_timeline(replay: TraceReplay | None, path: Path, step: int | None) -> None:
    if replay is None:
        raise InvalidInput("a timeline needs a trace of operations that fits in memory")
    from rca.whatif.report import write_timeline
    from rca.whatif.timeline import timeline as timeline_of

    write_timeline(path, timeline_of(replay, step))
