"""A Redis server of our own with a password: on a port, on a port with TLS and on a Unix socket."""

from __future__ import annotations

import socket
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.waiting import until

#: With signs that a URL has to escape.
PASSWORD, ESCAPED = "s3cret/pw@x", "s3cret%2Fpw%40x"
_START_SECONDS = 20.0


class RedisServer:
    """A server that can be taken away and brought back.

    Parameters
    ----------
    program : str
    folder : Path
        Of its sockets, certificates and data.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._folder = folder
        self.port, tls_port = free_port(), free_port()
        certificate, key = certify(folder)
        self.socket = folder / "redis.sock"
        self._command = [
            program,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)),
            *("--tls-port", str(tls_port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
            *("--tls-auth-clients", "no", "--requirepass", PASSWORD, "--save", "", "--dir", str(folder)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        #: By form; all name the same database.
        self.urls = {
            "password": f"redis://:{ESCAPED}@127.0.0.1:{self.port}/0",
            "user": f"redis://default:{ESCAPED}@127.0.0.1:{self.port}",
            "tls": f"rediss://:{ESCAPED}@127.0.0.1:{tls_port}/0?ssl_ca_certs={certificate}",
            "socket": f"unix://:{ESCAPED}@{self.socket}",
            "socket of limits": f"redis+unix://:{ESCAPED}@{self.socket}",
        }
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        connect = partial(socket.create_connection, ("127.0.0.1", self.port), timeout=1.0)
        until(connect, _START_SECONDS, not_yet=OSError).close()

    def stop(self) -> None:
        """At once, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths
