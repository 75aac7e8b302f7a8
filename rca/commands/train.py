"""`rca train`: reproduce the shipped bundle, or train another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.progress import import_counted, progress
from rca.commands.training_options import Cache, Seed, Settings
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import rendered, write

if TYPE_CHECKING:
    from rca.lab.training.run import TrainedBundle

#: Name of the shipped bundle as one to continue from; a folder of that name is ``./shipped``.
SHIPPED = "shipped"
#: Modules whose imports take seconds together.
MODULES = (
    "numpy",
    "pyarrow",
    "rca.diagnosis",
    "scipy.special",
    "rca.lab.evaluation.run",
    "rca.lab.training.run",
)
EXAMPLES = """
rca train --output my-bundle                           simulated windows only; models/README.md has the
                                                       command of the shipped bundle
rca train --windows 500 --output quick --no-tracking   a short run
rca train --collection my-incidents --output ours      also learn from your own labelled windows
rca train --windows 24000 --collection my-incidents --continue-from shipped --output ours
                                                       the same in less time: the shipped trees stay
rca train --alarm-of shipped --collection my-incidents --output ours
                                                       only the alarm of latenesses: minutes
rca models promote --collection my-incidents           make it the champion if the gate passes it
rca diagnose window.json --bundle my-bundle
"""


def command(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Bundle folder to write.")],
    windows: Annotated[int | None, typer.Option(min=200, help="Simulated windows. [default: 96000]")] = None,
    seed: Seed = None,
    collection: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder of real labelled windows to learn from as well; repeat for several. The split in "
            "the manifest names the test windows.",
        ),
    ] = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar=["RCA_TRACKING_URI", "MLFLOW_TRACKING_URI"],
            help="MLflow store. [default: that of the service]",
        ),
    ] = None,
    tracking: Annotated[
        bool, typer.Option(help="Log parameters, metrics, pictures, model card and the bundle to MLflow.")
    ] = True,
    register: Annotated[
        bool, typer.Option(help="Register the bundle as the challenger; nothing is promoted.")
    ] = True,
    use_cache: Annotated[
        bool,
        typer.Option("--cached/--no-cache", help="Keep features between runs; no influence on the result."),
    ] = True,
    cache: Cache = None,
    settings: Settings = None,
    continue_from: Annotated[
        str | None,
        typer.Option(
            metavar="BUNDLE",
            help="Add new trees to those of this bundle, or of the `shipped` one, instead of learning "
            "everything again. It must not have learned from windows that this training tests on.",
        ),
    ] = None,
    alarm_of: Annotated[
        str | None,
        typer.Option(
            metavar="BUNDLE",
            help="Fit only the alarm of latenesses again, and take everything else from this bundle, or from "
            "the `shipped` one. Takes minutes; 4,000 simulated windows by default. Nothing is tested or "
            "logged: test the result with `rca evaluate`.",
        ),
    ] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the model card there.")
    ] = None,
) -> None:
    """Train the classifier and the causal mechanisms, test them on held-out windows, write a bundle.

    The same seed, number of windows and collections give the same bundle digest on one kind of processor.
    Needs the extra [train].
    """
    with progress() as report:
        import_counted(report, MODULES)
        from rca.lab.training.alarm_fit import DEFAULT_WINDOWS as WINDOWS_OF_ALARM
        from rca.lab.training.feature_cache import FeatureCache, default_folder
        from rca.lab.training.run import DEFAULT_SEED, DEFAULT_WINDOWS, fit_alarm_only, train
        from rca.lab.training.settings import read_settings
        from rca.lab.training.tracking import default_uri

    tuned = None if settings is None else read_settings(settings)
    chosen = DEFAULT_SEED if seed is None else seed
    if alarm_of is not None:
        with progress() as report, workers_of(processes, scheduler) as workers:
            sha256 = fit_alarm_only(
                _folder(alarm_of),
                output,
                n_windows=windows or WINDOWS_OF_ALARM,
                seed=chosen,
                collections=collection or (),
                workers=workers,
                progress=report,
            )
        write(f"bundle {output}  sha256 {sha256}\nnext: rca evaluate COLLECTION --bundle {output}\n")
        return
    with progress() as report, workers_of(processes, scheduler) as workers:
        result = train(
            output,
            n_windows=windows or DEFAULT_WINDOWS,
            seed=chosen,
            collections=collection or (),
            workers=workers,
            cache=FeatureCache(cache or default_folder()) if use_cache else None,
            tracking_uri=(tracking_uri or default_uri()) if tracking else None,
            registered=register,
            settings=tuned,
            continue_from=None if continue_from is None else _folder(continue_from),
            progress=report,
        )
    if card is not None:
        write(result.card, card)
    write(_text(result))


def _folder(bundle: str) -> Path:
    """Folder of a bundle, or of the shipped one."""
    from rca.diagnosis.bundle import shipped_folder

    return shipped_folder() if bundle == SHIPPED else Path(bundle)


def _text(result: TrainedBundle) -> str:
    from rca.commands.evaluate import scores_table

    lines = [f"bundle {result.bundle}  sha256 {result.sha256}", f"corpus sha256 {result.corpus_digest}"]
    if result.run_id is not None:
        lines.append(f"MLflow run {result.run_id}")
    if result.version is not None:
        lines.append(f"registered as version {result.version}, the challenger; next: rca models promote")
    tables = [scores_table(result.test_scores, "held-out simulated scenarios (test split)")]
    tables += [
        scores_table(scores, f"held-out windows of {name}") for name, scores in result.real_scores.items()
    ]
    return "\n".join(lines) + "\n" + "".join(map(rendered, tables))
