"""The pages of operators in a browser: the tree and what a change of it does, the agents, and the audit."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from playwright.async_api import expect

from pilotage.v1 import agent_service_pb2, resource_service_pb2, values_pb2
from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
from pilotage_server.core.identity import Role
from support.browser import PHONE
from support.server import RunningServer, request_id
from support.web_scene import WebScene
from support.wire_grid import TREE, a_job

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

SCRIPT = "<script>alert(1)</script>"
PATHS = ("/tree", "/agents", "/audit", "/audit?what=tree&since=1h")


@dataclass
class OperatorScene(WebScene):
    """A scene with a ban; job `job_id` needs more memory than its queues have."""

    job_id: int


@pytest.fixture(scope="module")
def operators(scene: WebScene) -> OperatorScene:
    (job_id,) = scene.grid.submit(a_job(Memory=9000))
    ban = resource_service_pb2.BanRequest(request_id=request_id(), site="SITE", ce="ce1", queue="short", reason=SCRIPT)
    scene.grid.resources.Ban(ban)
    return OperatorScene(scene.grid, scene.browser, job_id)


async def test_tree_shows_what_a_change_does_before_it_is_made(operators: OperatorScene) -> None:
    visitor = await operators.visitor(Role.OPERATOR)
    page = await visitor.open("/tree")
    await expect(page.get_by_text("Version 1 is active")).to_be_visible()
    text = page.get_by_label("Change the text")
    tree = json.loads(TREE)
    tree["sites"]["SITE"]["ces"]["ce1"]["queues"]["long"]["Memory"] = 12000

    await text.fill("{")
    await page.get_by_role("button", name="What would it change?").click()
    await expect(page.get_by_role("alert")).to_contain_text("line 1")
    assert await text.input_value() == "{"

    await text.fill(json.dumps(tree, indent=1))
    await page.get_by_role("button", name="What would it change?").click()
    await expect(page.get_by_role("status")).to_contain_text(f"runnable: 1 ({operators.job_id})")
    await expect(page.get_by_role("row").filter(has_text="Memory = 9000")).to_contain_text("1: SITE/ce1/long")
    assert operators.grid.tree_version() == 1, "nothing is applied yet"

    await page.get_by_role("button", name="Make it version 2").click()
    await expect(page.get_by_role("status")).to_contain_text("Version 2 is active")
    assert operators.grid.tree_version() == 2
    page = await visitor.open("/sites/SITE")
    await expect(page.get_by_title("from queue").filter(has_text="Memory = 12000")).to_be_visible()
    assert visitor.faults == []


async def test_change_of_a_tree_that_others_have_changed_is_looked_at_again(operators: OperatorScene) -> None:
    visitor = await operators.visitor(Role.OPERATOR)
    page = await visitor.open("/tree")
    await page.get_by_role("button", name="What would it change?").click()
    version = operators.grid.put_tree()
    await page.get_by_role("button", name="Make it version").click()
    await expect(page.get_by_role("alert")).to_contain_text(f"Version {version} of the tree has become active")
    assert operators.grid.tree_version() == version


async def test_agents_show_the_leader_and_its_last_error(operators: OperatorScene, server: RunningServer) -> None:
    visitor = await operators.visitor(Role.OPERATOR)
    page = await visitor.open("/agents")
    await expect(page.get_by_text("No agent has called")).to_be_visible()
    with server.channel(server.token(Role.DIRECTOR)) as channel:
        status = agent_service_pb2.AgentStatus(version="0.1.0", failures=3, last_error=SCRIPT)
        turn = values_pb2.Turn(agent="site director of SITE", holder="first")
        request = agent_service_pb2.TakeTurnRequest(turn=turn, for_s=60, place="wn7", status=status)
        assert AgentServiceStub(channel).TakeTurn(request).taken
    page = await visitor.open("/agents")
    row = page.get_by_role("row").filter(has_text="site director of SITE")
    await expect(row).to_contain_text("LEADER")
    await expect(row).to_contain_text(SCRIPT)
    page = await visitor.open("/")
    alert = page.get_by_role("region", name="Needs attention").get_by_role("listitem").filter(has_text=SCRIPT)
    await alert.get_by_role("link", name="agents").click()
    await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    assert visitor.faults == []


async def test_audit_is_filtered_and_shows_differences(operators: OperatorScene) -> None:
    visitor = await operators.visitor(Role.OPERATOR)
    page = await visitor.open("/audit")
    await page.get_by_label("What").fill("ban")
    await page.get_by_label("What").press("Enter")
    await expect(page.get_by_role("row")).to_have_count(2)
    row = page.get_by_role("row").filter(has_text="SITE/ce1/short")
    await expect(row).to_contain_text(SCRIPT)
    page = await visitor.open("/audit?who=nobody")
    await expect(page.get_by_text("No change matches the filter.")).to_be_visible()
    assert visitor.faults == []


async def test_users_see_none_of_these_pages(operators: OperatorScene) -> None:
    visitor = await operators.visitor(owner="alice")
    for path, title in (("/tree", "Tree"), ("/agents", "Agents"), ("/audit", "Audit")):
        page = await visitor.open(path)
        await expect(page.get_by_role("alert")).to_contain_text("it needs the role admin or operator")
        await expect(page.get_by_role("link", name=title, exact=True)).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_operators_pages_have_no_barriers_and_fit_a_phone(operators: OperatorScene, scheme: str) -> None:
    visitor = await operators.visitor(Role.OPERATOR, color_scheme=scheme, viewport=PHONE)
    for path in PATHS:
        page = await visitor.open(path)
        assert await visitor.barriers(colours_only=scheme == "dark") == [], path
        assert await visitor.overflow() == 0, path
    await visitor.open("/tree")
    await page.get_by_role("button", name="What would it change?").click()
    await expect(page.get_by_role("status")).to_be_visible()
    assert await visitor.barriers(colours_only=scheme == "dark") == []
    assert visitor.faults == []
