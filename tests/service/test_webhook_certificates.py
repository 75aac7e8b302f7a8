"""Which hosts a webhook may be sent to: addresses and certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from diagnosed import Clock
from receivers import receiver
from test_webhook_dispatch import deliveries, dispatcher_of, happen, sqlite, subscribe

from rca_api.webhooks.addresses import Policy
from rca_api.webhooks.delivery import Sender

pytestmark = pytest.mark.system


def test_a_host_with_a_private_address_is_refused_without_a_connection(tmp_path: Path, clock: Clock) -> None:
    with sqlite(tmp_path) as database, receiver() as held:
        subscribe(database, f"http://hooks.example.org:{held.port}/")
        happen(database, clock, "nic_degradation")
        sender = Sender(Policy(http=True), 1.0, look_up=lambda host, port: ["127.0.0.1"])
        dispatcher_of(database, clock, sender=sender).send_due()
        assert "not public" in (deliveries(database)[0].last_error or "")
    assert held.received == []


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


@pytest.mark.parametrize(
    ("host", "taken"), [("hooks.example.org", True), ("other.example.org", False)], ids=["its", "another's"]
)
def test_the_certificate_of_the_host_is_verified(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, host: str, taken: bool
) -> None:
    chain, key = certificate(tmp_path, "hooks.example.org")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    with sqlite(tmp_path) as database, receiver(tls=context) as held:
        subscribe(database, f"https://{host}:{held.port}/")
        happen(database, clock, "nic_degradation")
        policy = Policy(hosts=(".example.org",))
        sender = Sender(policy, 5.0, look_up=lambda name, port: ["127.0.0.1"])
        dispatcher_of(database, clock, sender=sender).send_due()
        assert (deliveries(database)[0].state == "delivered") is taken
    assert [headers["host"] for headers, _ in held.received] == [f"{host}:{held.port}"] * taken
