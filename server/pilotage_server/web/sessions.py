"""Log-in, log-out, and the check that a form comes from a page of this server (decision 0068).

The cookie holds the token of the visitor; the server keeps no sessions. So a page works at each of several servers, and
a revoked or expired token ends the session at once. Scripts of pages cannot read the cookie, and other sites cannot
send it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

TOKEN_COOKIE = "pilotage_token"  # noqa: S105 - its name, not a secret
ATTEMPT_COOKIE = "pilotage_login"
SCHEME_COOKIE = "pilotage_colours"
SCHEMES = ("auto", "light", "dark")

LONGEST_TOKEN = 3900
"""Characters of a token; browsers ignore a cookie of more than 4,096 bytes with its name and attributes."""

ATTEMPT_S = 600.0
"""Time for a log-in through a provider."""

MAX_FORM_BYTES = 1024 * 1024
FORM_TIME_S = 30.0

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_LOGIN_PATH = "/login"
_YEAR_S = 365 * 24 * 3600


class PageError(Exception):
    """A page that cannot be shown: the status, and the text for people."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def checked_choice(name: str, text: str, choices: Collection[str]) -> str:
    """Return a value of an address or a form, which may be empty; raises PageError if it is none of the choices."""
    if text and text not in choices:
        raise PageError(HTTPStatus.BAD_REQUEST, f"{name} is {text[:40]!r}; it can be {', '.join(choices)}")
    return text


class Form:
    """The fields of a form; a field may have several values."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """Return the first value of a field, "" = it has none."""
        return self.all(name)[0] if self.all(name) else ""

    def all(self, name: str) -> Sequence[str]:
        """Return the values of a field."""
        return self._fields.get(name, ())


async def read_form(request: Request) -> Form:
    """Return the fields of a form of this server's pages; raises PageError."""
    check_origin(request)
    content = bytearray()
    try:
        async with asyncio.timeout(FORM_TIME_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_FORM_BYTES:
                    raise PageError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {MAX_FORM_BYTES} bytes"
                    )
    except TimeoutError:
        raise PageError(HTTPStatus.REQUEST_TIMEOUT, f"the form did not arrive within {FORM_TIME_S:g} s") from None
    return Form(parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True))


def check_origin(request: Request) -> None:
    """Raise PageError unless a page of this server sends the request.

    Browsers say so in Sec-Fetch-Site, which pages cannot forge; older ones send the origin only.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    is_own = site == "same-origin" if site is not None else urlsplit(origin).netloc == request.headers.get("host", "-")
    if not is_own:
        raise PageError(
            HTTPStatus.FORBIDDEN, "the form was sent by a page of another site; open this page and try again"
        )


def token_of(request: Request) -> str:
    """Return the token of the visitor, "" = the visitor has not logged in."""
    token = request.cookies.get(TOKEN_COOKIE, "")
    return token if _TOKEN.fullmatch(token) else ""


def token_fault(token: str) -> str:
    """Return why a text cannot be a token, "" = it can."""
    if not token:
        return "Enter a token."
    if len(token) > LONGEST_TOKEN:
        return f"The token has {len(token)} characters; a browser keeps {LONGEST_TOKEN}. Ask for one with fewer groups."
    return "" if _TOKEN.fullmatch(token) else "This is no token: it has characters that tokens do not have."


def keep_token(response: Response, token: str, lifetime_s: float, *, is_encrypted: bool) -> None:
    """Let the browser keep the token as long as it is valid."""
    response.set_cookie(
        TOKEN_COOKIE,
        token,
        max_age=max(0, int(lifetime_s)),
        secure=is_encrypted,
        httponly=True,
        samesite="strict",
    )


def forget_token(request: Request, response: Response) -> None:
    """Let the browser forget the token."""
    response.delete_cookie(TOKEN_COOKIE, secure=is_encrypted(request), httponly=True, samesite="strict")


def keep_attempt(response: Response, sealed: str, *, is_encrypted: bool) -> None:
    """Let the browser keep a log-in that has begun; it sends it along when a provider leads it back."""
    response.set_cookie(
        ATTEMPT_COOKIE,
        sealed,
        max_age=int(ATTEMPT_S),
        path=_LOGIN_PATH,
        secure=is_encrypted,
        httponly=True,
        samesite="lax",
    )


def attempt_of(request: Request) -> str:
    """Return the log-in that has begun in this browser, "" = none."""
    return request.cookies.get(ATTEMPT_COOKIE, "")


def forget_attempt(response: Response, *, is_encrypted: bool) -> None:
    """Let the browser forget the log-in: it has ended."""
    response.delete_cookie(ATTEMPT_COOKIE, path=_LOGIN_PATH, secure=is_encrypted, httponly=True, samesite="lax")


def is_encrypted(request: Request) -> bool:
    """Whether the browser speaks HTTPS with this server, or with a proxy in front of it: its origin says so."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")


def scheme_of(request: Request) -> str:
    """Return the colour scheme that the visitor has chosen: auto, light or dark."""
    scheme = request.cookies.get(SCHEME_COOKIE, "auto")
    return scheme if scheme in SCHEMES else "auto"


def keep_scheme(request: Request, response: Response, scheme: str) -> None:
    """Let the browser keep the choice of a colour scheme for a year."""
    response.set_cookie(
        SCHEME_COOKIE, scheme, max_age=_YEAR_S, secure=is_encrypted(request), httponly=True, samesite="strict"
    )


def login_path(request: Request) -> str:
    """Return the path of the log-in page that leads back to this request's page."""
    back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return "/login" if request.method != "GET" or back == "/" else f"/login?next={quote(back)}"


def own_path(text: str) -> str:
    """Return a path of this server; "/" for anything else, such as an address of another site."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_own else "/"
