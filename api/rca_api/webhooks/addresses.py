"""Allowed addresses of webhooks: callers must not reach internal hosts through the service."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from rca.errors import SourceError

Resolve = Callable[[str, int], list[str]]


class Refused(SourceError):
    """The service does not send to this address."""

    code = "invalid-parameters"


@dataclass(frozen=True)
class Target:
    """A checked URL and the IP addresses of its host."""

    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]
    #: Path and query.
    request: str

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _default_port(self.scheme) else f"{name}:{self.port}"

    def address(self, attempt: int) -> str:
        """Address of the `attempt`-th attempt, counted from 1; each attempt tries the next one."""
        return self.addresses[(attempt - 1) % len(self.addresses)]


@dataclass(frozen=True)
class Policy:
    """Addresses that the operator allows.

    Attributes
    ----------
    http : bool
        Allow unencrypted URLs.
    hosts : sequence of str
        If not empty, allow only these hosts, also with private addresses. ``.example.org`` stands for all
        hosts below it.
    private : bool
        Allow private and loopback addresses of any host.
    """

    http: bool = False
    hosts: Sequence[str] = ()
    private: bool = False

    def check(self, url: str) -> SplitResult:
        """Check a URL without looking up its host.

        Raises
        ------
        Refused
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise Refused("the URL cannot be read") from None
        if parts.scheme != "https" and not (self.http and parts.scheme == "http"):
            raise Refused("the URL must begin with https://", hint="RCA_WEBHOOK_HTTP allows http")
        if not host or parts.username is not None or parts.password is not None or port == 0:
            raise Refused("the URL needs a host, and no user or password")
        if not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
            raise Refused("the URL must be plain ASCII; percent-encode other characters")
        if self.hosts and not self._named(host):
            raise Refused(f"{host!r} is not among the hosts of RCA_WEBHOOK_HOSTS")
        return parts

    def resolve(self, url: str, look_up: Resolve) -> Target:
        """Look the host up once, and refuse it if any of its addresses is not public.

        The connection uses the checked address, so a name that later resolves differently gains nothing.

        Raises
        ------
        Refused
        OSError
            If the host is not found.
        """
        parts = self.check(url)
        host = parts.hostname or ""
        port = parts.port or _default_port(parts.scheme)
        addresses = look_up(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        if not (self.private or (self.hosts and self._named(host))):
            inside = [address for address in addresses if not is_public(address)]
            if inside:
                # Without the address, which would reveal the internal network to a caller.
                raise Refused(
                    f"{host} has an address that is not public", hint="RCA_WEBHOOK_HOSTS can allow it"
                )
        request = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(parts.scheme, host, port, tuple(addresses), request)

    def _named(self, host: str) -> bool:
        host = host.rstrip(".").lower()
        return any(
            host.endswith(name.lower()) if name.startswith(".") else host == name.lower()
            for name in self.hosts
        )


def is_public(address: str) -> bool:
    """Whether an IP address is public; an IPv4 address inside an IPv6 one is checked as well."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        # NAT64: the last four bytes are an IPv4 address.
        if inner is None and found in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
