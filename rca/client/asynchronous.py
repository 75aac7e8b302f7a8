"""The client for asyncio: many windows at once from one event loop."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from rca.client.service import Call, Service, Tries, read

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

T = TypeVar("T")


class AsyncClient:
    """As `Client`, for asyncio: the same parameters, methods, repetitions and errors.

    Each request has its own connection and thread, so one client serves any number of tasks and event loops.
    Windows at paths are read in a thread. A cancelled call closes its connection.

    Parameters
    ----------
    base_url, timeout_seconds, retries, api_key, headers
        Those of `Client`.

    Examples
    --------
    ::

        client = AsyncClient("http://127.0.0.1:8080")
        found = await asyncio.gather(*(client.diagnose(path) for path in paths))
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = 60.0,
        retries: int = 3,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._service = Service(
            base_url, timeout_seconds=timeout_seconds, retries=retries, api_key=api_key, headers=headers
        )

    async def diagnose(
        self, window: Window | str | PathLike[str], *, idempotency_key: str | None = None
    ) -> Diagnosis:
        """Diagnose a window, or the window at a path, on the service; see `Client.diagnose`."""
        return await self._send(await asyncio.to_thread(self._service.diagnose, window, idempotency_key))

    async def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        call = await asyncio.to_thread(self._service.render, window, media_type, idempotency_key)
        return await self._send(call)

    async def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`; see `Client.get`."""
        return await self._send(self._service.get(path, media_type))

    async def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        return await self._send(self._service.ready())

    async def _send(self, call: Call[T]) -> T:
        tries = Tries(self._service)
        while True:
            try:
                answer = await self._service.exchange(call).waited()
            except OSError as error:
                wait: float | None = tries.after_failure(error)
            else:
                wait = tries.after(answer)
            if wait is None:
                return read(call, answer)
            await sleep(wait)
