"""Address of a Prometheus, and the credentials for it, which no message holds."""

from __future__ import annotations

import base64
import os
import ssl
import urllib.parse
from pathlib import Path

from rca.errors import InvalidInput, SourceError
from rca.telemetry.node_names import LOOPBACK

#: Environment variables for credentials.
TOKEN, USER, PASSWORD = "RCA_PROMETHEUS_TOKEN", "RCA_PROMETHEUS_USER", "RCA_PROMETHEUS_PASSWORD"
#: Ends of an address as browsers show them.
_PAGES = ("/graph", "/query", "/api/v1/query", "/api/v1")


def read_token(path: str | os.PathLike[str]) -> str:
    """The bearer token in a file.

    Raises
    ------
    SourceError
        If the file cannot be read or is empty.
    """
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
        ) from None
    if not token:
        raise SourceError(f"{path}: the file with the token is empty")
    return token


def split_address(url: str) -> tuple[str, str | None, str | None]:
    """Address without credentials, user and password."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urllib.parse.SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("the address of Prometheus is no http or https URL", hint="http://prometheus:9090")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    path = next((path.removesuffix(page) for page in _PAGES if path.endswith(page)), path)
    user, password = (
        None if each is None else urllib.parse.unquote(each) for each in (parts.username, parts.password)
    )
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}", user, password


def is_local(address: str) -> bool:
    return urllib.parse.urlsplit(address).hostname in LOOPBACK


def authorization(token: str | None, user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        user, password = os.environ.get(USER), os.environ.get(PASSWORD)
    token = token or (os.environ.get(TOKEN) if user is None else None)
    if token:
        if not token.isascii() or not token.isprintable():
            raise InvalidInput("the token has characters that no HTTP header may have")
        return {"Authorization": f"Bearer {token}"}
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()}


def trust(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        raise InvalidInput(f"{ca_file}: holds no readable certificates (PEM)") from None
