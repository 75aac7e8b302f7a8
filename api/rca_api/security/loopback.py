"""Without authentication only this machine may ask, and no web page on its behalf."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

#: Whoever forwards a request for others says so in one of these.
_FORWARDED = ("forwarded", "via", "x-real-ip")
_FORWARDED_PREFIX = "x-forwarded-"


def refusal(request: Request) -> str | None:
    """Say why a request must not be answered without authentication; None if it may."""
    server = request.scope.get("server")
    if server is not None and not _is_here(server[0]):
        return f"the service listens on {server[0]} with authentication off, which is for loopback only"
    # A page of evil.example whose name was made to point at 127.0.0.1 arrives with its own Host.
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not _is_here(host):
        return f"with authentication off the service answers to loopback names only, not to {host!r}"
    # A proxy on this machine that rewrites Host would hand us to whoever reaches the proxy.
    told = next((name for name in request.headers if _is_forwarding(name)), None)
    if told is not None:
        return f"with authentication off the service answers nobody through a proxy ({told} was sent)"
    origin = request.headers.get("origin")
    if origin is not None and not _is_here(urlsplit(origin).hostname or ""):
        return "with authentication off the service answers no page of another site"
    return None


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or its usual name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_forwarding(header: str) -> bool:
    return header in _FORWARDED or header.startswith(_FORWARDED_PREFIX)


def _is_here(host: str) -> bool:
    """Loopback, or a name without dots: no public site can have one."""
    return is_loopback(host) or (host != "" and "." not in host and ":" not in host)
