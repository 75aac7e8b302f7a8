"""Clients of the HTTP service: one that waits, and one for asyncio.

::

    from rca.client import AsyncClient, Client

    diagnosis = Client("http://127.0.0.1:8080").diagnose("data/windows/healthy")
    diagnosis = await AsyncClient("http://127.0.0.1:8080").diagnose("data/windows/healthy")

What is sent, how an answer is read and when a request is repeated stands once, in `rca.client.service`.
"""

from rca.client.clients import AsyncClient, Client
from rca.client.refusals import ServiceError

__all__ = ["AsyncClient", "Client", "ServiceError"]
