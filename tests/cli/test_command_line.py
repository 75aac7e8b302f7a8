"""The command line as a whole: help, lazy commands, serving."""

from __future__ import annotations

import asyncio
import json
import os
import pydoc
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rca.commands import COMMANDS
from rca.window.catalogue import KNOWN
from rca_api.shell.settings import environment
from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each

Run = Callable[..., Any]


def test_help_lists_every_command_and_examples(rca_command: Run) -> None:
    ran = rca_command("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert f"  {name}" in ran.out
    assert "rca diagnose window.json --format json | jq .causes" in ran.out


@for_each("name", COMMANDS)
def test_every_command_explains_itself_with_examples(rca_command: Run, name: str) -> None:
    ran = rca_command(name, "--help")
    assert ran.code == 0
    module = import_module(f"rca.commands.{name.replace('-', '_')}")
    if hasattr(module, "EXAMPLES"):
        assert f"  {module.EXAMPLES.strip().splitlines()[0]}" in ran.out


@pytest.mark.system
@pytest.mark.smoke
def test_no_command_module_imports_anything_heavy() -> None:
    import subprocess

    modules = [f"rca.commands.{name.replace('-', '_')}" for name in COMMANDS]
    heavy = (
        "pandas",
        "sklearn",
        "lightgbm",
        "numba",
        "fastapi",
        "uvicorn",
        "mlflow",
        "optuna",
        "dowhy",
        "jinja2",
    )
    script = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_version_is_the_distributions(rca_command: Run) -> None:
    assert rca_command("--version").out == f"straggler-rca {version('straggler-rca')}\n"
    assert rca_command("version").out.startswith(f"straggler-rca {version('straggler-rca')}\npython ")


def test_signals_are_found_by_name_alias_and_meaning(rca_command: Run) -> None:
    told = rca_command("signals", "dcgm_fi_dev_sm_clock", "--format", "json")
    assert [signal["name"] for signal in json.loads(told.out)] == ["DCGM_FI_DEV_SM_CLOCK"]
    assert "DCGM_FI_DEV_SM_CLOCK" in rca_command("signals").out
    assert rca_command("signals", "no such thing").code == 2


@pytest.mark.system
@pytest.mark.smoke
def test_signals_are_one_line_each_in_a_pipe() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ran = subprocess.run(
        [sys.executable, "-m", "rca.cli", "signals"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ran.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Signal", *(signal.name for signal in KNOWN)]
    for line, signal in zip(lines[1:], KNOWN, strict=True):
        assert signal.meaning in line
        assert line.endswith(", ".join(signal.aliases))


def test_signals_are_not_folded_in_a_narrow_pipe(rca_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert len(rca_command("signals").out.splitlines()) == len(KNOWN) + 1


def test_a_mistyped_command_is_corrected(rca_command: Run) -> None:
    ran = rca_command("dignose")
    assert ran.code == 2
    assert "Did you mean 'diagnose'?" in ran.err


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `rca serve` hands to the server, without serving."""
    held: dict[str, Any] = {}

    def run(app: str, **options: Any) -> None:
        held.update(options, app=app)

    monkeypatch.setattr("rca_api.shell.server.run", run)
    monkeypatch.setenv("RCA_AUTH", "keys")
    return held


@pytest.mark.system
@pytest.mark.smoke
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_is_served(rca_command: Run, served: dict[str, Any], host: str) -> None:
    assert rca_command("serve", "--host", host, "--port", "0").code == 0
    assert (served["host"], served["app"]) == (host, "rca_api.shell.app:create_app")


@pytest.mark.system
@pytest.mark.smoke
def test_heads_of_requests_are_limited(rca_command: Run, served: dict[str, Any]) -> None:
    assert rca_command("serve", "--port", "0").code == 0
    assert served["http"] == "rca_api.shell.requests.request_heads:BoundedHeads"
    assert issubclass(pydoc.locate(served["http"].replace(":", ".")), asyncio.Protocol)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "gpu-head-1"])  # noqa: S104
def test_an_open_address_needs_authentication(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    ran = rca_command("serve", "--no-auth", "--host", host, "--port", "0")
    assert ran.code == 2
    assert "rca keys create" in ran.err
    assert served == {}
    monkeypatch.setenv("RCA_AUTH", "keys")
    # This machine has not all of these addresses.
    monkeypatch.setattr("rca.commands.serve._refuse_port", lambda *_: None)
    assert rca_command("serve", "--host", host, "--port", "0").code == 0
    assert served["host"] == host


@pytest.mark.system
@pytest.mark.smoke
def test_a_port_in_use_is_told_before_anything_is_loaded(rca_command: Run, served: dict[str, Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ran = rca_command("serve", "--port", str(other.getsockname()[1]))
    assert (ran.code, served) == (2, {})
    assert "Another port" in ran.err


@pytest.mark.system
@pytest.mark.smoke
def test_no_proxy_is_believed_unless_it_is_named(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rca_command("serve", "--port", "0").code == 0
    assert (served["proxy_headers"], served["forwarded_allow_ips"]) == (False, [])
    monkeypatch.setenv("RCA_TRUSTED_PROXIES", '["10.0.3.4", "10.1.0.0/16"]')
    assert rca_command("serve", "--port", "0").code == 0
    assert (served["proxy_headers"], served["forwarded_allow_ips"]) == (True, ["10.0.3.4", "10.1.0.0/16"])


@pytest.mark.parametrize("given", ["*", "proxy.example", "10.1.2.3/16"])
def test_proxies_are_named_by_address(given: str) -> None:
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings(trusted_proxies=(given,))


@pytest.mark.system
@pytest.mark.smoke
def test_what_has_begun_is_given_its_deadline_when_the_service_ends(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rca_command("serve", "--port", "0").code == 0
    assert served["timeout_graceful_shutdown"] > 60
    monkeypatch.setenv("RCA_DEADLINE_SECONDS", "299.5")
    assert rca_command("serve", "--port", "0").code == 0
    assert served["timeout_graceful_shutdown"] > 299.5


def test_authentication_is_off_however_it_is_written(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RCA_AUTH")
    monkeypatch.setenv("rca_auth", "off")
    ran = rca_command("serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert (ran.code, served) == (2, {})


BAD = {
    "RCA_QUEUE_LIMIT": "abc",
    "RCA_RATE_LIMIT": "lots",
    "RCA_DATABASE_URL": "foo://rca:s3cretpw@bar",
    "RCA_WEBHOOK_HOSTS": "s3cretpw",
    "RCA_DEADLINE_SECONDS": "0",
    "RCA_AUTH": "of",
}


@for_each("command", [("serve", "--port", "0"), ("serve", "--print-config"), ("worker", "--once")])
@for_each("variable", BAD)
def test_a_bad_variable_is_named_in_one_line_without_its_value(
    rca_command: Run,
    served: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    variable: str,
) -> None:
    monkeypatch.setenv(variable, BAD[variable])
    ran = rca_command(*command)
    assert (ran.code, served) == (2, {})
    assert ran.err.count("\n") == 1
    assert f"{variable}: " in ran.err
    assert "s3cretpw" not in ran.out + ran.err


def test_every_bad_variable_is_named(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_QUEUE_LIMIT", "abc")
    monkeypatch.setenv("RCA_RATE_LIMIT", "lots")
    ran = rca_command("serve", "--port", "0")
    assert (ran.code, served) == (2, {})
    assert "RCA_QUEUE_LIMIT: " in ran.err
    assert "RCA_RATE_LIMIT: needs a rate such as 600/minute" in ran.err


@pytest.mark.parametrize(
    "url",
    ["foo://rca:s3cretpw@bar", "postgresql://rca:s3cretpw@db:port/rca", "postgresql+asyncpg://db/rca", "rca"],
)
def test_a_database_that_nobody_knows_is_refused_as_an_option_too(rca_command: Run, url: str) -> None:
    ran = rca_command("db", "status", "--database-url", url)
    assert ran.code == 2
    assert "postgresql://" in ran.err
    assert "s3cretpw" not in ran.err


def test_a_misspelled_variable_is_told_with_what_was_meant(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_AUHT", "off")
    monkeypatch.setenv("RCA_RATE_LIMITS", "5/minute")
    monkeypatch.setenv("RCA_SERVICE_PORT_HTTP", "80")
    monkeypatch.setenv("RCA_API_KEY", "known")
    ran = rca_command("serve", "--print-config")
    assert ran.code == 0
    assert ran.err.splitlines() == [
        "warning: RCA_AUHT is not a setting of this version; did you mean RCA_AUTH?",
        "warning: RCA_RATE_LIMITS is not a setting of this version; did you mean RCA_RATE_LIMIT?",
        "warning: RCA_SERVICE_PORT_HTTP is not a setting of this version",
    ]


def test_a_variable_that_anything_here_reads_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    named = {
        name
        for folder in ("rca", "api", "models", "benchmarks", "tests/service", "tests/end_to_end")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r"""["'](RCA_[A-Z_]*[A-Z])["']""", path.read_text())
    }
    assert {"RCA_NODE_ODDS", "RCA_API_KEY", "RCA_QUEUE_LIMIT", "RCA_TEST_TIMING"} <= named
    for name in named:
        monkeypatch.setenv(name, "")
    assert environment.unknown() == []


@pytest.mark.system
@pytest.mark.smoke
def test_the_number_of_processes_reaches_the_settings(
    rca_command: Run, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_PROCESSES", "5")
    assert rca_command("serve", "--processes", "2").code == 0
    assert Settings().processes == 2
    assert "workers" not in served
