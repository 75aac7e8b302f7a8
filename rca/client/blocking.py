"""The client that waits for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

from rca.client.service import Call, Service, Tries, read

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

T = TypeVar("T")


class Client:
    """Posts windows to a service and raises its refusals as the library's own errors.

    Parameters
    ----------
    base_url : str
        For example ``http://127.0.0.1:8080``; a path prefix is kept.
    timeout_seconds : float
        For connecting and sending the request, and again for the whole answer.
    retries : int
        Further tries after 429, 502, 503, 504 or a failed connection, with growing, jittered waits
        or the wait of ``Retry-After``. Every try of a POST has the same ``Idempotency-Key``, so the
        service stores one diagnosis even if it answered a try whose connection failed.
    api_key : str, optional
        An API key or bearer token; ``RCA_API_KEY`` of the environment if not given.
    headers : mapping of str to str, optional
        Sent with every request, for example for a proxy that authenticates. An ``Authorization``
        header takes the place of the key.

    Raises
    ------
    InvalidInput
        If a parameter cannot be used.
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
        return self._send(self._service.diagnose(window, idempotency_key))

    def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        return self._send(self._service.render(window, media_type, idempotency_key))

    def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`, such as ``/v1/incidents?state=open``.

        Raises
        ------
        ServiceError
            The service cannot be reached, or has no such thing.
        """
        return self._send(self._service.get(path, media_type))

    def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        return self._send(self._service.ready())

    def _send(self, call: Call[T]) -> T:
        tries = Tries(self._service)
        while True:
            try:
                answer = self._service.exchange(call).wait()
            except OSError as error:
                wait: float | None = tries.after_failure(error)
            else:
                wait = tries.after(answer)
            if wait is None:
                return read(call, answer)
            sleep(wait)
