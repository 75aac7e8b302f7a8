"""`rca serve`: the HTTP service."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Literal

import typer

from rca.errors import MissingExtra

EXAMPLES = """
rca serve --no-auth                                      on your own machine
rca keys create --scope diagnose --name on-call          create a key, then serve others:
rca serve --host 0.0.0.0 --port 9000 --processes 2
rca serve --print-config                                 all settings with their values
curl -s http://127.0.0.1:8080/v1/diagnoses -H 'Content-Type: application/json' --data-binary @window.json
"""
ConfigForm = Literal["env", "json"]
_AUTH = "RCA_AUTH"


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8080,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Require no key; on loopback only. Same as RCA_AUTH=off.")
    ] = False,
    # Without `envvar`: its error would show the value.
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that compute; same as RCA_PROCESSES. [default: one per core]"),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings with passwords hidden, then exit.")
    ] = False,
    form: Annotated[
        ConfigForm, typer.Option("--format", help="Format of --print-config: an env file or JSON.")
    ] = "env",
) -> None:
    """Serve diagnoses over HTTP.

    Its page is at http://127.0.0.1:8080/ui, and its API is documented at http://127.0.0.1:8080/docs. All
    other settings are RCA_* environment variables. Callers need a key (`rca keys create`), except with
    --no-auth on your own machine.
    """
    if no_auth:
        os.environ[_AUTH] = "off"
    if processes is not None:
        os.environ["RCA_PROCESSES"] = str(processes)
    if find_spec("uvicorn") is None or find_spec("rca_api") is None:
        raise MissingExtra("the HTTP service is not installed", hint="pip install 'straggler-rca[api]'")
    if print_config:
        _print_config(form)
        return
    # By name, because the library does not import the service.
    settings = import_module("rca_api.shell.settings.environment").read()
    if settings.auth == "off":
        _refuse_open_host(host)
    _refuse_port(host, port)
    checks = import_module("rca_api.shell.settings.start_checks")
    checks.check(settings, checks.SERVE)
    proxies = list(settings.trusted_proxies)
    import_module("rca_api.shell.server").run(
        "rca_api.shell.app:create_app",
        factory=True,
        host=host,
        port=port,
        # By name as well. The service has no WebSockets.
        http="rca_api.shell.requests.request_heads:BoundedHeads",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # By default uvicorn trusts forwarded addresses from this machine.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=settings.drain_seconds,
    )


def _print_config(form: ConfigForm) -> None:
    typer.echo(import_module("rca_api.shell.settings.environment").shown(form), nl=False)
    for warning in import_module("rca_api.shell.settings.environment").unknown():
        typer.echo(f"warning: {warning}", err=True)


def _refuse_open_host(host: str) -> None:
    if _is_loopback(host):
        return
    raise typer.BadParameter(
        f"other machines can reach {host}, so it needs authentication. Leave out --no-auth and "
        "RCA_AUTH=off, and create keys: rca keys create --scope diagnose. Or listen on 127.0.0.1.",
        param_hint="--host",
    )


def _refuse_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on in one line, before the models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:
            used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = getattr(error, "strerror", None) or "this is no name of a host"
            raise typer.BadParameter(
                f"cannot listen on {host}:{port}: {reason}.{' Another port: --port 8081' if used else ''}",
                param_hint="--port" if used else "--host",
            ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
