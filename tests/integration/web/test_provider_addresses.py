"""Log-in through an OpenID provider, without a browser: addresses, cookies and the secret of the client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pilotage_server.web.login import MOST_EXCHANGES
from support.http_client import HttpAnswer, HttpClient
from support.issuer import METADATA, json_answer
from support.processes import until
from support.provider import RunningProvider, running_provider
from support.server import RunningServer, running_server

pytestmark = pytest.mark.process


def settings_of(provider: RunningProvider, web_address: str = "https://pilotage.example.org") -> dict[str, Any]:
    """Return the settings of a server that is a public client of a provider."""
    issuers = [provider.setting(login={"title": "IAM", "client_id": "public"}).model_dump(mode="json")]
    return {"http_listen": "127.0.0.1:0", "web_address": web_address, "issuers": issuers}


@pytest.fixture
def provider() -> Iterator[RunningProvider]:
    with running_provider() as found:
        yield found


async def begun(http: HttpClient, query: str = "") -> HttpAnswer:
    """Begin a log-in when the server has read the addresses of the provider."""
    path = f"/login/iam{query}"
    await until(lambda: b"has not read the addresses of IAM yet" not in http.call("GET", path).content)
    return http.call("GET", path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with (
        running_provider() as provider,
        running_server(tmp_path_factory.mktemp("server") / "data", **settings_of(provider)) as server,
    ):
        yield server


async def test_cookie_is_secure_behind_a_proxy_with_https(server: RunningServer) -> None:
    answer = await begun(HttpClient(server.http_address), "?next=/jobs")
    assert "; Secure" in answer.headers["set-cookie"]
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query["redirect_uri"] == ["https://pilotage.example.org/login/iam/callback"]


def test_unknown_provider_is_not_found(server: RunningServer) -> None:
    http = HttpClient(server.http_address)
    for path in ("/login/none", "/login/none/callback?code=x&state=y"):
        assert http.call("GET", path).status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("back", ["https://elsewhere.example.org/", "//elsewhere.example.org/", "/\\elsewhere", "x"])
def test_link_to_a_provider_leads_to_no_other_site(server: RunningServer, back: str) -> None:
    page = HttpClient(server.http_address).call("GET", f"/login?{urlencode({'next': back})}").content.decode()
    assert 'href="https://pilotage.example.org/login/iam?next=/"' in page


async def test_provider_without_usable_addresses_is_explained(provider: RunningProvider, tmp_path: Path) -> None:
    addresses = {"jwks_uri": f"{provider.url}jwks", "authorization_endpoint": "javascript:alert(1)"}
    provider.answers[METADATA] = json_answer({"issuer": provider.url, **addresses})
    with running_server(tmp_path / "data", **settings_of(provider)) as server:
        answer = await begun(HttpClient(server.http_address))
        assert answer.status == HTTPStatus.BAD_GATEWAY
        assert b"The authorization_endpoint of IAM cannot be used" in answer.content


async def test_slow_provider_holds_few_exchanges(provider: RunningProvider, tmp_path: Path) -> None:
    provider.released.clear()
    with running_server(tmp_path / "data", **settings_of(provider)) as server:
        http = HttpClient(server.http_address)
        answer = await begun(http)
        (state,) = parse_qs(urlsplit(answer.headers["location"]).query)["state"]
        cookie = answer.headers["set-cookie"].partition(";")[0]

        def end() -> HttpAnswer:
            return http.call("GET", f"/login/iam/callback?{urlencode({'state': state, 'code': 'x'})}", cookie=cookie)

        with ThreadPoolExecutor(MOST_EXCHANGES) as callers:
            held = [callers.submit(end) for _ in range(MOST_EXCHANGES)]
            await until(lambda: provider.exchanges == MOST_EXCHANGES)
            refused = end()
            provider.released.set()
            ended = [each.result() for each in held]
        assert refused.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert b"Many visitors log in now" in refused.content
        assert [each.status for each in (*ended, end())] == [HTTPStatus.UNAUTHORIZED] * (MOST_EXCHANGES + 1)


@pytest.mark.parametrize(
    ("mode", "content", "why"),
    [(0o644, b"x", "is open to everybody (mode 644)"), (0o600, b"\n", "is empty"), (None, b"", "cannot be used")],
    ids=["open", "empty", "missing"],
)
def test_server_does_not_start_with_a_bad_secret(tmp_path: Path, mode: int | None, content: bytes, why: str) -> None:
    secret = tmp_path / "secret"
    if mode is not None:
        secret.write_bytes(content)
        secret.chmod(mode)
    settings = settings_of(RunningProvider())
    settings["issuers"][0]["login"]["client_secret_file"] = str(secret)
    server = RunningServer(tmp_path / "data", **settings)
    assert f"the client secret {secret} " in (line := server.start_fails())
    assert why in line
