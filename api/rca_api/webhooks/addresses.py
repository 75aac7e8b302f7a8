"""Where a webhook may point to: nobody may make the service call what only the service can reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from rca.errors import SourceError

Resolve = Callable[[str, int], list[str]]


class Refused(SourceError):
    """The service does not send there."""

    code = "invalid-parameters"


@dataclass(frozen=True)
class Target:
    """A checked URL, and the addresses that may be connected to."""

    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]
    #: Path and query.
    request: str

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _default_port(self.scheme) else f"{name}:{self.port}"

    def address(self, attempt: int) -> str:
        """Choose the address of the `attempt`-th attempt, counted from 1: each tries the next one."""
        return self.addresses[(attempt - 1) % len(self.addresses)]


@dataclass(frozen=True)
class Policy:
    """What an operator allows.

    Attributes
    ----------
    http : bool
        Unencrypted URLs, too.
    hosts : sequence of str
        The only hosts, if there are any (``.example.org`` for all below it); they may have private
        addresses, because somebody named them.
    private : bool
        Private and loopback addresses of any host.
    """

    http: bool = False
    hosts: Sequence[str] = ()
    private: bool = False

    def check(self, url: str) -> SplitResult:
        """Check a URL as far as it can be without looking up its host.

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
            raise Refused(
                "the URL has to begin with https://", hint="operators allow http by RCA_WEBHOOK_HTTP"
            )
        if not host or parts.username is not None or parts.password is not None or port == 0:
            raise Refused("the URL needs a host, and no user or password")
        if not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
            raise Refused("the URL has to be plain ASCII; percent-encode the rest")
        if self.hosts and not self._named(host):
            raise Refused(f"{host!r} is not among the hosts of RCA_WEBHOOK_HOSTS")
        return parts

    def resolve(self, url: str, look_up: Resolve) -> Target:
        """Look the host up once, and refuse it if any of its addresses is not public.

        The address is connected to as it was checked: a name that answers differently the second time
        gains nothing.

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
                # The address stays out of the message: it would tell a caller about our network.
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
    """Whether an IP address belongs to the public internet, also where IPv6 wraps an IPv4 one."""
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
    """Ask the system for the addresses of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
