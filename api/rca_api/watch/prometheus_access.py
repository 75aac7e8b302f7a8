"""How a configured Prometheus server is reached: part of watch plans and of the sources of alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from rca.errors import InvalidInput
from rca.sources.instants import seconds_of
from rca.sources.prometheus.client import MAX_TIMEOUT, USUAL_TIMEOUT
from rca.sources.prometheus.credentials import checked_headers, read_token
from rca.sources.prometheus.job_list import read_jobs
from rca.sources.prometheus.job_names import KnownJob
from rca.sources.prometheus.window import read_prometheus
from rca.window.window import Window

#: Seconds, also written like ``90s``, ``5m`` or ``2h``.
Span = Annotated[
    float,
    BeforeValidator(lambda value: seconds_of(value) if isinstance(value, str) else value),
    Field(gt=0, allow_inf_nan=False),
]


class PrometheusAccess(BaseModel):
    """Credentials and label map for one Prometheus server.

    Attributes
    ----------
    labels : Path or None
        Label map, see `rca.read_prometheus`.
    token_file, ca_file : Path or None
        File with a bearer token; certificates to trust in place of the system's.
    headers : dict of str to SecretStr
        Sent with every request, such as the tenant of Mimir.
    timeout : float
        Seconds for all requests for a window together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout: Annotated[Span, Field(le=MAX_TIMEOUT)] = USUAL_TIMEOUT

    @field_validator("headers")
    @classmethod
    def _usable_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        try:
            checked_headers({name: value.get_secret_value() for name, value in headers.items()})
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        return headers

    def below(self, folder: Path, *more: str) -> Self:
        """A copy whose paths, and those of the fields `more`, count from a folder."""
        names = ("labels", "token_file", "ca_file", *more)
        found = {name: folder / held for name in names if (held := getattr(self, name)) is not None}
        return self.model_copy(update=found)

    def read_job(
        self,
        url: str,
        job: str,
        *,
        namespace: str | None,
        max_seconds: float = MAX_TIMEOUT,
        **more: Any,
    ) -> Window:
        """Read the window of a job; `more` is passed to `read_prometheus`.

        Parameters
        ----------
        max_seconds : float
            Longest time limit, even if that of the access is longer.

        Raises
        ------
        InvalidInput, SourceError
            As `read_prometheus`.
        """
        return read_prometheus(
            url, job, namespace=namespace, labels=self.labels, **self._server(max_seconds), **more
        )

    def find_jobs(self, url: str, *, max_seconds: float = MAX_TIMEOUT, **more: Any) -> list[KnownJob]:
        """List the jobs of the server; `more` is passed to `read_jobs`.

        Raises
        ------
        InvalidInput, SourceError
            As `read_jobs`.
        """
        return read_jobs(url, labels=self.labels, **self._server(max_seconds), **more)

    def _server(self, max_seconds: float) -> dict[str, Any]:
        return {
            "token": None if self.token_file is None else read_token(self.token_file),
            "ca_file": self.ca_file,
            "headers": {name: value.get_secret_value() for name, value in self.headers.items()},
            "timeout": min(self.timeout, max_seconds),
        }
