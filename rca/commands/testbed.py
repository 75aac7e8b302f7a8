"""`rca testbed`: capture real training jobs with injected faults."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rca.commands.progress import progress
from rca.terminal import write

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run real training jobs on this machine, inject faults, capture labelled windows.",
    epilog="\b\nExamples:\n"
    "  rca testbed probe\n"
    "  rca testbed capture --scenario data/testbed/examples/cpu-hogs.yaml -o cpu-hogs\n"
    "  rca testbed campaign data/testbed/matrix.yaml -o campaign",
)


@app.command("probe")
def probe_command(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the leftovers of a crashed capture, and list them.")
    ] = False,
) -> None:
    """List the capabilities of this machine, and the faults that it permits."""
    from rca.lab.testbed import FAULTS, probe
    from rca.lab.testbed.gpus import GpuMissing, find_gpus
    from rca.lab.testbed.sweep import exclusive, sweep

    with exclusive():
        removed = sweep() if clean else []
        permitted = probe()
    try:
        gpus = ", ".join(gpu.name for gpu in find_gpus())
        without_gpu = []
    except GpuMissing as error:
        gpus = f"no: {error.message}"
        without_gpu = ["a GPU"]
    lines = [f"{name:15} {_in_words(value)}" for name, value in permitted.as_dict().items()]
    lines += [f"{'gpus':15} {gpus}", "", "faults:"]
    for kind, spec in FAULTS.items():
        lacking = [*permitted.lacking(kind), *(without_gpu if spec.device == "gpu" else [])]
        state = f"needs {', '.join(lacking)}" if lacking else "possible"
        lines.append(f"  {kind:18} {state:12} {spec.cause}")
    if clean:
        lines += ["", f"removed: {len(removed)}", *(f"  {each}" for each in removed)]
    write("\n".join(lines))


@app.command("capture")
def capture_command(
    scenario: Annotated[Path, typer.Option("--scenario", help="Scenario as YAML.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the labelled window.")],
) -> None:
    """Run one scenario and write its labelled window."""
    from rca.lab.testbed import read_scenario
    from rca.lab.testbed.capture import capture_to

    described = read_scenario(scenario)
    with progress() as report:
        captured = capture_to(described, output, on_progress=report)
    label = captured.label
    causes = ", ".join(f"{cause.cause} on {list(cause.ranks)}" for cause in label.causes)
    write(f"{output}: {label.failure_mode}{': ' + causes if causes else ''}\n{label.notes}")


@app.command("campaign")
def campaign_command(
    matrix: Annotated[Path, typer.Argument(help="Scenario matrix as YAML.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Collection folder; existing captures are kept.")
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many captures.")] = None,
    max_foreign_cpu: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Discard captures in which other processes used a larger share of the CPU time.",
        ),
    ] = 0.15,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the captures and their parts.")
    ] = False,
) -> None:
    """Make the missing captures of a matrix. You can stop and resume it at any time."""
    from rca.lab.testbed.campaign import CampaignProgress, forked, require_gpus_of, run_campaign
    from rca.lab.testbed.matrix import expand, read_matrix
    from rca.lab.testbed.ranks.models import preload

    described = read_matrix(matrix)
    planned = expand(described)
    if dry_run:
        write("\n".join(f"{each.part:11} {each.scenario.name}" for each in planned))
        return
    gpus = require_gpus_of(planned)
    preload()
    with progress() as report:

        def on_progress(state: CampaignProgress) -> None:
            left = (
                "" if state.remaining_seconds is None else f", about {_minutes(state.remaining_seconds)} left"
            )
            report(f"{state.done + 1}/{state.total} {state.name}{left}", 0, 0)

        runner = partial(forked, max_foreign_cpu=max_foreign_cpu, gpus=gpus)
        outcome = run_campaign(described, output, runner, on_progress=on_progress, limit=limit)
    lines = [f"{output}: {outcome.total} windows, {outcome.made} of them new, {len(outcome.failed)} failed"]
    lines += [f"  {name}: {message.splitlines()[0]}" for name, message in outcome.failed.items()]
    write("\n".join(lines))


@app.command("pack")
def pack_command(
    campaign: Annotated[Path, typer.Argument(help="Collection folder of a campaign.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the archives and the manifest.")],
) -> None:
    """Compress a campaign into one archive per part, the same bytes every time."""
    from rca.lab.testbed.pack import pack

    with progress() as report:
        sizes = pack(campaign, output, report)
    lines = [f"{output / name}  {size / 1e6:.1f} MB" for name, size in sizes.items()]
    write("\n".join(lines))


@app.command("unpack")
def unpack_command(
    packed: Annotated[Path, typer.Argument(help="Folder with the archives and their manifest.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Collection folder to write.")],
) -> None:
    """Unpack captures to a collection folder: rca testbed unpack data/testbed/captures -o captures."""
    from rca.lab.testbed.pack import unpack

    with progress() as report:
        n_windows = unpack(packed, output, report)
    write(f"{output}: {n_windows} windows")


def _in_words(value: int | bool) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
