"""A real outside issuer: keys, tokens, and an HTTP server on loopback that publishes the keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from pilotage_server.settings import IssuerSetting
from support.processes import free_port

AUDIENCE = "https://pilotage.example.org"
METADATA, JWKS = "/.well-known/openid-configuration", "/jwks"

Answer = Callable[[BaseHTTPRequestHandler], None]


@cache
def a_private_key(name: str, kind: str) -> Any:
    """Return a key of the kind RS256 (weak: 1024 bits), ES256, ES384 or EdDSA; the same one for the same name."""
    match kind:
        case "RS256" | "PS256":
            return rsa.generate_private_key(65537, 2048)
        case "weak":
            return rsa.generate_private_key(65537, 1024)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def public_jwk(private: Any, **members: Any) -> dict[str, Any]:
    """Return the public key as a JWK with more members."""
    public = private.public_key()
    match public:
        case rsa.RSAPublicKey():
            found: dict[str, Any] = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            found = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            found = OKPAlgorithm.to_jwk(public, as_dict=True)
    found.pop("key_ops", None)
    return found | members


FORGERIES = ("unsigned", "public-key-as-secret", "another-key", "another-algorithm")


def forged(token: str, kind: str, kid: str = "first") -> str:
    """Return a token with the same claims and id of an RS256 key, with a signature of one of the FORGERIES."""
    claims, headers = jwt.decode(token, options={"verify_signature": False}), {"kid": kid}
    match kind:
        case "unsigned":
            return jwt.encode(claims, "", algorithm="none", headers=headers)
        case "public-key-as-secret":
            # By hand: the library does not sign with a text that is a key.
            public = a_private_key(kid, "RS256").public_key()
            secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            parts = ({"alg": "HS256", **headers}, claims)
            signed = ".".join(base64url_encode(json.dumps(part).encode()).decode() for part in parts)
            mac = jwt.get_algorithm_by_name("HS256").sign(signed.encode(), secret)
            return f"{signed}.{base64url_encode(mac).decode()}"
        case "another-key":
            return jwt.encode(claims, a_private_key("stranger", "RS256"), algorithm="RS256", headers=headers)
        case _:
            return jwt.encode(claims, a_private_key(kid, "RS256"), algorithm="RS512", headers=headers)


class RunningIssuer:
    """An issuer that can go away and come back; `answers` replaces what it answers at a path."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        self.algorithms: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.reads = 0
        self._server: ThreadingHTTPServer | None = None
        self.add_key("first")

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Stop answering: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add_key(self, kid: str, algorithm: str = "RS256") -> None:
        """Publish one more key."""
        a_private_key(kid, algorithm)  # made before a thread of the server asks: two threads would make two keys
        self.algorithms[kid] = algorithm

    def remove_key(self, kid: str) -> None:
        del self.algorithms[kid]

    def jwks(self) -> list[dict[str, Any]]:
        return [
            public_jwk(a_private_key(kid, algorithm), kid=kid, use="sig", alg=algorithm)
            for kid, algorithm in self.algorithms.items()
        ]

    def setting(self, **fields: Any) -> IssuerSetting:
        """Return the settings of this issuer at a server."""
        values = {"url": self.url, "name": "iam", "audiences": [AUDIENCE], "vo": "cms", **fields}
        return IssuerSetting.model_validate(values)

    def token(
        self, now: datetime, *, kid: str = "first", algorithm: str = "RS256", groups: Any = None, **claims: Any
    ) -> str:
        """Return a token that lives for 20 minutes, with these claims changed; None = left out."""
        issued = int(now.timestamp())
        payload = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": issued,
            "nbf": issued,
            "exp": issued + 1200,
            "jti": uuid4().hex,
            "scope": "openid compute.read compute.create",
            "wlcg.ver": "1.0",
            "wlcg.groups": groups,
        }
        changed = {name: value for name, value in (payload | claims).items() if value is not None}
        return jwt.encode(changed, a_private_key(kid, algorithm), algorithm=algorithm, headers={"kid": kid})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = issuer.answers.get(self.path) or issuer._usual_answer(self.path)
                answer(self)

            def do_POST(self) -> None:
                issuer.post_answer(self)(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def post_answer(self, request: BaseHTTPRequestHandler) -> Answer:
        """Return the answer to a form: an issuer takes none."""
        return json_answer({}, status=405)

    def _usual_answer(self, path: str) -> Answer:
        if path == METADATA:
            return json_answer({"issuer": self.url, "jwks_uri": f"{self.url.rstrip('/')}{JWKS}"})
        if path != JWKS:
            return json_answer({}, status=404)
        self.reads += 1
        return json_answer({"keys": self.jwks()})


def json_answer(content: object, status: int = 200) -> Answer:
    """Return an answer with this content."""
    return bytes_answer(json.dumps(content).encode(), status)


def bytes_answer(content: bytes, status: int = 200, **headers: str) -> Answer:
    """Return an answer with these bytes and headers."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)

    return answer


@contextmanager
def running_issuer() -> Iterator[RunningIssuer]:
    """Run an issuer until the end of the block."""
    issuer = RunningIssuer()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()
