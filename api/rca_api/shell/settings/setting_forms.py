"""Forms of settings that a type does not describe: URLs, rates, hosts, and numbers that nothing can hold.

An error says what is expected and never holds the value, which may be a password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import limits
from pydantic import ByteSize
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from rca.lab.training.tracking import is_uri
from rca_api.shell.store.redis_pool import is_redis

_DATABASES = frozenset({"sqlite", "postgres", "postgresql", "postgresql+psycopg"})
_HOST = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9._-]*")
_MAX_NUMBER, _MAX_BYTES = 2**31 - 1, 2**60
#: Largest float by the end of the name: times of 30 years and ages of 100 years, which clocks can add.
_LARGEST = {"_seconds": 1e9, "_hours": 876_000.0, "_days": 36_500.0}


class Form(NamedTuple):
    """A form, and what is expected in words. A form may raise any error about a value that does not fit."""

    fits: Callable[[Any], bool]
    expected: str


def check(name: str, value: object) -> None:
    """Check one setting of its right type.

    Raises
    ------
    ValueError
        With what is expected.
    """
    expected = _too_large(name, value)
    form = _FORMS.get(name)
    if expected is None and form is not None and value not in ("", None) and not _fits(form.fits, value):
        expected = form.expected
    if expected is not None:
        # Not chained: errors of libraries hold parts of the value.
        raise ValueError(expected) from None


def _too_large(name: str, value: object) -> str | None:
    if isinstance(value, ByteSize):
        return None if value <= _MAX_BYTES else "needs at most 1EiB"
    if isinstance(value, int) and not isinstance(value, bool):
        return None if value <= _MAX_NUMBER else f"needs at most {_MAX_NUMBER}"
    if isinstance(value, float):
        most = next((most for end, most in _LARGEST.items() if name.endswith(end)), 1e9)
        # A NaN compares with nothing.
        return None if value <= most else f"needs a number up to {most:g}"
    return None


def _fits(fits: Callable[[Any], bool], value: object) -> bool:
    try:
        return fits(value)
    except (ValueError, ArgumentError, RuntimeError):
        return False


def _is_database(url: str) -> bool:
    read = make_url(url)
    if read.drivername == "sqlite":
        return bool(read.database) and read.database != ":memory:"
    # An unescaped @ in a password makes its end a part of the host, which errors show.
    return read.drivername in _DATABASES and "@" not in (read.host or "")


def _is_window_store(url: str) -> bool:
    if "://" not in url:
        return True
    from fsspec import available_protocols

    # As `simplecache::s3://bucket`.
    protocols = [part.partition("://")[0] for part in url.split("::")]
    return set(protocols) <= set(available_protocols())


def _is_rate(text: str) -> bool:
    [rate] = limits.parse_many(text)
    return 0 < rate.amount <= _MAX_NUMBER and rate.multiples > 0


def _is_scheduler(address: str) -> bool:
    read = urlsplit(address)
    return read.scheme in ("tcp", "tls", "ws", "wss") and bool(read.hostname) and bool(read.port)


def _are_networks(addresses: tuple[str, ...]) -> bool:
    """Not names and `*`: only addresses and networks say what is trusted."""
    return all(ipaddress.ip_network(each) for each in addresses)


def _are_hosts(names: tuple[str, ...]) -> bool:
    return all(_HOST.fullmatch(name) or ipaddress.ip_address(name) for name in names)


def _is_issuer(url: str) -> bool:
    read = urlsplit(url)
    return read.scheme in ("http", "https") and bool(read.hostname) and read.port != 0


_FORMS = {
    # An unknown user after the ~ is an error.
    "data_dir": Form(lambda path: bool(path.expanduser()), "needs a folder"),
    "database_url": Form(
        _is_database,
        "needs a URL of SQLite (sqlite:///FILE) or PostgreSQL (postgresql://...), with @ in passwords as %40",
    ),
    "window_store_url": Form(
        _is_window_store, "needs a folder, or a URL that fsspec knows, such as s3://BUCKET"
    ),
    "oidc_issuer": Form(_is_issuer, "needs a URL such as https://login.example.org"),
    "public_url": Form(_is_issuer, "needs a URL such as https://rca.example.org"),
    "rate_limit": Form(_is_rate, "needs a rate such as 600/minute"),
    "rate_limit_storage_url": Form(
        lambda url: url == "memory://" or is_redis(url),
        "needs memory:// or a URL such as redis://HOST:6379/0",
    ),
    "trusted_proxies": Form(_are_networks, 'needs addresses or networks such as ["10.0.3.4", "10.1.0.0/16"]'),
    "webhook_hosts": Form(_are_hosts, 'needs names of hosts such as ["hooks.example.org", ".corp.example"]'),
    "tracking_uri": Form(is_uri, "needs a URI such as sqlite:///FILE or http://HOST:5000"),
    "dask_scheduler": Form(_is_scheduler, "needs an address such as tcp://HOST:8786, or tls://HOST:8786"),
}
