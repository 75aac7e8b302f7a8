"""Allowed addresses of webhooks: callers must not reach internal hosts through the service."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from rca.errors import SourceError

Resolve = Callable[[str, int], list[str]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: The only IPv6 addresses that are routed on the internet.
_UNICAST = ipaddress.ip_network("2000::/3")
#: IPv4 addresses as IPv6: mapped, and of NAT64. Others, such as `::127.0.0.1`, are outside of `_UNICAST`.
_TRANSLATED = (ipaddress.ip_network("::ffff:0:0/96"), ipaddress.ip_network("64:ff9b::/96"))
#: Addresses that `is_global` accepts, or does so in some versions of Python, but that no host on the internet
#: has: the platform of a virtual machine on Azure, IPv4 protocols, relays of 6to4, IPv6 protocols (Teredo is
#: one), documentation, and the former 6bone with the first prefix of Teredo.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "2001::/23",
            "2001:db8::/32",
            "3ffe::/16",
            "3fff::/20",
        ),
    )
)
#: Interface ids `0:5efe:<IPv4>` of ISATAP, without the bits for a universal and for a group address.
_ISATAP, _ISATAP_MASK = 0x5EFE, 0xFCFFFFFF
#: A last label of digits makes a host an IPv4 address for resolvers: `2130706433`, `0x7f.1`, `127.1`.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: An IPv6 address in brackets, and a port.
_BRACKETED = re.compile(r"\[[^]]*:[^]]*\](:[0-9]*)?")
_ALLOW = "RCA_WEBHOOK_HOSTS can allow this host, RCA_WEBHOOK_PRIVATE all hosts"


class Refused(SourceError):
    """The service does not send to this address."""

    code = "invalid-parameters"


@dataclass(frozen=True)
class WebhookTarget:
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

    def url(self, attempt: int) -> str:
        """The URL at the address of an attempt, counted from 1; each attempt tries the next address."""
        address = self.addresses[(attempt - 1) % len(self.addresses)]
        place = f"[{address}]" if ":" in address else address
        return f"{self.scheme}://{place}:{self.port}{self.request}"


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
        if "[" in parts.netloc and not _BRACKETED.fullmatch(parts.netloc):
            # `urlsplit` gives `[v1.x]`, an address of a future version, as a name. It drops what follows a ].
            raise Refused("only an IPv6 address has brackets around it")
        literal = _literal(host)
        inside = _is_localhost(host) if literal is None else not is_public(literal)
        if inside and not self._may_be_private(host):
            raise Refused(f"{host} is not a public address", hint=_ALLOW)
        return parts

    def resolve(self, url: str, look_up: Resolve) -> WebhookTarget:
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
        if not self._may_be_private(host) and not all(map(is_public, addresses)):
            # Without the address, which would reveal the internal network to a caller.
            raise Refused(f"{host} has an address that is not public", hint=_ALLOW)
        request = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return WebhookTarget(parts.scheme, host, port, tuple(addresses), request)

    def _may_be_private(self, host: str) -> bool:
        return self.private or (bool(self.hosts) and self._named(host))

    def _named(self, host: str) -> bool:
        host = host.rstrip(".").lower()
        return any(
            host.endswith(name.lower()) if name.startswith(".") else host == name.lower()
            for name in self.hosts
        )


def is_public(address: str) -> bool:
    """Whether an IP address is a global unicast address, and so is every IPv4 address inside of it.

    An address with a zone, such as ``fe80::1%eth0``, belongs to one link.
    """
    if "%" in address:
        return False
    found: _Address = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return _is_global(found)
    inner = _embedded(found)
    is_outer_global = found in _UNICAST and (found.sixtofour is not None or _is_global(found))
    return (is_outer_global or any(found in each for each in _TRANSLATED)) and all(map(_is_global, inner))


def _is_global(address: _Address) -> bool:
    special = any(address in network for network in _SPECIAL if network.version == address.version)
    return address.is_global and not address.is_multicast and not special


def _embedded(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses to which an IPv6 address may be routed; Teredo's are special addresses anyway."""
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    is_isatap = int(address) >> 32 & _ISATAP_MASK == _ISATAP
    found = [last] if is_isatap or any(address in each for each in _TRANSLATED) else []
    return found if address.sixtofour is None else [*found, address.sixtofour]


def _literal(host: str) -> str | None:
    """The IP address that a host of a URL is; None for a name.

    Raises
    ------
    Refused
        If the host is neither, or if resolvers may read it as another address.
    """
    text = host.rstrip(".")
    if ":" in host:
        with suppress(ValueError):
            found = ipaddress.IPv6Address(host)
            if found.scope_id is None:
                return str(found)
        raise Refused("the host of the URL is no IPv6 address without a zone")
    if not _NAME.fullmatch(text):
        raise Refused("the host of the URL must be a name or an IP address")
    if not _NUMBER.fullmatch(text.rpartition(".")[2]):
        return None
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise Refused("write an IPv4 address as four decimal numbers") from None


def _is_localhost(host: str) -> bool:
    """Whether a name is loopback by its definition (RFC 6761)."""
    return host.rstrip(".").rpartition(".")[2].lower() == "localhost"


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
