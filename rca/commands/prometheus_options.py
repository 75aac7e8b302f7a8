"""Options of the commands that read windows from Prometheus."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.commands.progress import progress
from rca.errors import InvalidInput

if TYPE_CHECKING:
    from rca.sources.prometheus.job_names import KnownJob
    from rca.window.window import Window

URL_VARIABLE = "RCA_PROMETHEUS_URL"
Url = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Prometheus server with the exporters.",
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="NAME",
        help="With --prometheus: a job as `rca jobs` lists it. With a path, both are joined.",
    ),
]
Since = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Length of the window: 90s, 30m, 2h. [default: 30m]")
]
Start = Annotated[
    str | None, typer.Option(metavar="TIME", help="Begin: RFC 3339 or Unix seconds, in place of --since.")
]
End = Annotated[
    str | None, typer.Option(metavar="TIME", help="End of the window. [default: now]", show_default=False)
]
Labels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML with the site's names of labels and the places of ranks."),
]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of the job's pods.")]
Match = Annotated[
    list[str] | None,
    typer.Option(metavar="MATCHER", help="Only series with this label, such as 'cluster=\"eu-1\"'."),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:VALUE", help="Header for Prometheus, such as X-Scope-OrgID:team-a; repeatable."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with a bearer token. [default: RCA_PROMETHEUS_TOKEN]"),
]
CaFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM certificates to trust for --prometheus.")
]
Timeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=1.0, help="Of all requests for a window together; one day at most."),
]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Use partial data of Prometheus, and note it.")
]
#: That of `read_prometheus`, which takes long to import.
USUAL_TIMEOUT = 300.0
#: Options that also have an environment variable or a default: they do not contradict a path.
_HARMLESS = frozenset({"url", "timeout"})


@dataclass(frozen=True)
class PrometheusOptions:
    """What the command line says about Prometheus; texts as they were given."""

    url: str | None = None
    job: str | None = None
    since: str | None = None
    start: str | None = None
    end: str | None = None
    labels: Path | None = None
    namespace: str | None = None
    match: tuple[str, ...] = ()
    header: tuple[str, ...] = field(default=(), repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout: float = USUAL_TIMEOUT
    allow_partial: bool = False

    def given(self) -> list[str]:
        """Options that were given; the address by an environment variable, and defaults, are none."""
        named = [
            each.name for each in fields(self) if each.name not in _HARMLESS and getattr(self, each.name)
        ]
        return [*named, "prometheus"] if self.url not in (None, os.environ.get(URL_VARIABLE)) else named

    def refuse_any(self) -> None:
        """Refuse options that a window from a path does not have."""
        given = self.given()
        if given == ["prometheus"]:
            raise InvalidInput("--prometheus needs --job", hint="the name that the scheduler gave the job")
        if given:
            raise InvalidInput(
                f"--{given[0].replace('_', '-')} is for --prometheus only",
                hint="leave out the PATH, or this option",
            )

    def read(self, *, quiet: bool = False) -> Window:
        """Read the window, with the progress on stderr unless `quiet`.

        Raises
        ------
        InvalidInput, SourceError
        """
        from rca.sources.instants import moment_of, seconds_of
        from rca.sources.prometheus.queries import USUAL_SECONDS

        if self.url is None or not self.job:
            raise InvalidInput("--prometheus needs --job", hint="the name that the scheduler gave the job")
        if self.since is not None and self.start is not None:
            raise InvalidInput("--since and --start contradict each other", hint="leave out one of them")
        with progress() if not quiet else nullcontext() as report:
            return self.reading()(
                self.job,
                since=USUAL_SECONDS if self.since is None else seconds_of(self.since),
                start=None if self.start is None else moment_of(self.start),
                end=None if self.end is None else moment_of(self.end),
                report=report,
            )

    def beside(self, steps: Window, *, quiet: bool = False) -> Window:
        """The window with what the exporters of the job reported meanwhile.

        Raises
        ------
        InvalidInput, SourceError
        """
        from rca.sources.prometheus.exporter_join import with_exporters_of

        for name in ("since", "start", "end"):
            if getattr(self, name) is not None:
                raise InvalidInput(
                    f"--{name} is for --prometheus without a path", hint="the time of the steps counts"
                )
        with progress() if not quiet else nullcontext() as report:
            return with_exporters_of(steps, partial(self.reading(), self.job, report=report))

    def reading(self) -> partial[Window]:
        """`read_prometheus` with what is the same for all jobs; files are read now.

        Raises
        ------
        InvalidInput, SourceError
        """
        from rca.sources.prometheus.window import read_prometheus

        url, known = self._server()
        return partial(read_prometheus, url, **known)

    def jobs(self) -> list[KnownJob]:
        """The jobs that report to the server.

        Raises
        ------
        InvalidInput, SourceError
        """
        from rca.sources.instants import seconds_of
        from rca.sources.prometheus.job_list import read_jobs
        from rca.sources.prometheus.queries import USUAL_SECONDS

        url, known = self._server()
        return read_jobs(url, since=USUAL_SECONDS if self.since is None else seconds_of(self.since), **known)

    def _server(self) -> tuple[str, dict[str, Any]]:
        """Address of the server, and all options that do not depend on the job; files are read now."""
        from rca.sources.prometheus.client import Prometheus
        from rca.sources.prometheus.credentials import headers_of, of_environment, read_token
        from rca.sources.prometheus.label_map import read_label_map
        from rca.sources.prometheus.promql import check_matchers

        # Workers of a cluster do not have the variables of this process.
        url, token = of_environment(
            self.url or "", None if self.token_file is None else read_token(self.token_file)
        )
        server: dict[str, Any] = {
            "token": token,
            "ca_file": None if self.ca_file is None else self.ca_file.absolute(),
            "timeout": self.timeout,
            "allow_partial": self.allow_partial,
            "headers": headers_of(self.header),
        }
        # Refused here, and not once per window.
        Prometheus(url, **server)
        check_matchers(self.match)
        of_job = {
            "labels": None if self.labels is None else read_label_map(self.labels),
            "namespace": self.namespace,
            "matchers": self.match,
        }
        return url, server | of_job


#: Default of a command's parameter of all options.
NO_OPTIONS = PrometheusOptions()
_ANNOTATIONS = {
    "url": Url,
    "job": JobName,
    "since": Since,
    "start": Start,
    "end": End,
    "labels": Labels,
    "namespace": Namespace,
    "match": Match,
    "header": Header,
    "token_file": TokenFile,
    "ca_file": CaFile,
    "timeout": Timeout,
    "allow_partial": AllowPartial,
}
#: Options that may be given several times.
_REPEATED = frozenset({"match", "header"})
#: Parameters of a command that are not called as their field.
_PARAMETERS = {"url": "prometheus"}


def takes_prometheus(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options in place of its parameter of the type `PrometheusOptions`.

    Parameters
    ----------
    *without : str
        Fields of the options that the command does not have.
    """
    return partial(_with_options, frozenset(without))


def _with_options(without: frozenset[str], command: Callable[..., None]) -> Callable[..., None]:
    shape = inspect.signature(command, eval_str=True)
    whole = next(each for each in shape.parameters.values() if each.annotation is PrometheusOptions)
    options = {
        name: whole.replace(
            name=_PARAMETERS.get(name, name),
            annotation=annotation,
            default=None if name in _REPEATED else getattr(NO_OPTIONS, name),
        )
        for name, annotation in _ANNOTATIONS.items()
        if name not in without
    }
    parameters = [
        parameter
        for each in shape.parameters.values()
        for parameter in (options.values() if each is whole else [each])
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        found = {name: given.pop(option.name) for name, option in options.items()}
        found |= {name: tuple(found[name] or ()) for name in _REPEATED}
        command(**given, **{whole.name: PrometheusOptions(**found)})

    # Typer reads the signature and the annotations.
    setattr(run, "__signature__", shape.replace(parameters=parameters))  # noqa: B010
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
