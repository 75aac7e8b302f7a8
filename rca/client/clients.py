"""The client that waits for each answer, and the one for asyncio."""

from __future__ import annotations

import asyncio
from asyncio import sleep as asleep
from collections.abc import Mapping
from os import PathLike
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

from rca.client.service import Call, Service, Tries, read

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

T = TypeVar("T")


class Client(Service):
    """Posts windows to a service and raises its refusals as the library's own errors."""

    def diagnose(
        self, window: Window | str | PathLike[str], *, idempotency_key: str | None = None
    ) -> Diagnosis:
        """Diagnose a window, or the window at a path, on the service.

        Parameters
        ----------
        window : Window, str or PathLike
        idempotency_key : str, optional
            1 to 200 visible ASCII characters, new for each window. A call that repeats an earlier one
            with its key gets the stored answer, also from another process. Random if not given.

        Raises
        ------
        InvalidWindow, InvalidInput, TooLarge
            As `rca.diagnose` would, with the service's evidence.
        ServiceError
            The service cannot be reached or failed.
        """
        return self._send(self._diagnosis(window, idempotency_key))

    def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        return self._send(self._rendered(window, media_type, idempotency_key))

    def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`, such as ``/v1/incidents?state=open``.

        Raises
        ------
        ServiceError
            The service cannot be reached, or has no such thing.
        """
        return self._send(self._got(path, media_type))

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON that the service answers to a POST of `document` to `path`; errors as of `get`."""
        return self._send(self._document("POST", path, document))

    def patch(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON that the service answers to a PATCH of `path`; errors as of `get`."""
        return self._send(self._document("PATCH", path, document))

    def send_telemetry(self, rows: Window) -> dict[str, Any]:
        """Send rows of a running job, and return the receipt; the rows are durable then.

        Parameters
        ----------
        rows : Window
            Of any ranks and steps of ``rows.job.job_id``, or metrics and events only:
            ``Window.from_tables(job, steps, scope="fragment")``. The same rows may be sent again.

        Raises
        ------
        InvalidWindow, InvalidInput, TooLarge
            The service refuses the rows.
        ServiceError
            The service cannot be reached or failed, or too many jobs of this caller run.
        """
        return self._send(self._telemetry(rows))

    def telemetry(self, job_id: str) -> dict[str, Any]:
        """Return how far the telemetry of a job has come: its last step, change and newest diagnosis.

        Raises
        ------
        ServiceError
            The service cannot be reached, or has no telemetry of the job.
        """
        return self._send(self._job(job_id))

    def end_job(self, job_id: str, reason: str | None = None) -> dict[str, Any]:
        """Say that a job has ended, so that its silence is no stop; errors as of `telemetry`.

        A suspected incident of the job is resolved with the reason, if there is one.
        """
        return self._send(self._end(job_id, reason))

    def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        return self._send(self._readiness())

    def _send(self, call: Call[T]) -> T:
        tries = Tries(self)
        while True:
            try:
                answer = self._exchange(call).wait()
            except OSError as error:
                wait: float | None = tries.after_failure(error)
            else:
                wait = tries.after(answer)
            if wait is None:
                return read(call, answer)
            sleep(wait)


class AsyncClient(Service):
    """As `Client`, for asyncio: the same parameters, methods, repetitions and errors.

    Each request has its own connection and thread, so one client serves any number of tasks and event loops.
    Windows at paths are read in a thread. A cancelled call closes its connection.

    Examples
    --------
    ::

        client = AsyncClient("http://127.0.0.1:8080")
        found = await asyncio.gather(*(client.diagnose(path) for path in paths))
    """

    async def diagnose(
        self, window: Window | str | PathLike[str], *, idempotency_key: str | None = None
    ) -> Diagnosis:
        """Diagnose a window, or the window at a path, on the service; see `Client.diagnose`."""
        return await self._send(await asyncio.to_thread(self._diagnosis, window, idempotency_key))

    async def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        return await self._send(await asyncio.to_thread(self._rendered, window, media_type, idempotency_key))

    async def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`; see `Client.get`."""
        return await self._send(self._got(path, media_type))

    async def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON that the service answers to a POST of `document` to `path`; see `Client.post`."""
        return await self._send(self._document("POST", path, document))

    async def patch(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON that the service answers to a PATCH of `path`; see `Client.patch`."""
        return await self._send(self._document("PATCH", path, document))

    async def send_telemetry(self, rows: Window) -> dict[str, Any]:
        """Send rows of a running job, and return the receipt; see `Client.send_telemetry`."""
        return await self._send(self._telemetry(rows))

    async def telemetry(self, job_id: str) -> dict[str, Any]:
        """Return how far the telemetry of a job has come; see `Client.telemetry`."""
        return await self._send(self._job(job_id))

    async def end_job(self, job_id: str, reason: str | None = None) -> dict[str, Any]:
        """Say that a job has ended; see `Client.end_job`."""
        return await self._send(self._end(job_id, reason))

    async def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        return await self._send(self._readiness())

    async def _send(self, call: Call[T]) -> T:
        tries = Tries(self)
        while True:
            try:
                answer = await self._exchange(call).waited()
            except OSError as error:
                wait: float | None = tries.after_failure(error)
            else:
                wait = tries.after(answer)
            if wait is None:
                return read(call, answer)
            await asleep(wait)
