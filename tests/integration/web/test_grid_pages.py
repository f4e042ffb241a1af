"""The pages of health, shares and routes in a browser."""

from __future__ import annotations

from functools import partial

import pytest
from playwright.async_api import expect

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage_server.core.accounting.job_counts import JobCounts, minute_of
from pilotage_server.core.identity import Role
from pilotage_server.storage.database.engine import Database, closing
from support.browser import PHONE
from support.server import RunningServer
from support.web_scene import WebScene, keep_counts, past_usage, put_routes
from support.wire_grid import submission

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<script>alert(1)</script>"
PATHS = ("/health", "/shares", "/shares?period=7d", "/routes")


@pytest.fixture(scope="module")
def shared(scene: WebScene, server: RunningServer) -> WebScene:
    """The scene with a waiting job of alice, past use, and a router."""
    scene.grid.submit(JobDescription("/bin/true"))
    past_usage(server, scene.grid.vo)
    put_routes(scene.grid)
    return scene


async def test_job_says_why_it_waits_and_which_change_opens_queues(shared: WebScene) -> None:
    description = JobDescription("/bin/true", requirements={"Memory": 64_000})
    (job_id,) = shared.grid.user("alice").SubmitJobs(submission([description])).job_ids
    visitor = await shared.visitor(owner="alice")
    page = await visitor.open(f"/jobs/{job_id}")
    await expect(page.get_by_text("queues in all")).to_contain_text("0 can run it. No job goes before it")
    await expect(page.get_by_text("There is no estimate of its start")).to_be_visible()
    change = page.get_by_role("region", name="Single changes that open more queues").get_by_role("row").nth(1)
    await expect(change).to_contain_text("Memory")
    await expect(change).to_contain_text("SITE/ce1/")
    assert await visitor.barriers() == []
    assert visitor.faults == []


async def test_young_server_shows_its_counts_by_minutes(shared: WebScene, server: RunningServer) -> None:
    now = minute_of(clock.now())
    with closing(Database(f"sqlite:///{server.data / 'pilotage.db'}")) as database:
        for age in range(20, 1, -1):
            counts = {shared.grid.vo: JobCounts(age, 2, 0, 0, 1)}
            database.write(partial(keep_counts, minute=now - age, counts=counts))
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/")
    chart = page.get_by_role("img", name="Waiting and running jobs")
    points = await chart.locator("polyline.wait").first.get_attribute("points")
    assert points is not None
    assert len(points.split()) >= 19
    assert len(await chart.locator("text").all()) >= 4 + 3, "labels of numbers and of times"
    assert visitor.faults == []


async def test_place_is_banned_and_unbanned(shared: WebScene) -> None:
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/health")
    await page.get_by_label("Site").fill("SITE")
    await page.get_by_label("CE", exact=True).fill("ce1")
    await page.get_by_role("button", name="Ban…").click()
    await expect(page.get_by_role("heading", name="Ban SITE/ce1?")).to_be_visible()
    await expect(page.get_by_text("SITE/ce1/long, SITE/ce1/short")).to_be_visible()
    await page.get_by_label("Reason").fill(HOSTILE)
    await page.get_by_role("button", name="Ban SITE/ce1").click()
    await expect(page.get_by_role("status")).to_have_text("SITE/ce1 is banned.")
    page = await visitor.open("/sites/SITE")
    await expect(page.get_by_text("BANNED").first).to_be_visible()

    page = await visitor.open("/health")
    await expect(page.get_by_role("row").filter(has_text="SITE/ce1")).to_contain_text(HOSTILE)
    await page.get_by_role("button", name="Unban SITE/ce1").click()
    await page.get_by_role("button", name="Unban SITE/ce1").click()
    await expect(page.get_by_role("status")).to_have_text("SITE/ce1 is no longer banned.")
    page = await visitor.open("/sites/SITE")
    await expect(page.get_by_text("BANNED")).to_have_count(0)
    assert visitor.faults == []


