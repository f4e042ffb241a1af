"""Log-in and log-out: with a token, or through an OpenID provider (decisions 0068 and 0070)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from pilotage.clock import Clock
from pilotage.v1 import identity_service_pb2
from pilotage_server.web.calls import CallFailedError
from pilotage_server.web.formats import moment
from pilotage_server.web.openid import Attempts, Provider, new_attempt
from pilotage_server.web.pages import PageMaker, redirect
from pilotage_server.web.sessions import (
    SCHEMES,
    PageError,
    attempt_of,
    forget_attempt,
    forget_token,
    is_encrypted,
    keep_attempt,
    keep_scheme,
    keep_token,
    own_path,
    read_form,
    token_fault,
    token_of,
)

MOST_EXCHANGES = 4
"""Exchanges with providers at a time: each holds a thread while the provider answers, and others need threads too."""


class Access:
    """Log-in with a token or through a provider, log-out, and the choice of colours."""

    def __init__(self, pages: PageMaker, clock: Clock, providers: Sequence[Provider], attempts: Attempts) -> None:
        self._pages = pages
        self._clock = clock
        self._providers = {provider.name: provider for provider in providers}
        self._attempts = attempts
        self._exchanges = asyncio.Semaphore(MOST_EXCHANGES)

    async def ask(self, request: Request) -> Response:
        """Return the page with the providers and the form for a token.

        A link at another site comes without the cookie, although the visitor may have logged in. The page then loads
        itself once more, as a page of this server, and leads on.
        """
        back = own_path(request.query_params.get("next", "/"))
        if request.headers.get("sec-fetch-site") == "cross-site":
            return self._pages.plain("again.html", request, {"target": back})
        fault = "Your session has ended. Log in again." if token_of(request) else ""
        return self._login_page(request, back, fault)

    async def log_in(self, request: Request) -> Response:
        """Keep the token in the cookie if the server accepts it."""
        try:
            form = await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        token, back = form.one("token").strip(), own_path(form.one("next"))
        try:
            if fault := token_fault(token):
                raise PageError(HTTPStatus.UNAUTHORIZED, fault)
            lifetime_s = await self._lifetime_s(request, token)
        except PageError as error:
            return self._login_page(request, back, error.text, HTTPStatus.UNAUTHORIZED)
        except CallFailedError as failed:
            fault = f"The server does not accept this token: {failed}."
            return self._login_page(request, back, fault, HTTPStatus.UNAUTHORIZED)
        response = redirect(back)
        keep_token(response, token, lifetime_s, is_encrypted=is_encrypted(request))
        return response

    async def begin(self, request: Request) -> Response:
        """Lead the browser to a provider, with a cookie for its way back."""
        back = own_path(request.query_params.get("next", "/"))
        provider = self._providers.get(request.path_params["provider"])
        if provider is None:
            return self._unknown_provider(request)
        attempt = new_attempt(provider.name, back)
        try:
            address = provider.address(attempt)
        except PageError as error:
            return self._login_page(request, back, error.text, error.status)
        response = redirect(address)
        keep_attempt(response, self._attempts.seal(attempt), is_encrypted=provider.is_encrypted)
        return response

    async def end(self, request: Request) -> Response:
        """Take the answer of a provider; the page loads the one that was asked for.

        The answer is no redirect: the browser comes from another site, and would not send the cookie with the token.
        """
        provider = self._providers.get(request.path_params["provider"])
        if provider is None:
            return self._unknown_provider(request)
        attempt = self._attempts.open(attempt_of(request))
        back = attempt.back if attempt else "/"
        try:
            if self._exchanges.locked():
                raise PageError(HTTPStatus.SERVICE_UNAVAILABLE, "Many visitors log in now. Log in again in a moment.")
            async with self._exchanges:
                token = await provider.token(request.query_params, attempt)
            lifetime_s = await self._lifetime_s(request, token)
        except PageError as error:
            response = self._login_page(request, back, error.text, error.status)
        except CallFailedError as failed:
            response = self._login_page(request, back, provider.refusal(failed.problem), HTTPStatus.UNAUTHORIZED)
        else:
            response = self._pages.plain("again.html", request, {"target": back, "back": back})
            keep_token(response, token, lifetime_s, is_encrypted=provider.is_encrypted)
        forget_attempt(response, is_encrypted=provider.is_encrypted)
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the token."""
        try:
            await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        response = redirect("/login")
        forget_token(request, response)
        return response

    async def choose_colours(self, request: Request) -> Response:
        """Keep the colour scheme."""
        try:
            form = await read_form(request)
        except PageError as error:
            return self._pages.fault(request, error)
        response, scheme = redirect(own_path(form.one("back"))), form.one("scheme")
        if scheme in SCHEMES:
            keep_scheme(request, response, scheme)
        return response

    async def _lifetime_s(self, request: Request, token: str) -> float:
        """Return how long a token is valid; raises CallFailedError if the server does not accept it."""
        identity = await self._pages.calls_with(request, token)(
            "IdentityService/WhoAmI", identity_service_pb2.WhoAmIRequest()
        )
        expires = moment(identity.expires)
        return (expires - self._clock()).total_seconds() if expires else 0.0

    def _login_page(self, request: Request, back: str, fault: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
        """Return the log-in page. Its own address may have the code of a provider, which the page must not repeat."""
        links = [(provider.title, provider.link(back)) for provider in self._providers.values()]
        shown = {"next": back, "fault": fault, "providers": links, "back": f"/login?next={quote(back)}"}
        return self._pages.plain("login.html", request, shown, status)

    def _unknown_provider(self, request: Request) -> Response:
        return self._pages.error(request, HTTPStatus.NOT_FOUND, "there is no such way to log in; open the log-in page")
