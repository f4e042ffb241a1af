"""The web page in a browser: log-in, jobs, live output, and pages for all visitors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from pilotage_server.core.identity import Role
from support.browser import PHONE, WebVisitor, a_browser
from support.http_client import HttpClient
from support.process_grid import ProcessGrid, a_process_grid
from support.server import VO

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
PATHS = ("/", "/jobs", "/jobs?name=x*", "/jobs/1", "/jobs/2", "/pools", "/sites", "/sites/SITE", "/login", "/jobs/999")
FORM = {"Content_Type": "application/x-www-form-urlencoded"}


@dataclass
class WebGrid:
    """A grid with a browser; jobs 1 (waits, with markup as its name) and 2 (held, needs a queue that is not there)."""

    jobs: ProcessGrid
    browser: Browser

    @property
    def address(self) -> str:
        return self.jobs.server.http_address

    def token(self, *roles: Role, owner: str = "olga") -> str:
        return self.jobs.server.token(*roles, owner=owner, vo=VO)

    async def visitor(self, *roles: Role, owner: str = "olga", **options: object) -> WebVisitor:
        visitor = await WebVisitor.arrive(self.browser, self.address, **options)
        await visitor.log_in(self.token(*roles, owner=owner))
        return visitor

    def http(self, token: str = "") -> HttpClient:
        return HttpClient(self.address, token)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grid(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WebGrid]:
    async with a_browser() as browser:
        with a_process_grid(tmp_path_factory.mktemp("web"), http_listen="127.0.0.1:0") as jobs:
            grid = WebGrid(jobs, browser)
            needs = {"requirements": {"Memory": {"integer": 64000}}, "has_requirements": True}
            descriptions = [
                {"executable": "/bin/true", "name": SCRIPT, "arguments": IMAGE},
                {"executable": "/bin/true", "name": "held", "hold": True, **needs},
            ]
            owner = grid.http(jobs.server.token(owner="alice", vo=VO))
            owner.result("POST", "/v1/jobs", {"descriptions": descriptions})
            yield grid


async def row_of(page: Page, name: str) -> str:
    return await page.get_by_role("row").filter(has_text=name).inner_text()


async def test_visitor_logs_in_and_out(grid: WebGrid) -> None:
    visitor = await WebVisitor.arrive(grid.browser, grid.address)
    page = await visitor.open("/jobs?state=HELD")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    await page.get_by_label("Token").fill("no.token.at-all")
    await page.get_by_label("Token").press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("The server does not accept this token")
    await page.get_by_label("Token").fill(grid.token(Role.OPERATOR))
    await page.get_by_label("Token").press("Enter")
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.url.endswith("/jobs?state=HELD"), "the page that was asked for first"
    (cookie,) = await visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert await visitor.context.cookies() == []
    assert visitor.faults == []


async def test_jobs_are_filtered_held_and_released(grid: WebGrid) -> None:
    first, _ = (grid.jobs.submit(name=name) for name in ("sim-1", "sim-2"))
    grid.jobs.submit(name="other")
    visitor = await grid.visitor(Role.OPERATOR)
    page = await visitor.open("/jobs")
    await page.get_by_label("Name").fill("sim-*")
    await page.get_by_label("Name").press("Enter")
    await expect(page.get_by_role("row")).to_have_count(3)
    await page.get_by_label(f"Mark job {first}").check()
    await page.get_by_role("button", name="Hold…").click()
    await expect(page.get_by_role("heading", name="Hold 1 job?")).to_be_visible()
    await page.get_by_label("Reason").fill("disk is full")
    await page.get_by_role("button", name="Hold 1 job").click()
    await expect(page.get_by_role("status")).to_have_text("1 job is changed.")
    await page.get_by_role("link", name="Back").click()
    assert "disk is full" in await row_of(page, "sim-1")
    assert "WAITING" in await row_of(page, "sim-2")

    await page.get_by_label("Mark all jobs of this page").check()
    await page.get_by_role("button", name="Release…").click()
    await expect(page.get_by_text("1 of the marked jobs cannot be changed so")).to_be_visible()
    await page.get_by_role("button", name="Release 1 job").click()
    await expect(page.get_by_role("status")).to_have_text("1 job is changed.")
    await page.get_by_role("link", name="Back").click()
    await expect(page.get_by_role("row").filter(has_text="sim-2")).to_contain_text("WAITING")
    assert grid.jobs.causes(first)[-2:] == ["held", "released"]

    await visitor.open("/jobs?owner=alice")
    await page.get_by_label("held", exact=True).check()
    await page.wait_for_url("**state=HELD**")
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.get_by_label("all that match the filter").check()
    await page.get_by_role("button", name="Remove…").click()
    await page.get_by_role("link", name="Back without a change").click()
    await expect(page.get_by_role("row").filter(has_text="held")).to_contain_text("HELD")
    assert visitor.faults == []


async def test_filter_that_cannot_be_read_stays_in_its_form(grid: WebGrid) -> None:
    visitor = await grid.visitor(Role.OPERATOR)
    page = await visitor.open("/jobs")
    where = page.get_by_label("Where")
    await where.fill("JobPrio > ((")
    await where.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("where: ( is not closed")
    await expect(where).to_have_value("JobPrio > ((")
    await expect(page.get_by_text("No job matches")).to_have_count(0)
    await page.reload()
    await expect(where).to_have_value("JobPrio > ((")
    await where.fill("JobPrio > 5")
    await where.press("Enter")
    await expect(
        page.get_by_text(re.compile("No job matches|None of the jobs looked at so far matches"))
    ).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert visitor.faults == []


async def test_output_of_a_running_job_appears_and_is_text(grid: WebGrid) -> None:
    go_on = grid.jobs.folder / "go-on"
    script = f'echo "{IMAGE}"; until [ -e {go_on} ]; do sleep 0.05; done; echo second'
    visitor = await grid.visitor(owner="alice")
    job_id = grid.jobs.submit(script=script, name="talks")
    page = await visitor.open(f"/jobs/{job_id}")
    state = page.locator("#state .lead")
    await expect(state).to_contain_text("WAITING")
    shown = "getComputedStyle(document.querySelector('#stream'), '::before').content"
    assert await page.evaluate(shown) == '"Nothing is printed yet."'
    async with grid.jobs.pilot():
        await expect(state).to_contain_text("RUNNING", timeout=30_000)
        await expect(page.locator("#stream")).to_have_text(f"{IMAGE}\n", timeout=30_000)
        assert await page.evaluate(shown) == "none"
        go_on.touch()
        await expect(page.locator("#stream")).to_contain_text("second", timeout=30_000)
        await expect(state).to_contain_text("DONE", timeout=30_000)
    await expect(page.get_by_role("link", name="stdout")).to_be_visible()
    assert await page.locator("#stream img").count() == 0
    await page.reload()
    assert await page.locator("#stream").inner_text() == f"{IMAGE}\nsecond\n"
    async with page.expect_download() as started:
        await page.get_by_role("link", name="stdout").click()
    download = await started.value
    assert (download.suggested_filename, (await download.path()).read_text()) == ("stdout", f"{IMAGE}\nsecond\n")
    assert visitor.faults == []


async def test_markup_of_users_is_text(grid: WebGrid) -> None:
    visitor = await grid.visitor(Role.OPERATOR)
    for path in ("/jobs", "/jobs/1"):
        page = await visitor.open(path)
        await expect(page.get_by_text(SCRIPT).first).to_be_visible()
    await expect(page.get_by_text(IMAGE).first).to_be_visible()
    page = await visitor.open(f"/jobs?name={SCRIPT}&owner={IMAGE}")
    assert await page.get_by_label("Owner").input_value() == IMAGE
    assert await page.locator("main script, main img").count() == 0
    assert visitor.faults == []


async def test_policy_stops_what_markup_would_run(grid: WebGrid) -> None:
    visitor = await grid.visitor()
    page = await visitor.open("/jobs")
    await page.evaluate("document.querySelector('h1').innerHTML = '<img src=x onerror=alert(1)>'")
    await expect(page.locator("h1 img")).to_have_count(1)
    await page.evaluate("new Promise(requestAnimationFrame)")
    (fault,) = visitor.faults
    assert "Content Security Policy" in fault


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_have_no_barriers_and_fit_a_phone(grid: WebGrid, scheme: str) -> None:
    visitor = await grid.visitor(Role.OPERATOR, color_scheme=scheme, viewport=PHONE)
    for path in PATHS:
        page = await visitor.open(path)
        assert await visitor.barriers(colours_only=scheme == "dark") == [], path
        assert await visitor.overflow() == 0, path
    await visitor.open("/jobs")
    await page.get_by_role("button", name="dark" if scheme == "light" else "light").click()
    await expect(page.locator("html")).to_have_attribute("data-scheme", "dark" if scheme == "light" else "light")
    assert await visitor.barriers(colours_only=True) == []
    assert visitor.faults == []


async def test_page_is_used_by_keyboard(grid: WebGrid) -> None:
    visitor = await grid.visitor(owner="alice")
    page, keys = visitor.page, visitor.page.keyboard
    await keys.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for name in ("Pilotage", "Overview", "Jobs"):
        await keys.press("Tab")
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.evaluate(outline) == "solid"
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    mark = page.get_by_label("Mark job 2", exact=True)
    await mark.focus()
    await keys.press("Space")
    await page.get_by_role("button", name="Remove…").focus()
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name="Remove 1 job?")).to_be_visible()
    await expect(page.get_by_label("Reason")).to_be_focused()


async def test_visitor_sees_what_the_role_may_do(grid: WebGrid) -> None:
    operator, user = await grid.visitor(Role.OPERATOR), await grid.visitor(owner="bob")
    for visitor, shown in ((operator, 1), (user, 0)):
        page = await visitor.open("/jobs")
        await expect(page.get_by_label("Owner")).to_have_count(shown)
        await expect(page.get_by_role("row").filter(has_text="held")).to_have_count(shown)
    page = await user.open("/jobs/1")
    await expect(page.get_by_role("alert")).to_have_text("there is no job 1")
    agent = await WebVisitor.arrive(grid.browser, grid.address)
    page = await agent.log_in(grid.token(Role.DRAINER))
    await expect(page.get_by_role("alert")).to_contain_text("do not permit this page")


async def test_forms_of_other_sites_are_refused(grid: WebGrid) -> None:
    http, token = grid.http(), grid.token(Role.OPERATOR)
    own = {"Origin": f"http://{grid.address}", **FORM}
    logged_in = http.call("POST", "/login", f"token={token}&next=//evil.example".encode(), **own)
    assert (logged_in.status, logged_in.headers["location"]) == (HTTPStatus.SEE_OTHER, "/")
    cookie = {"Cookie": logged_in.headers["set-cookie"].partition(";")[0], **FORM}
    change = b"change=hold&id=1&request_id=x&back=/jobs"
    for foreign in ({"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "http://evil"}, {}):
        answer = http.call("POST", "/jobs/changed", change, **cookie, **foreign)
        assert answer.status == HTTPStatus.FORBIDDEN, foreign
    assert "held" not in grid.jobs.causes(1)
    for content, status in ((b"change=hold", 400), (b"change=eat&id=1", 400), (b"change=hold&id=x", 400)):
        assert http.call("POST", "/jobs/change", content, **cookie, Origin=own["Origin"]).status == status


async def test_strange_addresses_and_forms_are_refused(grid: WebGrid) -> None:
    own = {"Sec_Fetch_Site": "same-origin", **FORM}
    logged_in = grid.http().call("POST", "/login", f"token={grid.token(Role.OPERATOR)}".encode(), **own)
    own["Cookie"] = logged_in.headers["set-cookie"].partition(";")[0]
    for path, status in (
        ("/jobs/99999999999999999999", HTTPStatus.NOT_FOUND),
        ("/workflows?page=garbage", HTTPStatus.BAD_REQUEST),
        ("/jobs?page=garbage", HTTPStatus.OK),
        ("/jobs?name=%00", HTTPStatus.OK),
        ("/jobs?owner=%ed%a0%80&state=HELD&since=1d&ids=1-9", HTTPStatus.OK),
        ("/jobs?state=NONE", HTTPStatus.BAD_REQUEST),
        ("/jobs?since=9y", HTTPStatus.BAD_REQUEST),
        ("/jobs?ids=9-1", HTTPStatus.BAD_REQUEST),
        ("/slots?kind=round", HTTPStatus.BAD_REQUEST),
        ("/shares?period=9y", HTTPStatus.BAD_REQUEST),
        ("/audit?since=9y", HTTPStatus.BAD_REQUEST),
        ("/sites/%00", HTTPStatus.BAD_REQUEST),
        ("/sites/%ff", HTTPStatus.NOT_FOUND),
        ("/jobs/1/files/xyz", HTTPStatus.BAD_REQUEST),
        ("/static/%2e%2e/pages.py", HTTPStatus.NOT_FOUND),
    ):
        assert grid.http().call("GET", path, **own).status == status, path
    for path, content, status in (
        ("/login", b"token=%ff%0a", HTTPStatus.UNAUTHORIZED),
        ("/login", b"token=" + b"a" * 5000, HTTPStatus.UNAUTHORIZED),
        ("/jobs/change", b"\xff=&%ff=%00", HTTPStatus.BAD_REQUEST),
        ("/jobs/change", b"x" * 2_000_000, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        ("/jobs/changed", b"change=hold&id=1&request_id=%00", HTTPStatus.BAD_REQUEST),
        ("/jobs/change", b"change=remove&all=1&ids=abc", HTTPStatus.BAD_REQUEST),
        ("/jobs/change", b"change=remove&all=1&state=NONE", HTTPStatus.BAD_REQUEST),
    ):
        assert grid.http().call("POST", path, content, **own).status == status, content[:40]


async def test_unknown_page_leads_to_the_overview(grid: WebGrid) -> None:
    visitor = await grid.visitor()
    for path in ("/nonsense", "/jobs/abc", "/v1/nonsense"):
        page = await visitor.open(path)
        await expect(page.get_by_role("alert")).to_have_text("there is no such page")
        await page.get_by_role("link", name="Overview").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        problem = grid.http().call("GET", path)
        assert problem.headers["content-type"] == "application/problem+json", "programs do not ask for HTML"
    assert visitor.faults == []


async def test_part_of_a_page_gives_way_to_the_log_in_page(grid: WebGrid) -> None:
    headers = grid.http().call("GET", "/jobs?name=x", HX_Request="true").headers
    assert headers["hx-redirect"] == "/jobs?name=x"


async def test_every_answer_has_the_headers_that_protect(grid: WebGrid) -> None:
    for path in (*PATHS, "/static/page.css", "/static/vendor/htmx.min.js"):
        headers = grid.http().call("GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
