"""Log-in through an OpenID provider, in a browser: the whole way, and everything that must not lead to a session.

The page is at localhost and the provider at 127.0.0.1, which are different sites for a browser, as in practice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from pilotage import clock
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.browser import PHONE, WebVisitor, a_browser
from support.http_client import HttpClient
from support.issuer import FORGERIES
from support.processes import free_port, until
from support.provider import OpenIdClient, RunningProvider, running_provider
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, a_job, submission

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

SECRET = "s3cret:with colon+plus"


@dataclass
class LoginScene:
    """A server with two providers: `iam` knows it by a secret, `lab` is for a public client and maps groups to VOs."""

    server: RunningServer
    address: str
    iam: RunningProvider
    lab: RunningProvider
    browser: Browser

    async def visitor(self, **options: Any) -> WebVisitor:
        """Return a visitor who has not logged in."""
        return await WebVisitor.arrive(self.browser, self.address, **options)

    async def begun(self, visitor: WebVisitor, path: str = "/login", title: str = "IAM of CMS") -> dict[str, str]:
        """Go to the form of a provider; returns what the server has requested there."""
        page = await visitor.open(path)
        await page.get_by_role("link", name=f"Log in with {title}").click()
        await expect(page.get_by_role("heading", name="Log in at the provider")).to_be_visible()
        return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}

    async def agree(self, page: Page, user: str = "alice", answer: str = "Agree") -> None:
        """Fill in the form of a provider."""
        await page.get_by_label("User").fill(user)
        await page.get_by_role("button", name=answer).click()

    def callback(self, name: str = "iam", **query: str) -> str:
        """Return the path to which a provider leads back."""
        return f"/login/{name}/callback?{urlencode(query)}"


@pytest.fixture(scope="module")
def providers() -> Iterator[tuple[RunningProvider, RunningProvider]]:
    with running_provider() as iam, running_provider() as lab:
        yield iam, lab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    providers: tuple[RunningProvider, RunningProvider], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LoginScene]:
    iam, lab = providers
    folder = tmp_path_factory.mktemp("login")
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    port = free_port()
    address = f"localhost:{port}"
    iam_login = {"title": "IAM of CMS", "client_id": "pilotage page", "client_secret_file": str(secret)}
    lab_login = {"title": "Lab <b>7</b>", "client_id": "public", "scopes": ["openid"]}
    issuers = [
        iam.setting(login=iam_login, unknown_key_every_s=1).model_dump(mode="json"),
        lab.setting(
            name="lab", login=lab_login, vo=None, vos={"/lab": "lab"}, needs_scopes=False, unknown_key_every_s=1
        ).model_dump(mode="json"),
    ]
    with ExitStack() as stack:
        server = stack.enter_context(
            running_server(
                folder / "data",
                http_listen=f"127.0.0.1:{port}",
                web_address=f"http://{address}",
                issuers=issuers,
            )
        )
        grid = WireGrid(server)
        stack.callback(grid.close)
        grid.put_tree()
        http = HttpClient(server.http_address)
        await until(lambda: all(http.call("GET", f"/login/{name}").status == 303 for name in ("iam", "lab")))
        for user in ("alice", "bob"):
            jobs = JobServiceStub(grid.channel(iam.token(clock.now(), sub=user)))
            jobs.SubmitJobs(submission([replace(a_job(), name=f"job-of-{user}")]))
        async with a_browser() as browser:
            yield LoginScene(server, address, iam, lab, browser)


@pytest.fixture(autouse=True)
def usual_providers(scene: LoginScene) -> Iterator[None]:
    """Let each test begin with providers that do what they should, and end without a secret in the server's log."""
    for provider, name, client_id, secret in (
        (scene.iam, "iam", "pilotage page", SECRET),
        (scene.lab, "lab", "public", None),
    ):
        provider.clients = {client_id: OpenIdClient(f"http://{scene.address}/login/{name}/callback", secret)}
        provider.id_claims, provider.access_claims, provider.id_forgery = {}, {}, ""
    yield
    assert SECRET not in scene.server.log()


async def put_cookies(visitor: WebVisitor, cookies: Sequence[Any]) -> None:
    """Give the browser cookies as it had them."""
    await visitor.context.add_cookies(list(cookies))


async def refused(page: Page, text: str) -> None:
    """Check that the log-in page says why a log-in has failed, offers another one, and repeats no secret."""
    await expect(page.get_by_role("alert")).to_contain_text(text)
    await expect(page.get_by_role("link", name="Log in with IAM of CMS")).to_be_visible()
    query = parse_qs(urlsplit(page.url).query)
    content = await page.content()
    assert SECRET not in content
    assert all(value not in content for value in (*query.get("code", []), *query.get("state", [])))
    names = [cookie["name"] for cookie in await page.context.cookies()]
    assert names == [], "neither a session nor a log-in that could go on"