async def test_queue_is_closed_and_opened(shared: WebScene) -> None:
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/health")
    for label, name in (("Site", "SITE"), ("CE", "ce1"), ("Queue", "short")):
        await page.get_by_label(label, exact=True).fill(name)
    await page.get_by_role("button", name="Close…").click()
    await page.get_by_label("Reason").fill("disks fail")
    await page.get_by_role("button", name="Close SITE/ce1/short").click()
    await expect(page.get_by_role("status")).to_have_text("SITE/ce1/short is closed.")
    page = await visitor.open("/health")
    row = page.get_by_role("row").filter(has_text="SITE/ce1/short")
    await expect(row).to_contain_text("HELD")
    await row.get_by_role("button", name="Open SITE/ce1/short").click()
    await page.get_by_role("button", name="Open SITE/ce1/short").click()
    await expect(page.get_by_role("status")).to_have_text("SITE/ce1/short is open.")
    assert visitor.faults == []


async def test_changes_of_unknown_places_are_refused(shared: WebScene) -> None:
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/health")
    await page.get_by_label("Site").fill("STIE")
    await page.get_by_role("button", name="Ban…").click()
    await expect(page.get_by_text("The tree has no queue at this place.")).to_be_visible()
    await page.get_by_label("Reason").fill("typo")
    await page.get_by_role("button", name="Ban STIE").click()
    await expect(page.get_by_role("alert")).to_contain_text("STIE")
    page = await visitor.open("/health")
    await expect(page.get_by_text("STIE")).to_have_count(0)


async def test_shares_show_groups_and_the_use_of_a_period(shared: WebScene) -> None:
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/shares")
    await expect(page.get_by_role("img", name="Core hours of attempts")).to_be_visible()
    table = page.get_by_role("region", name="Usage by owner")
    month = await table.get_by_role("row").filter(has_text="bruno").inner_text()
    await page.get_by_role("link", name="7 days").click()
    await page.wait_for_url("**period=7d**")
    week = await table.get_by_role("row").filter(has_text="bruno").inner_text()
    assert month.split()[-1] == week.split()[-1] == "0", "GPU hours"
    assert month != week
    assert visitor.faults == []


async def test_routes_show_why_they_take_no_jobs(shared: WebScene) -> None:
    visitor = await shared.visitor(Role.OPERATOR)
    page = await visitor.open("/routes")
    for name, state in (
        ("hpc", "OPEN"),
        ("cloud", "FULL"),
        ("opportunistic", "THROTTLED 9 of 10 copies failed"),
        ("partner", "CLOSED it does not answer"),
    ):
        await expect(page.get_by_role("row").filter(has_text=name).first).to_contain_text(state)
    await expect(page.get_by_role("row").filter(has_text="no target")).to_contain_text("<script>old</script>")
    assert visitor.faults == []


async def test_users_see_shares_and_no_health(shared: WebScene) -> None:
    visitor = await shared.visitor(owner="alice")
    page = await visitor.open("/health")
    await expect(page.get_by_role("alert")).to_contain_text("do not permit this page")
    await expect(page.get_by_role("link", name="Health", exact=True)).to_have_count(0)
    await page.get_by_role("link", name="Shares", exact=True).click()
    await expect(page.get_by_role("heading", name="Shares")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_grids_pages_have_no_barriers_and_fit_a_phone(shared: WebScene, scheme: str) -> None:
    visitor = await shared.visitor(Role.OPERATOR, color_scheme=scheme, viewport=PHONE)
    for path in PATHS:
        page = await visitor.open(path)
        assert await visitor.barriers(colours_only=scheme == "dark") == [], path
        assert await visitor.overflow() == 0, path
    await visitor.open("/health")
    await page.get_by_label("Site").fill("SITE")
    await page.get_by_role("button", name="Close…").click()
    assert await visitor.barriers(colours_only=scheme == "dark") == []
    assert await visitor.overflow() == 0
    assert visitor.faults == []
