"""Log-in at an OpenID provider: the authorization code flow with PKCE (decision 0070).

Rules
-----
- A log-in that has begun lies in a cookie of the browser, sealed with a secret of the servers. So another browser
  cannot end it, and any of several servers can.
- The ID token answers this log-in (nonce, audience, signature). The access token becomes the session, as any other
  token would: the rules of its issuer say whether the server accepts it.
- No text has a code or a secret. Of an error of the token endpoint only the code is shown, as its text may repeat them.

Sources: OpenID Connect Core 1.0, section 3.1; RFC 6749, sections 2.3.1 and 4.1; RFC 7636 (PKCE).
"""

from __future__ import annotations

import asyncio
import secrets
import stat
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import jwt
import structlog

from pilotage.clock import BootClock, Clock
from pilotage.errors import UnauthenticatedError, WorldError
from pilotage_server.rpc.framework.issuer_answers import IssuerReader, IssuerRefusedError, check_address
from pilotage_server.rpc.framework.outside_issuers import OutsideIssuer
from pilotage_server.rpc.framework.tokens import TokenIssuer
from pilotage_server.rpc.gateway.problems import Problem
from pilotage_server.settings import LoginSetting
from pilotage_server.web.sessions import ATTEMPT_S, LONGEST_TOKEN, PageError, token_fault

log = structlog.get_logger()

_SEAL = "HS256"
_UNCHECKED: Any = dict.fromkeys(("verify_exp", "verify_iat", "verify_nbf"), False)  # the clock is ours to compare with
_ID_OPTIONS: Any = {**_UNCHECKED, "require": ["iss", "sub", "aud", "exp", "iat", "nonce"]}
_LONGEST_DESCRIPTION = 200
_OPERATORS = "An operator compares the settings of this log-in with those at the provider."


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """A log-in that has begun: what its end is checked with, and the page to go back to."""

    provider: str
    state: str
    nonce: str
    verifier: str
    back: str


def new_attempt(provider: str, back: str) -> LoginAttempt:
    """Return a new log-in at a provider."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return LoginAttempt(provider, state, nonce, verifier, back)


class Attempts:
    """Seals log-ins for the cookie, and opens them again; servers with the same signing keys open each other's."""

    def __init__(self, issuer: TokenIssuer, clock: Clock) -> None:
        self._issuer = issuer
        self._clock = clock

    def seal(self, attempt: LoginAttempt) -> str:
        """Return a text for a cookie; the page to go back to is left out if it is too long for that."""
        sealed = self._sealed(attempt)
        return sealed if len(sealed) <= LONGEST_TOKEN else self._sealed(replace(attempt, back="/"))

    def _sealed(self, attempt: LoginAttempt) -> str:
        now = self._clock()
        kid = self._issuer.keys.signing(now).kid
        claims = {**asdict(attempt), "exp": (now + timedelta(seconds=ATTEMPT_S)).timestamp()}
        return jwt.encode(claims, self._issuer.login_secret(kid), _SEAL, headers={"kid": kid})

    def open(self, sealed: str) -> LoginAttempt | None:
        """Return the log-in; None = it is none of these servers, or too old."""
        try:
            secret = self._issuer.login_secret(str(jwt.get_unverified_header(sealed).get("kid")))
            claims = jwt.decode(sealed, secret, algorithms=[_SEAL], options=_UNCHECKED)
            is_present = claims.pop("exp") > self._clock().timestamp()
            return LoginAttempt(**claims) if is_present else None
        except (jwt.PyJWTError, UnauthenticatedError, RecursionError, KeyError, TypeError):
            return None  # the last two: another release has sealed it with other fields


