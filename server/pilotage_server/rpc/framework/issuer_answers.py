"""The answers of an outside issuer over HTTPS: bounded in size and time, and never redirected.

Plain HTTP is accepted from loopback only, and only if the issuer itself is there. Reading blocks, so it belongs in a
thread.

Source: RFC 6749, section 5.2 (errors of the token endpoint).
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlencode, urlsplit

from pilotage.clock import BootClock
from pilotage.errors import WorldError
from pilotage.rpc.channel import is_loopback
from pilotage_server.settings import IssuerSetting

MAX_ANSWER_BYTES = 256 * 1024
LONGEST_READ_S = 10.0
"""Bounds of an issuer's answers: size of each, and time for all that one reader reads."""

_ERROR_CODE = re.compile(r"[a-z_]{1,60}", re.ASCII)


class IssuerRefusedError(WorldError):
    """The issuer refuses a form; `code` is its error of OAuth, such as invalid_grant."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the issuer answers {code}", transient=False)
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: the answer of another host would be trusted like the issuer's."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def check_address(issuer: IssuerSetting, url: str) -> None:
    """Raise WorldError unless the URL is one of HTTPS, or of loopback if the issuer itself is there."""
    parts = urlsplit(url)
    is_local = issuer.url.startswith("http://") and parts.scheme == "http" and is_loopback(parts.hostname or "")
    if parts.scheme != "https" and not is_local:
        raise WorldError(f"{url} is no https URL", transient=True)


class IssuerReader:
    """Reads JSON objects from an issuer, within `LONGEST_READ_S` for all of them."""

    def __init__(self, issuer: IssuerSetting, boot_clock: BootClock) -> None:
        self._issuer = issuer
        self._boot_clock = boot_clock
        self._until_s = boot_clock() + LONGEST_READ_S
        try:
            tls = ssl.create_default_context(cafile=issuer.ca_file)
        except OSError as error:
            raise WorldError(f"{issuer.ca_file} cannot be used: {error}", transient=True) from error
        proxies = [urllib.request.ProxyHandler({})] if issuer.url.startswith("http://") else []
        self._opener = urllib.request.build_opener(_NoRedirects(), urllib.request.HTTPSHandler(context=tls), *proxies)

    def get(self, url: str) -> Mapping[str, Any]:
        """Return the JSON object at `url`; raises WorldError."""
        return self._read(url, None, {})

    def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the JSON object that answers a form.

        Raises
        ------
        IssuerRefusedError
            The issuer answers with an error of OAuth.
        WorldError
            It does not answer, or with something else.
        """
        return self._read(url, urlencode(form).encode(), headers)

    def _read(self, url: str, form: bytes | None, headers: Mapping[str, str]) -> Mapping[str, Any]:
        check_address(self._issuer, url)
        headers = {"Accept": "application/json", **headers}
        request = urllib.request.Request(url, form, headers)  # noqa: S310 - checked
        try:
            with closing(self._opener.open(request, timeout=self._time_left_s())) as response:
                found = json.loads(self._content(response))
        except urllib.error.HTTPError as error:
            with closing(error):
                code = "" if form is None else self._oauth_error(error)
            if code:
                raise IssuerRefusedError(code) from error
            raise WorldError(f"{url} answers {error.code} {error.reason}", transient=True) from error
        except (OSError, http.client.HTTPException) as error:
            raise WorldError(f"{url} cannot be read: {error}", transient=True) from error
        except (ValueError, RecursionError) as error:
            raise WorldError(f"{url} has no JSON: {error}", transient=True) from error
        if not isinstance(found, dict):
            raise WorldError(f"{url} has no JSON object", transient=True)
        return found

    def _oauth_error(self, response: Any) -> str:
        """Return the code in an answer with an error, "" = it has none. Its description may repeat secrets."""
        try:
            code = json.loads(self._content(response))["error"]
        except (OSError, http.client.HTTPException, ValueError, RecursionError, KeyError, TypeError):
            return ""
        return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""

    def _content(self, response: Any) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := response.read1(65536):  # returns what has arrived, so that the time is looked at often
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise WorldError(f"its answer is larger than {MAX_ANSWER_BYTES} bytes", transient=True)
            self._time_left_s()
        return b"".join(parts)

    def _time_left_s(self) -> float:
        left_s = self._until_s - self._boot_clock()
        if left_s <= 0:
            raise WorldError(f"it did not answer within {LONGEST_READ_S:.0f} s", transient=True)
        return left_s
