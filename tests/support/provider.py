"""A real OpenID provider: an outside issuer with a log-in form and a token endpoint that checks all that it is sent."""

from __future__ import annotations

import secrets
import threading
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from pilotage import clock
from support.http_client import TIMEOUT_S
from support.issuer import JWKS, METADATA, Answer, RunningIssuer, bytes_answer, forged, json_answer

AUTHORIZE, TOKEN = "/authorize", "/token"
FORM = """<!doctype html><html lang="en"><title>Provider</title><h1>Log in at the provider</h1>
<form method="post" action="/authorize">{hidden}
<label>User <input name="user"></label>
<button name="answer" value="yes">Agree</button> <button name="answer" value="no">Refuse</button></form></html>"""


@dataclass(frozen=True, slots=True)
class OpenIdClient:
    """A registered client; no secret = a public one."""

    redirect_uri: str
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a code stands for: the user, and the request for which it was made."""

    user: str
    request: Mapping[str, str]


class RunningProvider(RunningIssuer):
    """A provider with clients; `access_claims` and `id_claims` change the claims of its tokens.

    `id_forgery` is one of the FORGERIES with which its ID tokens are signed; "" = with its key.
    `grants` are codes that were not used yet, `refusals` the errors of the token endpoint. It answers the
    `exchanges`, whose number it counts, while `released` is set. The user mallory is refused with a hostile text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[str, OpenIdClient] = {}
        self.access_claims: dict[str, Any] = {}
        self.id_claims: dict[str, Any] = {}
        self.id_forgery = ""
        self.grants: dict[str, Grant] = {}
        self.refusals: list[str] = []
        self.exchanges = 0
        self.released = threading.Event()
        self.released.set()

    def _usual_answer(self, path: str) -> Answer:
        parts = urlsplit(path)
        match parts.path:
            case p if p == METADATA:
                places = {"jwks_uri": JWKS, "authorization_endpoint": AUTHORIZE, "token_endpoint": TOKEN}
                addresses = {name: self.url.rstrip("/") + place for name, place in places.items()}
                return json_answer({"issuer": self.url, **addresses})
            case p if p == AUTHORIZE:
                return self._form(dict(parse_qsl(parts.query)))
            case _:
                return super()._usual_answer(path)

    def post_answer(self, request: BaseHTTPRequestHandler) -> Answer:
        """Answer a form: of a user at the log-in page, or of a client at the token endpoint."""
        content = request.rfile.read(int(request.headers["Content-Length"]))
        fields = dict(parse_qsl(content.decode()))
        if request.path == AUTHORIZE:
            return self._user_answer(fields)
        self.exchanges += 1
        self.released.wait(TIMEOUT_S)
        try:
            return json_answer(self._tokens(fields, request.headers.get("Authorization", "")))
        except _RefusedError as refused:
            self.refusals.append(str(refused))
            # As some providers do, the description repeats what was sent.
            description = f"refused: {fields}"
            return json_answer({"error": str(refused), "error_description": description}, status=400)

    def _form(self, request: Mapping[str, str]) -> Answer:
        client = self.clients.get(request.get("client_id", ""))
        is_valid = (
            client is not None
            and request.get("redirect_uri") == client.redirect_uri
            and request.get("response_type") == "code"
            and "openid" in request.get("scope", "").split()
            and request.get("code_challenge_method") == "S256"
            and len(request.get("code_challenge", "")) == 43
        )
        if not is_valid:
            return bytes_answer(b"this client is not registered so", 400)
        hidden = "".join(f'<input type="hidden" name="{name}" value="{escape(v)}">' for name, v in request.items())
        return bytes_answer(FORM.format(hidden=hidden).encode(), 200, **{"Content-Type": "text/html"})

    def _user_answer(self, fields: Mapping[str, str]) -> Answer:
        if fields["answer"] != "yes":
            found = {"error": "access_denied"}
        elif fields["user"] == "mallory":
            found = {"error": "invalid_scope", "error_description": "<script>alert(1)</script>"}
        else:
            found = {"code": self.code(fields["user"], fields)}
        query = urlencode({**found, "state": fields["state"]})
        return bytes_answer(b"", 303, Location=f"{fields['redirect_uri']}?{query}")

    def code(self, user: str, request: Mapping[str, str]) -> str:
        """Return a new code for a request."""
        code = secrets.token_urlsafe(16)
        self.grants[code] = Grant(user, request)
        return code

    def _tokens(self, form: Mapping[str, str], login: str) -> dict[str, Any]:
        client_id = self._client_of(form, login)
        grant = self.grants.pop(form.get("code", ""), None)
        challenge = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        if form.get("grant_type") != "authorization_code":
            raise _RefusedError("unsupported_grant_type")
        if (
            grant is None
            or grant.request["client_id"] != client_id
            or grant.request["redirect_uri"] != form.get("redirect_uri")
            or grant.request["code_challenge"] != challenge
        ):
            raise _RefusedError("invalid_grant")
        asked, now = grant.request, clock.now()
        access = {"sub": grant.user, "aud": asked["audience"], "scope": asked["scope"], **self.access_claims}
        id_claims = {"sub": grant.user, "aud": client_id, "nonce": asked["nonce"], "scope": None, **self.id_claims}
        id_token = self.token(now, **id_claims)
        if self.id_forgery:
            id_token = forged(id_token, self.id_forgery)
        tokens = {"access_token": self.token(now, **access), "id_token": id_token}
        return {**tokens, "token_type": "Bearer", "expires_in": 1200}

    def _client_of(self, form: Mapping[str, str], login: str) -> str:
        """Return the client that has logged in, as it is registered."""
        if login.startswith("Basic "):
            client_id, _, secret = map(unquote_plus, b64decode(login.removeprefix("Basic ")).decode().partition(":"))
            client = self.clients.get(client_id)
            if client is not None and client.secret == secret:
                return client_id
        elif (client := self.clients.get(form.get("client_id", ""))) is not None and client.secret is None:
            return form["client_id"]
        raise _RefusedError("invalid_client")


class _RefusedError(Exception):
    """The text is an error of OAuth."""


@contextmanager
def running_provider() -> Iterator[RunningProvider]:
    """Run a provider until the end of the block."""
    provider = RunningProvider()
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()
