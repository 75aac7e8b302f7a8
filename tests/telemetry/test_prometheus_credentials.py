"""Credentials, headers, proxies and certificates on the way to Prometheus."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_prometheus_client import always

import rca
from rca.sources.prometheus import credentials
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.credentials import read_token
from tests.telemetry.prometheus_servers import Answer, stub, success

pytestmark = [pytest.mark.system, pytest.mark.smoke, pytest.mark.usefixtures("no_pauses")]


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def handle(path: str, *_: Any) -> Answer:
        asked.append(path)
        return success(["up"])

    with stub(handle) as url:
        monkeypatch.setenv("http_proxy", url.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for address in ("http://prometheus.example", url):
            assert Prometheus(address).label_values("__name__", [], 0.0, 1.0) == ["up"]
    path = "/api/v1/label/__name__/values"
    assert [each.partition("?")[0] for each in asked] == [f"http://prometheus.example{path}", path]


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "gopher://127.0.0.1:1", "http://[", "http://127.0.0.1:x"]
)
def test_a_proxy_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(rca.SourceError, match="cannot be reached") as refused:
        Prometheus("http://prometheus.example").query("up", 0.0)
    assert "proxy" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ("argument", "Bearer t0ken"),
        ("environment", "Bearer fr0m-env"),
        ("url", "Basic " + base64.b64encode(b"ann:p@ss").decode()),
        ("basic environment", "Basic " + base64.b64encode(b"bob:pw").decode()),
    ],
)
def test_credentials_are_sent_and_never_shown(how: str, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def handle(path: str, parameters: Any, headers: dict[str, str]) -> Answer:
        seen.append(headers.get("Authorization", ""))
        return 403, "text/plain", b"no"

    with stub(handle) as url:
        if how == "environment":
            monkeypatch.setenv(credentials.TOKEN, "fr0m-env")
        if how == "basic environment":
            monkeypatch.setenv(credentials.USER, "bob")
            monkeypatch.setenv(credentials.PASSWORD, "pw")
        if how == "url":
            url = url.replace("http://", "http://ann:p%40ss@")
        with pytest.raises(rca.SourceError) as refused:
            rca.read_prometheus(url, "llama", token="t0ken" if how == "argument" else None)
    assert seen == [sent]
    shown = f"{refused.value} {refused.value.hint}"
    assert not any(secret in shown for secret in ("t0ken", "fr0m-env", "p@ss", "p%40ss", "ann", "pw"))


def test_headers_are_sent_and_their_values_never_shown() -> None:
    seen: list[str] = []

    def handle(path: str, parameters: Any, headers: dict[str, str]) -> Answer:
        # Names of headers have no case.
        seen.append({name.lower(): value for name, value in headers.items()}["x-scope-orgid"])
        return 401, "text/plain", b"no org id"

    with stub(handle) as url, pytest.raises(rca.SourceError) as refused:
        rca.read_prometheus(url, "llama", headers={"X-Scope-OrgID": "team-s3cret"})
    assert seen == ["team-s3cret"]
    assert "s3cret" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["X-Scope-OrgID=s3cret"], "has no colon"),
        (["X Scope:s3cret"], "'X Scope' is no name of an HTTP header"),
        (["X-Scope-OrgID:s3cret\r\nHost: a"], "value of the header X-Scope-OrgID"),
        (["X-Scope-OrgID:"], "value of the header X-Scope-OrgID is empty"),
        (["Host:s3cret"], "the header Host cannot be given"),
        (["a:s3cret", "A:s3cret"], "'A' is given twice"),
    ],
)
def test_headers_that_cannot_be_sent_are_named_without_their_value(texts: list[str], said: str) -> None:
    with pytest.raises(rca.InvalidInput, match=said) as refused:
        credentials.headers_of(texts)
    assert "s3cret" not in f"{refused.value} {refused.value.hint}"
    assert credentials.headers_of(["X-Scope-OrgID: a|b"]) == {"X-Scope-OrgID": "a|b"}


def test_files_with_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(rca.SourceError, match=r"nothing\.txt: cannot be read"):
        read_token(tmp_path / "nothing.txt")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(rca.SourceError, match="is empty"):
        read_token(tmp_path / "empty")
    (tmp_path / "token").write_text("  abc\n")
    assert read_token(tmp_path / "token") == "abc"
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(rca.InvalidInput, match="no readable certificates"):
        Prometheus("https://p", ca_file=tmp_path / "ca.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
def test_certificates_are_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=prometheus"]
    subprocess.run([*made, *files, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with stub(always(success(["up"])), tls) as url:
        with pytest.raises(rca.SourceError, match="TLS fails") as refused:
            rca.read_prometheus(url, "llama")
        assert "--ca-file" in str(refused.value.hint)
        assert Prometheus(url, ca_file=certificate).label_values("__name__", [], 0.0, 1.0) == ["up"]
