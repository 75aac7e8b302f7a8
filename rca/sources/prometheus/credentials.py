"""Address of a Prometheus, and the credentials and headers for it, whose values no message holds."""

from __future__ import annotations

import base64
import os
import re
import ssl
import urllib.parse
from collections.abc import Iterable, Mapping

from rca.errors import InvalidInput, SourceError, cut
from rca.files import check_file, read_text
from rca.window.node_names import LOOPBACK

#: Environment variables for credentials.
TOKEN, USER, PASSWORD = "RCA_PROMETHEUS_TOKEN", "RCA_PROMETHEUS_USER", "RCA_PROMETHEUS_PASSWORD"
#: A name of RFC 9110, and headers that the client sets itself.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "accept", "accept-encoding", "connection", "transfer-encoding"}
)
_HEADER_FORM = "write it like X-Scope-OrgID:team-a"
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
        token = read_text(path).strip()
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


def of_environment(url: str, token: str | None) -> tuple[str, str | None]:
    """Address and token with the credentials of the environment, where none are given."""
    _, given, password = split_address(url)
    token, user, password = _with_environment(token, given, password)
    if user is None or given is not None:
        return url, token
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    held = (urllib.parse.quote(each, safe="") for each in (user, password or ""))
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{':'.join(held)}@{parts.netloc}")), token


def _with_environment(
    token: str | None, user: str | None, password: str | None
) -> tuple[str | None, str | None, str | None]:
    """Token, user and password; those of the environment where neither a token nor a user is given."""
    if token or user is not None:
        return token, user, password
    user = os.environ.get(USER)
    return (os.environ.get(TOKEN), None, None) if user is None else (None, user, os.environ.get(PASSWORD))


def is_local(address: str) -> bool:
    return urllib.parse.urlsplit(address).hostname in LOOPBACK


def authorization(token: str | None, user: str | None, password: str | None) -> dict[str, str]:
    token, user, password = _with_environment(token, user, password)
    if token:
        if not token.isascii() or not token.isprintable():
            raise InvalidInput("the token has characters that no HTTP header may have")
        return {"Authorization": f"Bearer {token}"}
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()}


def headers_of(texts: Iterable[str]) -> dict[str, str]:
    """Headers from texts like ``X-Scope-OrgID:team-a``.

    Raises
    ------
    InvalidInput
        If one has no colon, or one name occurs twice. It does not show the value.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidInput("a header has no colon after its name", hint=_HEADER_FORM)
        if name.strip().lower() in {held.lower() for held in found}:
            raise InvalidInput(f"the header {cut(name.strip())!r} is given twice")
        found[name.strip()] = value.strip()
    return checked_headers(found)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that may be sent with every request, such as the tenant of Mimir, Cortex or Thanos.

    Raises
    ------
    InvalidInput
        If a name or a value is none of HTTP, or the client sets the header itself. It does not show values.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(f"{cut(name)!r} is no name of an HTTP header", hint=_HEADER_FORM)
        if name.lower() in _OWN_HEADERS:
            raise InvalidInput(f"the header {name} cannot be given", hint="it follows from the request")
        if not value or not value.isascii() or not value.isprintable():
            raise InvalidInput(
                f"the value of the header {name} is empty or has characters that no HTTP header may have"
            )
    return dict(headers)


def trust(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        if ca_file is not None:
            check_file(ca_file)
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        raise InvalidInput(f"{ca_file}: holds no readable certificates (PEM)") from None