@dataclass(frozen=True, slots=True)
class Provider:
    """An outside issuer at which visitors log in; `secret` None = this server is a public client."""

    issuer: OutsideIssuer
    login: LoginSetting
    web_address: str
    clock: Clock
    boot_clock: BootClock
    secret: str | None = field(repr=False)

    @property
    def name(self) -> str:
        """Its name in paths."""
        return self.issuer.setting.name

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.login.title

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers reach the page over HTTPS."""
        return self.web_address.startswith("https:")

    @property
    def redirect_uri(self) -> str:
        """Where the provider leads the browser back to; each provider has its own, so that answers cannot be mixed."""
        return f"{self.web_address}/login/{self.name}/callback"

    def link(self, back: str) -> str:
        """Return where a log-in begins. It is absolute: the cookie must be one of the host that is led back to."""
        return f"{self.web_address}/login/{self.name}?next={quote(back)}"

    def address(self, attempt: LoginAttempt) -> str:
        """Return the page of the provider for a log-in; raises PageError if it is not known."""
        challenge = urlsafe_b64encode(sha256(attempt.verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self.login.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.login.scopes),
            "audience": self.issuer.setting.audiences[0],
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def token(self, answer: Mapping[str, str], attempt: LoginAttempt | None) -> str:
        """Return the access token for the answer that a browser brings from the provider; raises PageError."""
        if attempt is None:
            text = f"This log-in has ended, or was begun in another browser or over {ATTEMPT_S / 60:.0f} minutes ago."
            raise PageError(HTTPStatus.BAD_REQUEST, f"{text} Log in again.")
        is_answer = compare_digest(answer.get("state", "").encode(), attempt.state.encode())
        if attempt.provider != self.name or not is_answer:
            raise PageError(HTTPStatus.BAD_REQUEST, "This answer belongs to another log-in. Log in again.")
        try:
            return await self._redeemed(answer, attempt)
        except PageError as error:
            log.warning("log-in through a provider failed", provider=self.name, why=error.text)
            raise

    async def _redeemed(self, answer: Mapping[str, str], attempt: LoginAttempt) -> str:
        if "code" not in answer:
            raise self._denied(answer)
        try:
            tokens = await asyncio.to_thread(self._exchange, answer["code"], attempt)
            self._check_id_token(tokens.get("id_token"), attempt)
        except IssuerRefusedError as refused:
            raise self._not_exchanged(refused.code) from refused
        except WorldError as error:
            text = f"{self.title} has not completed the log-in: {error}. Try again in a moment."
            raise PageError(HTTPStatus.BAD_GATEWAY, text) from error
        except (UnauthenticatedError, jwt.PyJWTError, ValueError, RecursionError) as error:
            text = f"The ID token of {self.title} is not valid for this log-in: {error}. Log in again."
            raise PageError(HTTPStatus.UNAUTHORIZED, text) from error
        token = str(tokens.get("access_token") or "(none)")
        if fault := token_fault(token):
            raise PageError(HTTPStatus.UNAUTHORIZED, f"The access token of {self.title} cannot be used. {fault}")
        return token

    def refusal(self, problem: Problem) -> str:
        """Return what to tell a visitor whose access token the server does not accept."""
        why = f"The server does not accept the access token of {self.title}: {problem.content['detail']}."
        is_passing = problem.status == HTTPStatus.SERVICE_UNAVAILABLE
        todo = "Log in again in a moment." if is_passing else "An operator compares it with the settings of the issuer."
        log.warning("log-in through a provider failed", provider=self.name, why=why)
        return f"{why} {todo}"

    def _exchange(self, code: str, attempt: LoginAttempt) -> Mapping[str, Any]:
        """Return what the provider gives for a code; raises WorldError. It blocks."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": attempt.verifier,
            "audience": self.issuer.setting.audiences[0],
        }
        if self.secret is None:
            return self._reader().post(
                self._endpoint("token_endpoint"), {**form, "client_id": self.login.client_id}, {}
            )
        login = b64encode(f"{quote_plus(self.login.client_id)}:{quote_plus(self.secret)}".encode()).decode()
        return self._reader().post(self._endpoint("token_endpoint"), form, {"Authorization": f"Basic {login}"})

    def _check_id_token(self, token: object, attempt: LoginAttempt) -> None:
        """Raise UnauthenticatedError, PyJWTError or WorldError unless the token answers the log-in."""
        if not isinstance(token, str):
            raise UnauthenticatedError("the answer has none")
        key = self.issuer.find_key(jwt.get_unverified_header(token).get("kid"))
        client = self.login.client_id
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=client,
            issuer=self.issuer.name,
            options=_ID_OPTIONS,
        )
        if claims.get("azp", client) != client:
            raise UnauthenticatedError("it was made for another client")
        if not compare_digest(str(claims["nonce"]).encode(), attempt.nonce.encode()):
            raise UnauthenticatedError("its nonce is that of another log-in")
        if not isinstance(claims["exp"], int | float) or claims["exp"] <= self.clock().timestamp():
            raise UnauthenticatedError("it has expired; compare the clocks of both")

    def _endpoint(self, name: str) -> str:
        """Return an address of the provider; raises PageError if it has none that can be used."""
        if not self.issuer.keys.metadata:
            text = f"The server has not read the addresses of {self.title} yet. Try again in a minute; else ask an"
            raise PageError(HTTPStatus.SERVICE_UNAVAILABLE, f"{text} operator, whose log has the reason.")
        found = str(self.issuer.keys.metadata.get(name, ""))
        try:
            check_address(self.issuer.setting, found)
        except WorldError as error:
            text = f"The {name} of {self.title} cannot be used: {error}. An operator compares the url of the issuer."
            raise PageError(HTTPStatus.BAD_GATEWAY, text) from error
        return found

    def _reader(self) -> IssuerReader:
        return IssuerReader(self.issuer.setting, self.boot_clock)

    def _denied(self, answer: Mapping[str, str]) -> PageError:
        if answer.get("error") == "access_denied":
            text = f"The log-in was refused at {self.title}. Log in again and agree, or ask there for access."
            return PageError(HTTPStatus.UNAUTHORIZED, text)
        reason = _plain(answer.get("error", "no code and no error"))
        if description := answer.get("error_description"):
            reason += f": {_plain(description)}"
        return PageError(HTTPStatus.UNAUTHORIZED, f"{self.title} refuses the log-in: {reason}. {_OPERATORS}")

    def _not_exchanged(self, code: str) -> PageError:
        match code:
            case "invalid_grant":
                text = f"{self.title} does not accept the answer that your browser brought: it was used before, or is"
                text = f"{text} too old. Log in again."
            case "invalid_client" | "unauthorized_client":
                text = f"{self.title} does not accept this server as its client ({code}). {_OPERATORS}"
            case _:
                text = f"{self.title} refuses to complete the log-in: {code}. {_OPERATORS}"
        return PageError(HTTPStatus.UNAUTHORIZED, text)


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:_LONGEST_DESCRIPTION])


def find_providers(
    issuers: Sequence[OutsideIssuer], web_address: str | None, clock: Clock, boot_clock: BootClock
) -> tuple[Provider, ...]:
    """Return the issuers at which visitors log in, with their secrets.

    Raises WorldError if the file of a secret cannot be read, or is open to others.
    """
    return tuple(
        Provider(each, login, web_address, clock, boot_clock, _read_secret(login.client_secret_file))
        for each in issuers
        if (login := each.setting.login) is not None and web_address is not None
    )


def _read_secret(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        mode, secret = stat.S_IMODE(path.stat().st_mode), path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"the client secret {path} cannot be used: {error}", transient=False) from error
    if mode & 0o007:
        message = f"the client secret {path} is open to everybody (mode {mode:o}); chmod 600"
        raise WorldError(message, transient=False)
    if not secret:
        raise WorldError(f"the client secret {path} is empty", transient=False)
    return secret
