"""Options of `rca diagnose` that read a window from Prometheus."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rca.commands.progress import progress
from rca.errors import InvalidInput, cut

if TYPE_CHECKING:
    from rca.telemetry.window import Window

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd]?)")
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
    timeout: float = 60.0
    allow_partial: bool = False

    def refuse_any(self) -> None:
        """Refuse options that a window from a path does not have."""
        given = [
            each.name for each in fields(self) if each.name not in _HARMLESS and getattr(self, each.name)
        ]
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
        from rca.telemetry.sources.prometheus.credentials import headers_of, read_token
        from rca.telemetry.sources.prometheus.window import USUAL_SECONDS, read_prometheus

        if self.url is None or not self.job:
            raise InvalidInput("--prometheus needs --job", hint="the name that the scheduler gave the job")
        if self.since is not None and self.start is not None:
            raise InvalidInput("--since and --start contradict each other", hint="leave out one of them")
        with progress() if not quiet else nullcontext() as report:
            return read_prometheus(
                self.url,
                self.job,
                since=USUAL_SECONDS if self.since is None else seconds_of(self.since),
                start=None if self.start is None else moment_of(self.start),
                end=None if self.end is None else moment_of(self.end),
                labels=self.labels,
                namespace=self.namespace,
                matchers=self.match,
                token=None if self.token_file is None else read_token(self.token_file),
                ca_file=self.ca_file,
                timeout=self.timeout,
                allow_partial=self.allow_partial,
                headers=headers_of(self.header),
                report=report,
            )


def seconds_of(text: str) -> float:
    """Seconds of a span such as ``90s``, ``30m``, ``2h`` or ``1d``.

    Raises
    ------
    InvalidInput
        If it is no span.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{cut(text)!r} is no span of time", hint="write it like 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS.get(found[2], 1.0)


def moment_of(text: str) -> float:
    """Unix seconds of a time in RFC 3339 or Unix seconds; without an offset it is UTC.

    Raises
    ------
    InvalidInput
        If it is no time.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{cut(text)!r} is no time", hint="write it like 2026-11-26T09:30:00Z") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
