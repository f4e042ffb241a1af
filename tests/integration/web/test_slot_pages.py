"""The map of slots and the pages of nodes, in a browser."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from playwright.async_api import expect

from pilotage.job_description import JobDescription
from pilotage.v1 import values_pb2
from pilotage_server.core.identity import Role
from support.browser import PHONE
from support.http_client import HttpClient
from support.web_scene import WebScene, a_slot, show_slots

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<script>alert(1)</script>/n"


@dataclass
class SlotScene(WebScene):
    """Node wn1 has slots in all states, one with job `job_id` of alice; another node has a hostile name."""

    job_id: int


@pytest.fixture(scope="module")
def slots(scene: WebScene) -> SlotScene:
    grid = scene.grid
    (job_id,) = grid.submit(JobDescription("/bin/true", name="sim-7"))
    pilot, other = grid.start_pilot(), grid.start_pilot()
    (match,) = pilot.request_jobs().matches
    none = values_pb2.Amounts()
    show_slots(
        pilot,
        "wn1",
        [
            a_slot("slot1", "Claimed", "Busy", job_id=match.job_id, attempt=match.attempt, ad="[ Speed = 12; ]"),
            a_slot("slot2", "Claimed", "Suspended"),
            a_slot("slot3", "Claimed", "Idle"),
            a_slot("slot4", "Preempting", "Vacating"),
            a_slot("slot5", "Unclaimed", "Idle"),
            a_slot("slot6", "Unclaimed", "Idle", partitionable=True, free=none),
            a_slot("slot7", "Owner", "Idle"),
            a_slot("slot10", "Drained", "Idle"),
        ],
    )
    show_slots(other, HOSTILE, [a_slot(f"slot{number}", "Unclaimed", "Idle") for number in range(300)], draining=True)
    return SlotScene(grid, scene.browser, job_id)


async def test_map_leads_to_the_job_in_a_slot(slots: SlotScene) -> None:
    visitor = await slots.visitor(Role.OPERATOR)
    page = await visitor.open("/")
    await page.get_by_role("link", name="Slots").click()
    await expect(page.get_by_role("link", name="301 idle")).to_be_visible()
    wn1 = page.locator(".node").filter(has_text="wn1")
    text = "1 busy, 1 claimed, 1 suspended, 1 leaving, 1 idle, 1 divided, 1 owner, 1 drained"
    await expect(wn1.get_by_role("img", name=text)).to_be_visible()
    assert await wn1.locator("path").count() == 8
    forms = [(await path.get_attribute("d") or "").split(" ", 1)[1] for path in await wn1.locator("path").all()]
    assert len({form.lstrip("0123456789") for form in forms}) == 8, "states differ without colours"
    await page.get_by_label("With slots").select_option("busy")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator(".node")).to_have_count(1)
    await wn1.get_by_role("link", name="wn1").click()
    await expect(page.get_by_role("heading", name="wn1")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="Claimed / Busy")
    await expect(row).to_contain_text("slot1")
    await expect(page.get_by_role("row").last).to_contain_text("slot10")
    await row.get_by_role("link", name="Attributes of slot1").click()
    await expect(page.get_by_role("region", name="Ad of slot1")).to_contain_text("Speed = 12")
    await row.get_by_role("link", name=str(slots.job_id), exact=True).click()
    await expect(page.get_by_role("heading", name="sim-7")).to_be_visible()
    assert visitor.faults == []


async def test_users_see_no_jobs_of_others_on_a_node(slots: SlotScene) -> None:
    owner, other = await slots.visitor(owner="alice"), await slots.visitor(owner="bob")
    for visitor, text in ((owner, f"{slots.job_id} sim-7"), (other, "of another user")):
        page = await visitor.open("/node?site=SITE&node=wn1")
        await expect(page.get_by_role("row").filter(has_text="Claimed / Busy")).to_contain_text(text)
        await expect(page.get_by_role("heading", name="Set by operators and agents")).to_have_count(0)


async def test_names_of_nodes_are_text(slots: SlotScene) -> None:
    visitor = await slots.visitor(Role.OPERATOR)
    page = await visitor.open("/slots?site=SITE&page=1")
    tile = page.locator(".node").filter(has_text="a square is 3 slots")
    await expect(tile.get_by_text("DRAINING")).to_be_visible()
    await tile.get_by_role("link", name=HOSTILE).click()
    await expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    assert await page.locator("main script").count() == 0
    assert visitor.faults == []


async def test_a_kind_that_does_not_exist_is_refused_as_text(slots: SlotScene) -> None:
    visitor = await slots.visitor(Role.OPERATOR)
    page = await visitor.open("/slots?site=SITE&kind=<b>")
    await expect(page.get_by_role("alert")).to_contain_text("kind is '<b>'; it can be busy, claimed")
    assert await page.locator("main b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_slot_pages_have_no_barriers_and_fit_a_phone(slots: SlotScene, scheme: str) -> None:
    visitor = await slots.visitor(Role.OPERATOR, color_scheme=scheme, viewport=PHONE)
    for path in ("/slots", "/slots?site=nowhere", "/node?site=SITE&node=wn1&slot=slot1"):
        await visitor.open(path)
        assert await visitor.barriers(colours_only=scheme == "dark") == [], path
        assert await visitor.overflow() == 0, path
    assert visitor.faults == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/slots?page=x", 400),
        ("/slots?page=0", 400),
        ("/slots?page=99", 200),
        ("/slots?site=%00", 400),
        ("/node", 404),
        ("/node?site=SITE&node=none", 404),
        ("/node?site=%00&node=x", 400),
    ],
)
async def test_strange_addresses_are_answered(slots: SlotScene, path: str, status: int) -> None:
    server = slots.grid.server
    http = HttpClient(server.http_address)
    cookie = {"Cookie": f"pilotage_token={server.token(Role.OPERATOR, owner='olga')}"}
    assert http.call("GET", path, **cookie).status == status