@pytest.mark.parametrize("viewport", [None, PHONE], ids=["desktop", "phone"])
async def test_visitor_logs_in_through_a_provider(scene: LoginScene, viewport: dict[str, int] | None) -> None:
    visitor = await scene.visitor(**({"viewport": viewport} if viewport else {}))
    await scene.begun(visitor, "/jobs?state=WAITING")
    page, began = visitor.page, clock.now().timestamp()
    await scene.agree(page)
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert urlsplit(page.url)[1:4] == (scene.address, "/jobs", "state=WAITING"), "the page that was asked for first"
    await expect(page.get_by_text("job-of-alice")).to_be_visible()
    await expect(page.get_by_text("job-of-bob")).to_have_count(0)
    (cookie,) = await visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert began + 1100 < cookie["expires"] < began + 1300, "the session ends with the token"
    await page.go_back()
    assert "code=" not in page.url, "the address with the code is not in the history"
    await visitor.open("/")
    await expect(page.get_by_text("alice@iam")).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", name="Log in", exact=True)).to_be_visible()
    assert await visitor.context.cookies() == []
    assert visitor.faults == []


async def test_public_client_logs_in_with_groups(scene: LoginScene) -> None:
    scene.lab.access_claims = {"wlcg.groups": ["/lab/hut"]}
    visitor = await scene.visitor()
    asked = await scene.begun(visitor, title="Lab <b>7</b>")
    assert asked["scope"] == "openid"
    await scene.agree(visitor.page, "carol")
    await expect(visitor.page.get_by_text("carol@lab")).to_be_visible()
    assert visitor.faults == []


async def test_session_that_was_ended_begins_again_at_the_same_page(scene: LoginScene) -> None:
    scene.iam.access_claims = {"jti": "stolen"}
    visitor = await scene.visitor()
    await scene.begun(visitor, "/jobs?name=job-*")
    await scene.agree(visitor.page)
    await expect(visitor.page.get_by_role("heading", name="Jobs")).to_be_visible()
    with Client(scene.server.address, scene.server.token(Role.OPERATOR)) as client:
        client.revoke_token_id("stolen", issuer=scene.iam.url, reason="stolen")
    scene.iam.access_claims = {}
    page = await visitor.open("/jobs?name=job-*")
    await expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    await page.get_by_role("link", name="Log in with IAM of CMS").click()
    await scene.agree(page)
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.url.endswith("/jobs?name=job-*")


async def test_refusal_at_the_provider_is_explained(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    await scene.begun(visitor, "/jobs")
    await scene.agree(visitor.page, answer="Refuse")
    await refused(visitor.page, "The log-in was refused at IAM of CMS")
    await scene.begun(visitor)
    await scene.agree(visitor.page, "mallory")
    await refused(visitor.page, "invalid_scope: <script>alert(1)</script>")
    assert visitor.faults == []


async def test_forged_and_replayed_answers_are_refused(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    asked = await scene.begun(visitor)
    code = scene.iam.code("eve", asked)
    await visitor.open(scene.callback(code=code, state="forgéd"))
    await refused(visitor.page, "This answer belongs to another log-in")
    await visitor.open(scene.callback(code=code, state=asked["state"]))
    await refused(visitor.page, "This log-in has ended")

    asked = await scene.begun(visitor)
    await visitor.open(scene.callback("lab", code=code, state=asked["state"]))
    await refused(visitor.page, "This answer belongs to another log-in")
    assert code in scene.iam.grants, "no code of a forged answer was sent to the provider"


async def test_code_of_another_log_in_is_refused(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    other = await scene.begun(visitor)
    code = scene.iam.code("eve", other)
    asked = await scene.begun(visitor)
    await visitor.open(scene.callback(code=code, state=asked["state"]))
    await refused(visitor.page, "does not accept the answer that your browser brought: it was used before")
    assert code not in scene.iam.grants

    asked = await scene.begun(visitor)
    code = scene.iam.code("alice", asked)
    answer = scene.callback(code=code, state=asked["state"])
    cookies = await visitor.context.cookies(f"http://{scene.address}/login")
    await visitor.open(answer)
    await expect(visitor.page.get_by_text("alice@iam")).to_be_visible()
    await visitor.context.clear_cookies()
    await put_cookies(visitor, cookies)
    await visitor.open(answer)
    await refused(visitor.page, "it was used before")
    assert code not in scene.server.log()


async def test_cookie_of_another_server_is_refused(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    asked = await scene.begun(visitor)
    (cookie,) = await visitor.context.cookies(f"http://{scene.address}/login")
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("pilotage_login", True, "Lax")
    for text in ("x", cookie["value"][:-4] + "AAAA", "e30." + cookie["value"].partition(".")[2]):
        await put_cookies(visitor, [{**cookie, "value": text}])
        await visitor.open(scene.callback(code=scene.iam.code("eve", asked), state=asked["state"]))
        await refused(visitor.page, "This log-in has ended")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"nonce": "another"}, "its nonce is that of another log-in"),
        ({"nonce": None}, "nonce"),
        ({"aud": "another client"}, "Audience"),
        ({"aud": ["pilotage page", "other"], "azp": "other"}, "made for another client"),
        ({"iss": "https://elsewhere.example.org/"}, "issuer"),
        ({"exp": 1_700_000_000}, "it has expired"),
    ],
    ids=["nonce", "no-nonce", "audience", "party", "issuer", "expired"],
)
async def test_id_token_for_another_log_in_is_refused(scene: LoginScene, claims: dict[str, Any], why: str) -> None:
    scene.iam.id_claims = claims
    visitor = await scene.visitor()
    await scene.begun(visitor)
    await scene.agree(visitor.page)
    await refused(visitor.page, "The ID token of IAM of CMS is not valid for this log-in")
    await refused(visitor.page, why)


