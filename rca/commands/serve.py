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
rca serve --no-auth                                      on one's own machine
rca keys create --scope diagnose --name on-call          then, for others:
rca serve --host 0.0.0.0 --port 9000 --processes 2
rca serve --print-config                                 what is set, and what could be
curl -s http://127.0.0.1:8080/v1/diagnoses -H 'Content-Type: application/json' --data-binary @window.json
"""
ConfigForm = Literal["env", "json"]
_AUTH = "RCA_AUTH"


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8080,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask nobody for a key; on loopback only. Same as RCA_AUTH=off.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(min=1, envvar="RCA_PROCESSES", help="Processes that compute. [default: one a core]"),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings, passwords hidden, and end.")
    ] = False,
    form: Annotated[
        ConfigForm, typer.Option("--format", help="Of --print-config: lines for an env file, or JSON.")
    ] = "env",
) -> None:
    """Serve diagnoses over HTTP.

    Documentation of the running service: http://127.0.0.1:8080/docs. Everything else is set with RCA_*
    environment variables. Callers need a key (`rca keys create`), unless --no-auth on one's own machine.
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
    # The library does not import its service; it only knows where its settings are read.
    settings = import_module("rca_api.environment").read()
    if settings.auth == "off":
        _refuse_open_host(host)
    import uvicorn

    _refuse_used_port(host, port)
    proxies = list(settings.trusted_proxies)
    uvicorn.run(
        "rca_api.app:create_app",
        factory=True,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        # uvicorn itself would believe whoever connects from this machine.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=settings.drain_seconds,
    )


def _print_config(form: ConfigForm) -> None:
    typer.echo(import_module("rca_api.configuration").shown(form), nl=False)
    for told in import_module("rca_api.environment").unknown():
        typer.echo(f"warning: {told}", err=True)


def _refuse_open_host(host: str) -> None:
    if _is_loopback(host):
        return
    raise typer.BadParameter(
        f"{host} can be reached from other machines: without authentication anybody could post windows and "
        "read node names. Leave out --no-auth (and RCA_AUTH=off) and give callers keys: rca keys create "
        "--scope diagnose. Or listen on 127.0.0.1.",
        param_hint="--host",
    )


def _refuse_used_port(host: str, port: int) -> None:
    """Say it before the models are loaded, in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # Whatever else is wrong with the address, uvicorn says it.
            if error.errno != errno.EADDRINUSE:
                return
            raise typer.BadParameter(
                f"cannot listen on {host}:{port}: {error.strerror}. Another port: --port 8081",
                param_hint="--port",
            ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
