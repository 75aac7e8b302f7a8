"""Response headers that keep browsers from doing more with an answer than showing it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: A diagnosis as a page: its own style and nothing else, so a job name cannot become a script.
_PAGE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
#: The viewer of the API's documentation runs its own files and asks this service, nobody else.
_DOCS = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)


class SecurityHeaders:
    """Plain ASGI middleware, like `RequestContext`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to every HTTP answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", _DOCS if scope["path"] == "/docs" else _PAGE)
                # Answers name nodes and jobs: no shared cache keeps them.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers)