@pytest.mark.parametrize("kind", FORGERIES)
async def test_forged_id_token_is_refused(scene: LoginScene, kind: str) -> None:
    scene.iam.id_forgery = kind
    visitor = await scene.visitor()
    await scene.begun(visitor)
    await scene.agree(visitor.page)
    await refused(visitor.page, "The ID token of IAM of CMS is not valid for this log-in")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://elsewhere.example.org/"}, "'https://elsewhere.example.org/' is not trusted here"),
        ({"wlcg.groups": ["/other"]}, "the token has no VO here"),
        ({"aud": "public"}, "Audience doesn't match"),
        ({"wlcg.groups": [f"/lab/{number:060}" for number in range(60)]}, "Ask for one with fewer groups"),
    ],
    ids=["issuer", "vo", "audience", "long"],
)
async def test_access_token_that_is_not_accepted_is_explained(
    scene: LoginScene, claims: dict[str, Any], why: str
) -> None:
    scene.lab.access_claims = {"wlcg.groups": ["/lab"], **claims}
    visitor = await scene.visitor()
    await scene.begun(visitor, title="Lab <b>7</b>")
    await scene.agree(visitor.page)
    await refused(visitor.page, why)
    assert visitor.faults == []


async def test_wrong_secret_and_silent_provider_are_explained(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    client = scene.iam.clients["pilotage page"]
    scene.iam.clients = {"pilotage page": OpenIdClient(client.redirect_uri, "another")}
    await scene.begun(visitor)
    await scene.agree(visitor.page)
    await refused(visitor.page, "does not accept this server as its client (invalid_client)")

    asked = await scene.begun(visitor)
    scene.iam.stop()
    try:
        await visitor.open(scene.callback(code="c0de", state=asked["state"]))
        await refused(visitor.page, "has not completed the log-in")
    finally:
        scene.iam.start()


async def test_log_in_leads_to_no_other_site(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    page = await visitor.open(f"/login/iam?{urlencode({'next': '//elsewhere.example.org/'})}")
    await scene.agree(page)
    await expect(page.get_by_text("alice@iam")).to_be_visible()
    assert page.url == f"http://{scene.address}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_log_in_has_no_barriers_and_fits_a_phone(scene: LoginScene, scheme: str) -> None:
    visitor = await scene.visitor(color_scheme=scheme, viewport=PHONE)
    await visitor.open("/login")
    for _ in range(2):
        assert await visitor.barriers(colours_only=scheme == "dark") == []
        assert await visitor.overflow() == 0
        await visitor.open(scene.callback(code="x", state="y"))
        await expect(visitor.page.get_by_role("alert")).to_be_visible()


async def test_link_is_used_by_keyboard(scene: LoginScene) -> None:
    visitor = await scene.visitor()
    page = await visitor.open("/login")
    link = page.get_by_role("link", name="Log in with IAM of CMS")
    for _ in range(10):
        await page.keyboard.press("Tab")
        if await link.evaluate("each => each === document.activeElement"):
            break
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Log in at the provider")).to_be_visible()
