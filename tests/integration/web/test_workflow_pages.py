"""The pages of workflows in a browser: the list, and the graph of a workflow while its jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from playwright.async_api import Locator, Page, expect

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage.v1.job_service_pb2 import JOB_CHANGE_REMOVE
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_server.core.identity import Role
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.retention import delete_ended_jobs
from support.browser import PHONE
from support.web_scene import WebScene, submit_workflow
from support.wire_grid import WirePilot

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

OK, ANY = DependencyKind.AFTER_OK, DependencyKind.AFTER_ANY
HOSTILE = "<script>alert(1)</script>"


def a_fan(scene: WebScene, name: str = "fan.dag", owner: str = "alice") -> Sequence[int]:
    """Submit a job, an array of three jobs that wait for it, and a job that waits for these, and return the ids."""
    descriptions = [
        JobDescription("/bin/true", name="generate"),
        JobDescription("/bin/true", name="sim-$(Process)", count=3),
        JobDescription("/bin/true", name=HOSTILE),
    ]
    edges = [Dependency(1, OK, descriptions=(0,)), Dependency(2, ANY, descriptions=(1,))]
    return submit_workflow(scene.grid, name, descriptions, edges, owner)


def box(page: Page, text: str) -> Locator:
    """Return a box of the graph."""
    return page.get_by_role("group", name="Steps from top to bottom").get_by_role("link", name=text)


def end_next_job(pilot: WirePilot, exit_code: int = 0) -> None:
    """Let a pilot take the next job that may run, and end it."""
    (match,) = pilot.request_jobs(wait_s=20).matches
    pilot.report(match.job_id, match.attempt)
    pilot.finish(match.job_id, match.attempt, exit_code=exit_code)


async def test_graph_shows_the_progress_of_its_jobs(scene: WebScene) -> None:
    ids = a_fan(scene)
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open("/workflows")
    await page.get_by_role("row").filter(has_text="fan.dag").get_by_role("link", name=f"w{ids[0]}").click()
    await expect(page.get_by_role("heading", name=f"Workflow w{ids[0]} fan.dag")).to_be_visible()
    await expect(box(page, "generate: WAITING")).to_be_visible()
    await expect(box(page, "sim-0 …: 3 BLOCKED")).to_be_visible()
    rows = page.get_by_role("region", name="Steps").get_by_role("row")
    await expect(rows.nth(3)).to_contain_text("sim-0 … until its jobs have ended, however")

    pilot = scene.grid.start_pilot()
    end_next_job(pilot)
    end_next_job(pilot, exit_code=1)
    await page.reload()
    await expect(box(page, "generate: DONE")).to_be_visible()
    await expect(box(page, "sim-0 …: 1 of 3 FAILED")).to_be_visible()
    assert visitor.faults == []


async def test_boxes_lead_to_jobs_and_jobs_to_their_workflow(scene: WebScene) -> None:
    ids = a_fan(scene)
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open(f"/workflows/{ids[0]}")
    await box(page, "sim-0 …").focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/jobs?ids={ids[1]}-{ids[3]}")
    table = page.get_by_role("region", name="Jobs")
    await expect(table.get_by_role("row")).to_have_count(4)
    await table.get_by_role("link", name=str(ids[2]), exact=True).click()
    await page.get_by_role("link", name=f"w{ids[0]}").click()
    await box(page, "generate").click()
    await page.wait_for_url(f"**/jobs/{ids[0]}")
    page = await visitor.open(f"/workflows/{ids[0]}")
    await page.get_by_role("link", name="3 BLOCKED", exact=True).click()
    await expect(page.get_by_role("region", name="Jobs").get_by_role("row")).to_have_count(4)
    assert visitor.faults == []


async def test_hostile_names_are_texts(scene: WebScene) -> None:
    ids = a_fan(scene, name=HOSTILE)
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open("/workflows")
    await expect(page.get_by_role("row").filter(has_text=f"w{ids[0]}")).to_contain_text(HOSTILE)
    page = await visitor.open(f"/workflows/{ids[0]}")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    await expect(box(page, HOSTILE)).to_be_visible()
    assert visitor.faults == []


async def test_users_see_their_workflows_only(scene: WebScene) -> None:
    ids = a_fan(scene, name="of-bruno.dag", owner="bruno")
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open("/workflows?owner=bruno")
    await expect(page.get_by_text("of-bruno.dag")).to_have_count(0)
    await expect(page.get_by_label("Owner")).to_have_count(0)
    page = await visitor.open(f"/workflows/{ids[0]}")
    await expect(page.get_by_role("alert")).to_contain_text(f"there is no workflow w{ids[0]}")
    operator = await scene.visitor(Role.OPERATOR)
    page = await operator.open("/workflows")
    await page.get_by_label("Owner").fill("bruno")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**owner=bruno")
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.get_by_role("link", name=f"w{ids[0]}").click()
    await expect(box(page, "generate")).to_be_visible()


async def test_list_has_pages(scene: WebScene) -> None:
    for number in range(51):
        submit_workflow(scene.grid, f"{number}.dag", [JobDescription("/bin/true")], [], "petra")
    visitor = await scene.visitor(owner="petra")
    page = await visitor.open("/workflows")
    await expect(page.get_by_role("row")).to_have_count(51)
    await page.get_by_role("link", name="Older").click()
    await expect(page.get_by_role("row").filter(has_text="0.dag")).to_have_count(1)
    await expect(page.get_by_role("link", name="Older")).to_have_count(0)
    await page.get_by_role("link", name="Newest").click()
    await expect(page.get_by_role("row")).to_have_count(51)


async def test_too_large_workflow_has_counts_only(scene: WebScene) -> None:
    chain = [Dependency(child, OK, descriptions=(child - 1,)) for child in range(1, 401)]
    ids = submit_workflow(scene.grid, "chain.dag", [JobDescription("/bin/true")] * 401, chain, "alice")
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open(f"/workflows/{ids[0]}")
    await expect(page.get_by_text("No graph is kept")).to_be_visible()
    await expect(page.get_by_role("link", name="400 BLOCKED")).to_be_visible()


async def test_steps_whose_jobs_are_not_stored_any_more_stay(scene: WebScene) -> None:
    descriptions = [
        JobDescription("/bin/true", name=name, count=3 if name == "sim" else None) for name in ("a", "b", "sim")
    ]
    ids = submit_workflow(scene.grid, "old.dag", descriptions, [Dependency(1, ANY, descriptions=(0,))])
    scene.grid.change(JOB_CHANGE_REMOVE, *ids[:3])
    later = clock.now() + timedelta(days=1)
    with closing(Database(f"sqlite:///{scene.grid.server.data / 'pilotage.db'}")) as database:
        database.write(lambda transaction: delete_ended_jobs(transaction.session, later, 100))
    visitor = await scene.visitor(owner="alice")
    page = await visitor.open(f"/workflows/{ids[0]}")
    graph = page.get_by_role("group", name="Steps from top to bottom")
    await expect(graph.get_by_role("img", name=f"job {ids[0]}: NOT STORED")).to_be_visible()
    await expect(graph.get_by_role("link")).to_have_count(1)
    await expect(box(page, f"jobs {ids[2]}\u2013{ids[4]}: 2 of 3 WAITING")).to_be_visible()
    rows = page.get_by_role("region", name="Steps").get_by_role("row")
    await expect(rows.nth(1)).to_contain_text("NOT STORED")
    await expect(rows.nth(1).get_by_role("link")).to_have_count(0)
    await expect(rows.nth(2).get_by_role("link")).to_have_attribute("href", "#step-0")
    assert await visitor.barriers() == []
    await box(page, f"jobs {ids[2]}").click()
    await expect(page.get_by_role("region", name="Jobs").get_by_role("row")).to_have_count(3)
    assert visitor.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_workflows_have_no_barriers_and_fit_a_phone(scene: WebScene, scheme: str) -> None:
    wide = [Dependency(child, OK, descriptions=(0,)) for child in range(1, 15)]
    ids = submit_workflow(scene.grid, "wide.dag", [JobDescription("/bin/true", name="n" * 80)] * 15, wide, "alice")
    visitor = await scene.visitor(Role.OPERATOR, color_scheme=scheme, viewport=PHONE)
    for path in ("/workflows", f"/workflows/{ids[0]}", "/workflows?owner=nobody"):
        await visitor.open(path)
        assert await visitor.barriers(colours_only=scheme == "dark") == [], path
        assert await visitor.overflow() == 0, path
    assert visitor.faults == []
