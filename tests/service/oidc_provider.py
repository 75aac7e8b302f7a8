"""A small OpenID Connect provider on loopback: one user who is signed in, public clients with PKCE."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT, AUDIENCE = "rca-page", "straggler-rca"


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "one"})


class Provider(ThreadingHTTPServer):
    """Gives each code once, to who has its verifier."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.key = _key()
        self.codes: dict[str, dict[str, str]] = {}
        #: Audience and scopes of access tokens; no access token without an audience.
        self.audience: str | None = AUDIENCE
        self.scope = "openid rca:read rca:diagnose"
        #: Error that the next visit of the authorization endpoint gives.
        self.refusal: str | None = None
        self.broken = False

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
        }

    def code(self, asked: dict[str, str]) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return code

    def tokens(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if self.broken:
            return 500, {}
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        same = asked is not None and all(
            form.get(each) == asked[each] for each in ("client_id", "redirect_uri")
        )
        if not same or asked is None or asked["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        found = {"token_type": "Bearer", "id_token": self.token(CLIENT, nonce=asked.get("nonce"))}
        return 200, found | ({} if self.audience is None else {"access_token": self.token(self.audience)})

    def token(self, audience: str, **more: Any) -> str:
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "sub": "ada",
            "email": "ada@example.org",
            "exp": int(time.time()) + 300,
            "scope": self.scope,
            **more,
        }
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if place.path == "/.well-known/openid-configuration":
            self.answer(200, self.server.discovery())
        elif place.path == "/keys":
            self.answer(200, KeySet([self.server.key]).as_dict())
        elif place.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(place.query).items()}
            refusal = self.server.refusal
            told = {"code": self.server.code(asked)} if refusal is None else {"error": refusal}
            self.send_response(302)
            self.send_header(
                "Location", f"{asked['redirect_uri']}?{urlencode(told | {'state': asked['state']})}"
            )
            self.end_headers()
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.answer(*self.server.tokens({name: values[0] for name, values in parse_qs(body).items()}))

    def answer(self, status: int, document: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def provided() -> Iterator[Provider]:
    """Serve until the context ends."""
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()
