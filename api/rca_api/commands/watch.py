"""`rca watch`: diagnose many jobs on time, from Prometheus or from folders."""

from __future__ import annotations

import signal
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from rca.errors import MissingExtra
from rca.terminal import BAD_INPUT, VERDICT_CODES

if TYPE_CHECKING:
    from rca.client import Client
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window
    from rca_api.watch.plan import WatchedJob
    from rca_api.watch.rounds import Diagnose, RoundOutcome

EXAMPLES = """
rca watch watch.yaml                                   until Ctrl-C; one line per diagnosis
rca watch watch.yaml --once                            every job once; the exit code is the worst one
A plan:
  service: http://127.0.0.1:8080                       opens incidents; leave it out to diagnose here
  every: 30s
  jobs:
    - {job: llama-17, prometheus: http://prometheus:9090, since: 15m}
    - {job: bert-3, folder: /var/collect/bert-3, every: 5m}
    - {job: gpt-5, folder: /var/collect/gpt-5, prometheus: http://prometheus:9090}    both, joined
  select:
    - {prometheus: http://prometheus:9090, namespace: ml-train, jobs: "llama-.*"}   as `rca jobs` lists
"""


#: Exit codes of several jobs, the worst first: of a job whose source failed nothing is known.
_WORST = (BAD_INPUT, *(VERDICT_CODES[name] for name in ("fail_stop", "fail_slow", "undecided", "healthy")))


class WatchFormat(StrEnum):
    """Form of the lines."""

    text = "text"
    json = "json"


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="Jobs, and where their telemetry is.")],
    once: Annotated[bool, typer.Option("--once", help="Diagnose every job once, then end.")] = False,
    format_: Annotated[
        WatchFormat, typer.Option("--format", "-f", help="json: one object per line.")
    ] = WatchFormat.text,
) -> None:
    """Diagnose many jobs on time, each on its own: a slow source delays no other.

    With `service`, windows are posted there, so that incidents and webhooks follow. A restart goes on where
    the last one ended. A source that fails is tried again later, and less often.

    Exit codes of --once, the worst first: 2 bad input, 20 fail-stop, 10 fail-slow, 30 undecided, 0 healthy.
    """
    try:
        from rca_api.shell.observability import logs
        from rca_api.watch.plan import read_plan
        from rca_api.watch.rounds import Rounds, WatchState
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error
    given = read_plan(plan)
    logs.configure("WARNING")
    import rca
    from rca.client import Client

    client = None if given.service is None else Client(given.service)
    diagnose: Diagnose = rca.diagnose if client is None else partial(_posted, client)
    assert given.state is not None  # noqa: S101  (`read_plan` sets it)
    rounds = Rounds(given, _read, diagnose, lambda outcome: _print(outcome, format_), WatchState(given.state))
    if client is not None:
        rounds.end = partial(_end, client)
    if once:
        codes = {_code(outcome) for outcome in rounds.once()}
        raise typer.Exit(next(code for code in _WORST if code in codes))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    rounds.run(stopping)


def _posted(client: Client, window: Window) -> Diagnosis:
    """Diagnose on a service, which gives its first answer again for a window that it has had.

    Without it each look at the folder of a job that has ended would store one more diagnosis.
    """
    return client.diagnose(window, idempotency_key=f"watch-{sha256(window.to_arrow()).hexdigest()}")


def _end(client: Client, job_id: str, reason: str) -> None:
    """Say that a job has ended to a service, which may have had no window of it."""
    from rca.client import ServiceError

    try:
        client.end_job(job_id, reason)
    except ServiceError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _read(job: WatchedJob) -> Window:
    from rca.sources.prometheus.exporter_join import with_exporters_of
    from rca.sources.read import read_window

    if job.prometheus is None:
        assert job.folder is not None  # noqa: S101  (a plan has one of the two)
        return read_window(job.folder)
    read = partial(job.read_job, job.prometheus, job.job, namespace=job.namespace, matchers=job.match)
    return read(since=job.since) if job.folder is None else with_exporters_of(read_window(job.folder), read)


def _print(outcome: RoundOutcome, form: WatchFormat) -> None:
    from rca.runbook.headline import headline
    from rca.runbook.phrases import plain

    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if form is WatchFormat.json:
        held = {"time": at, "job": outcome.job}
        if outcome.error is not None:
            error = {"code": outcome.error.code, "detail": outcome.error.message, **outcome.error.details()}
            held |= {"error": error}  # type: ignore[dict-item]
        if outcome.diagnosis is not None:
            held |= {"diagnosis": outcome.diagnosis.model_dump(mode="json")}  # type: ignore[dict-item]
        if outcome.note:
            held |= {"note": outcome.note}
        line = orjson.dumps(held).decode()
    elif outcome.diagnosis is not None:
        line = f"{at} {outcome.job}: {plain(headline(outcome.diagnosis))}"
    elif outcome.error is not None:
        hint = "" if outcome.error.hint is None else f"; hint: {outcome.error.hint}"
        line = f"{at} {outcome.job}: error: {outcome.error.message}{hint}"
    else:
        line = f"{at} {outcome.job}: {outcome.note}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _code(outcome: RoundOutcome) -> int:
    if outcome.diagnosis is None:
        return BAD_INPUT
    return VERDICT_CODES[outcome.diagnosis.verdict]
