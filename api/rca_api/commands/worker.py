"""`rca worker`: executes the training runs of the service, in its own process."""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from rca.errors import MissingExtra

EXAMPLES = """
rca worker                                             with the same RCA_* settings as `rca serve`
rca worker --once                                      execute all queued runs, then end
RCA_DATABASE_URL=postgresql://rca@db/rca MLFLOW_TRACKING_URI=http://mlflow:5000 rca worker
"""


def command(
    once: Annotated[bool, typer.Option("--once", help="End when no run is queued any more.")] = False,
    alive_file: Annotated[
        Path | None,
        typer.Option(
            help="File to touch every one or two seconds, for a liveness probe that checks its age."
        ),
    ] = None,
) -> None:
    """Execute the training runs of the service.

    Any number of workers may run; each run has one worker at a time. If a worker is killed, another one takes
    over its run after half a minute, and keeps the computed features. On SIGTERM a worker gives its run back
    at once. Needs the extras [api,train].
    """
    try:
        from rca_api.feedback.export import export_collection
        from rca_api.shell.observability import logs
        from rca_api.shell.settings import environment, start_checks
        from rca_api.shell.store.database import Database, migrate
        from rca_api.shell.store.window_store import WindowStore
        from rca_api.training_runs.repository import Terms
        from rca_api.training_runs.supervisor import Supervisor
        from rca_api.training_runs.worker import TrainingWorker
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error
    settings = environment.read()
    logs.configure(settings.log_level)
    environment.warn_of_unknown()
    start_checks.check(settings, start_checks.WORKER)
    database = Database(settings.database_url, longest_seconds=settings.database_timeout_seconds)
    if settings.migrate:
        migrate(database)
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    windows = WindowStore(settings.window_store_url)

    def export_feedback(folder: Path) -> int:
        with database.reading() as session:
            return export_collection(session, windows.get, folder).written

    def touch() -> None:
        if alive_file is not None:
            alive_file.touch()

    terms = Terms(attempts=settings.training_attempts)
    supervisor = Supervisor(database, stopping, terms=terms, alive=touch)
    worker = TrainingWorker(settings, supervisor, export_feedback)
    try:
        if not once:
            worker.run()
        while once and not stopping.is_set() and worker.work_once() is not None:
            pass
    finally:
        database.close()
