"""A setting that cannot be used ends a command with one line that names it, without its value."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rca_api.shell.settings import environment, start_checks
from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]

Run = Callable[..., Any]
SECRET = "s3cretpw"  # noqa: S105
#: Values that no command accepts, by setting. {tmp} is a folder with the file `s3cretpw` and a pipe in it.
WRONG_NUMBERS = (SECRET, "nan", "inf", "-1", "1e300")
NO_LISTS = (SECRET, "5", '"s3cretpw"', '{"s3cretpw": 1}', "[[1]]", '["s3cretpw"', "[" * 50_000, "")
WRONG: dict[str, tuple[str, ...]] = {
    "data_dir": ("/proc/s3cretpw", "/dev/null/s3cretpw", "{tmp}/s3cretpw", "~s3cretpw/data"),
    "database_url": (
        SECRET,
        "foo://rca:s3cretpw@db/rca",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////proc/s3cretpw/rca.db",
        "sqlite:///{tmp}",
        "sqlite:///{tmp}/s3cretpw",
        "postgresql://rca:s3cretpw@db:port/rca",
        "postgresql://rca:x@s3cretpw@db/rca",
        "postgresql://rca@db/rca?s3cretpw=1",
        "postgresql+asyncpg://rca:s3cretpw@db/rca",
        "mysql://rca:s3cretpw@db/rca",
    ),
    "window_store_url": (
        "foo://s3cretpw",
        "foo::s3://s3cretpw",
        "s3://s3cretpw/windows",
        "/proc/s3cretpw",
        "{tmp}/s3cretpw",
        "~s3cretpw/windows",
    ),
    "migrate": (SECRET,),
    "auth": (SECRET,),
    "oidc_issuer": (SECRET, "https://", "ftp://s3cretpw", "https://id:s3cretpw", "https://[s3cretpw"),
    "oidc_audience": ("",),
    "oidc_scope_claim": ("",),
    "oidc_client_id": (SECRET,),
    "oidc_client_scope": ("",),
    "rate_limit": (SECRET, "0/minute", "1/s3cretpw", "5/minute;6/hour", "99999999999/minute", "-1/minute"),
    "dask_scheduler": (SECRET, "tcp://10.0.0.1", "http://10.0.0.1:8786", "tcp://:8786", "tcp://a:99999999"),
    "rate_limit_storage_url": (
        SECRET,
        "foo://s3cretpw",
        "memcached://s3cretpw",
        "redis://",
        "redis://:s3cretpw@cache:port",
        "redis://cache?s3cretpw=1",
        "redis://[s3cretpw",
    ),
    "trusted_proxies": (
        SECRET,
        '["s3cretpw"]',
        '["10.1.2.3/16"]',
        '["*"]',
        "5",
        '{"s3cretpw": 1}',
        "[[1]]",
        "[" * 50_000,
    ),
    "public_metrics": (SECRET,),
    "bundle": ("{tmp}/none-s3cretpw", "{tmp}", "{tmp}/s3cretpw", "/proc/1/mem"),
    "priors": ("{tmp}/none-s3cretpw", "{tmp}", "{tmp}/s3cretpw", "{tmp}/list.json", "{tmp}/strange.json"),
    "site": ("{tmp}/none-s3cretpw", "{tmp}", "{tmp}/s3cretpw", "{tmp}/list.json", "{tmp}/strange.json"),
    "runbooks": ("{tmp}/none-s3cretpw", "{tmp}", "{tmp}/s3cretpw", "{tmp}/wrong"),
    "incident_suspected": (SECRET, "off"),
    "sources": ("{tmp}/none-s3cretpw", "{tmp}", "{tmp}/s3cretpw", "{tmp}/list.json", "{tmp}/strange.json"),
    "public_url": (SECRET, "https://", "ftp://s3cretpw", "https://[s3cretpw"),
    "webhook_http": (SECRET,),
    "webhook_hosts": (
        SECRET,
        '["https://s3cretpw/"]',
        '["s3cretpw:80"]',
        '[""]',
        '["*.s3cretpw"]',
        "{}",
        "[" * 50_000,
    ),
    "webhook_private": (SECRET,),
    "node_priors": (SECRET,),
    "earlier_windows": (SECRET,),
    "tracking_uri": ("postgresql://mlflow:s3cretpw@db:port/mlflow", "http://[s3cretpw"),
    "collections_dir": ("{tmp}/none-s3cretpw", "{tmp}/s3cretpw"),
    "cache_dir": ("/proc/s3cretpw", "{tmp}/s3cretpw"),
    "auto_promote": (SECRET,),
    "log_level": (SECRET,),
    "tracing": (SECRET,),
}
#: All other settings are numbers or sizes.
NUMBERS = sorted(set(Settings.model_fields) - set(WRONG))
#: Commands by the settings that they check at their start; all commands read all settings.
COMMANDS = {
    ("serve", "--port", "0"): start_checks.SERVE,
    ("worker", "--once"): start_checks.WORKER,
    ("db", "prune"): start_checks.SERVE,
    ("db", "status"): start_checks.DATABASE,
    ("db", "upgrade"): start_checks.DATABASE,
    ("feedback", "export", "collection"): start_checks.FEEDBACK,
    ("keys", "list"): start_checks.DATABASE,
    ("keys", "create", "--scope", "read"): start_checks.DATABASE,
    ("keys", "revoke", "0" * 16): start_checks.DATABASE,
}
CHECKED = {name for names in COMMANDS.values() for name in names}


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A data folder of its own, and a server that does not serve."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("the service started")

    monkeypatch.setattr("rca_api.shell.server.run", run)
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RCA_AUTH", "keys")


@pytest.fixture
def refused(rca_command: Run, tmp_path: Path) -> Run:
    """Run a command with one wrong variable, and check how it ends; gives its error."""
    (tmp_path / SECRET).write_text("not a database, not a bundle and not JSON " * 100)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "strange.json").write_text('{"nic_degradation": "many"}')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "piped").mkdir()
    (tmp_path / "piped" / "manifest.json").symlink_to(tmp_path / "pipe")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "hang.yaml").write_text("verify: s3cretpw")

    def run(command: tuple[str, ...], name: str, value: str) -> str:
        variable = environment.variable_of(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variable, value.replace("{tmp}", str(tmp_path)))
            ran = rca_command(*command)
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("error (invalid-input): ")
        assert f"{variable}: " in ran.err
        assert SECRET not in ran.err
        assert str(tmp_path) not in ran.err
        assert "Traceback" not in ran.err
        return str(ran.err)

    return run


def test_every_setting_has_wrong_values_here() -> None:
    for name in NUMBERS:
        kind = Settings.model_fields[name].annotation
        assert kind is not None
        assert issubclass(kind, int | float), f"{name} is not a number: give wrong values of it in WRONG"


@for_each(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_value_is_refused(refused: Run, name: str, value: str) -> None:
    commands = [each for each, checked in COMMANDS.items() if name not in CHECKED or name in checked]
    # One that checks the setting; the others read it in the same way.
    refused(commands[0], name, value)


@for_each("name", NUMBERS)
def test_a_wrong_number_is_refused(refused: Run, name: str) -> None:
    is_size = "bytes" in name
    wrong = (SECRET, "-1", "5s3cretpw", "2000EiB") if is_size else WRONG_NUMBERS
    for value in wrong:
        refused(("worker", "--once"), name, value)


@for_each("command", COMMANDS)
@for_each(
    ("name", "value"),
    [
        ("queue_limit", SECRET),
        ("trusted_proxies", SECRET),
        ("database_url", "sqlite:////proc/s3cretpw/rca.db"),
    ],
)
def test_every_command_refuses_a_wrong_value(
    refused: Run, command: tuple[str, ...], name: str, value: str
) -> None:
    refused(command, name, value)


@for_each("command", COMMANDS)
def test_a_data_folder_that_cannot_be_made_is_named_once(refused: Run, command: tuple[str, ...]) -> None:
    assert refused(command, "data_dir", "/proc/nope").count("RCA_") == 1


def test_each_of_several_is_named(rca_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCA_DATA_DIR", "/proc/nope")
    monkeypatch.setenv("RCA_WINDOW_STORE_URL", "/proc/nope")
    monkeypatch.setenv("RCA_PRIORS", "/proc/nope")
    ran = rca_command("serve", "--port", "0")
    assert ran.code == 2
    assert [name in ran.err for name in ("RCA_DATA_DIR:", "RCA_WINDOW_STORE_URL:", "RCA_PRIORS:")] == [
        True
    ] * 3


@pytest.mark.parametrize(
    ("name", "value", "module", "extra"),
    [
        ("database_url", "postgresql://rca:s3cretpw@db/rca", "psycopg", "postgres"),
        ("rate_limit_storage_url", "rediss://:s3cretpw@cache", "redis", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    refused: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, module: str, extra: str
) -> None:
    for loaded in [each for each in sys.modules if each.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'straggler-rca[{extra}]'" in refused(("serve", "--port", "0"), name, value)


@for_each(
    "command", [("db", "status"), ("db", "upgrade"), ("keys", "list"), ("worker", "--once"), ("db", "prune")]
)
def test_a_database_that_is_away_is_an_error_of_one_line(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("RCA_DATABASE_URL", "postgresql://rca:s3cretpw@127.0.0.1:1/rca")
    ran = rca_command(*command)
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error (store-unavailable): the database cannot be")
    assert SECRET not in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_the_service_starts_without_its_servers(monkeypatch: pytest.MonkeyPatch, rca_command: Run) -> None:
    """They may come back; `/readyz` says what is missing."""
    pytest.importorskip("redis", reason="the driver of Redis is not installed: make setup")
    monkeypatch.setattr("rca_api.shell.server.run", lambda *_, **__: None)
    monkeypatch.setenv("RCA_DATABASE_URL", "postgresql://rca@127.0.0.1:1/rca")
    monkeypatch.setenv("RCA_RATE_LIMIT_STORAGE_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("RCA_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("RCA_OIDC_ISSUER", "https://127.0.0.1:1")
    assert rca_command("serve", "--port", "0").code == 0


@for_each(
    "name",
    [
        "bundle",
        "priors",
        "site",
        "runbooks",
        "sources",
        "collections_dir",
        "cache_dir",
        "window_store_url",
    ],
)
def test_an_empty_variable_is_the_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    default = getattr(Settings(), name)
    monkeypatch.setenv(environment.variable_of(name), "")
    assert getattr(Settings(), name) == default


def test_a_user_without_a_home_folder_has_to_name_a_data_folder(
    monkeypatch: pytest.MonkeyPatch, rca_command: Run
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("RCA_DATA_DIR")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    ran = rca_command("db", "status")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "RCA_DATA_DIR: " in ran.err


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 300, "::ffff:1:2:3:4"])
def test_an_address_that_cannot_be_listened_on_is_refused(rca_command: Run, host: str) -> None:
    ran = rca_command("serve", "--host", host)
    assert ran.code == 2
    assert "cannot listen on" in ran.err
    assert "Traceback" not in ran.err


def test_a_port_that_needs_more_rights_is_refused(rca_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", bind)
    ran = rca_command("serve", "--port", "80")
    assert ran.code == 2
    assert "Permission denied" in ran.err


@for_each(
    "uri",
    [
        SECRET,
        "foo://mlflow:s3cretpw@db/mlflow",
        "sqlite:////proc/s3cretpw/mlflow.db",
        "sqlite:///{tmp}/s3cretpw",
        "sqlite:///{tmp}",
        "http://mlflow:s3cretpw@127.0.0.1:1",
        "http://[s3cretpw",
        "postgresql://mlflow:s3cretpw@db:port/mlflow",
        "mssql+s3cretpw://db/mlflow",
    ],
)
@for_each("command", [("list",), ("show",), ("rollback",), ("retry",)])
def test_a_store_of_models_that_cannot_be_used_is_an_error_of_one_line(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str, command: tuple[str, ...]
) -> None:
    (tmp_path / SECRET).write_text("not a database " * 100)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("{tmp}", str(tmp_path)))
    ran = rca_command("models", *command)
    assert ran.code == 2
    assert [line for line in ran.err.splitlines() if "error (source-error)" in line]
    assert "Traceback" not in ran.err
    assert SECRET not in ran.out + ran.err
