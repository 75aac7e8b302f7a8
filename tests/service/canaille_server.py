"""A program for the environment of Canaille, an OpenID provider that others wrote.

It writes its issuer as a line once it serves. Then it reads a line with a JSON object, and answers with an
empty line. It ends with its standard input. The object has:

- `client_id`, and the `redirect_uri` to which its browser comes back;
- `people`: names, each with a password and the names of its groups.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import sys
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import JWKRegistry


class Server(ThreadingMixIn, WSGIServer):
    """Browsers open connections in advance, which must not hold up others."""

    daemon_threads = True


class Quiet(WSGIRequestHandler):
    """Logs no request."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def configuration(server_name: str) -> dict[str, object]:
    """Canaille's defaults, but for plain HTTP, a made-up key, and people who exist in memory only."""
    key = JWKRegistry.generate_key("RSA", 2048)
    key.ensure_kid()
    quiet = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR"}}
    return {
        "SECRET_KEY": secrets.token_hex(16),
        "SERVER_NAME": server_name,
        "PREFERRED_URL_SCHEME": "http",
        "CANAILLE": {"DATABASE": "memory", "SMTP": None, "LOGGING": quiet},
        "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)]},
    }


def add(wanted: dict[str, object]) -> None:
    """Add the people, their groups and the client."""
    backend, groups = Backend.instance, {}
    for name, (password, names) in wanted["people"].items():
        person = models.User(
            user_name=name,
            family_name=name,
            formatted_name=name,
            emails=[f"{name}@example.org"],
            password=password,
        )
        backend.save(person)
        for each in names:
            groups.setdefault(each, []).append(person)
    for name, members in groups.items():
        backend.save(models.Group(display_name=name, members=members))
    client = models.Client(
        client_id=wanted["client_id"],
        client_name="straggler-rca",
        # A host of its own: Canaille asks for no consent for clients on loopback.
        client_uri="https://rca.example.org",
        redirect_uris=[wanted["redirect_uri"]],
        grant_types=["authorization_code"],
        response_types=["code"],
        scope=["openid", "profile", "email", "groups"],
        token_endpoint_auth_method="none",  # noqa: S106  (no secret)
        client_id_issued_at=datetime.datetime.now(datetime.UTC),
    )
    backend.save(client)
    client.audience = [client]
    backend.save(client)


def main() -> None:
    """Serve until standard input ends."""
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
    with Server(("127.0.0.1", 0), Quiet) as server:
        app = create_app(config=configuration(f"localhost:{server.server_port}"), env_file=None)
        server.set_app(app)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://localhost:{server.server_port}", flush=True)
        wanted = json.loads(sys.stdin.readline())
        with app.app_context():
            add(wanted)
        print(flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
