"""Routes by command, with a real server: what routers tell, what routes say to a job, a router that is given up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.v1 import jobs_pb2
from pilotage.v1.route_service_pb2 import CopyReport, LeftOutRoute, RouteOutline
from pilotage.v1.values_pb2 import Value
from pilotage_server.core.identity import Role
from support.commands import KEYS, Command, environment_of
from support.routers import WireRouter
from support.server import RunningServer
from support.wire_grid import QUEUE, WireGrid, a_job

NORTH = RouteOutline(name="north", target=f"queue {QUEUE}", requirements="WantRoute", max_jobs=10, copies=3, idle=1)
SOUTH = RouteOutline(name="south", target="server far:4711", max_jobs=5, max_idle_jobs=2, throttled="19 failed")
SHUT = "its target cannot be opened: no such queue"
ROUTER = "router of sky"


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    opened = WireGrid(server)
    opened.put_tree()
    yield opened
    opened.close()


@pytest.fixture
def router(grid: WireGrid) -> WireRouter:
    return WireRouter(grid, ROUTER)


def pilotage(grid: WireGrid, home: Path, *roles: Role, owner: str = "alice") -> Command:
    token = grid.server.token(*roles, owner=owner, vo=grid.vo)
    return Command(environment_of(home, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))


def test_routes_are_shown_with_their_copies_and_what_every_job_must_fulfil(
    grid: WireGrid, router: WireRouter, tmp_path: Path
) -> None:
    shown = pilotage(grid, tmp_path)
    assert shown("routes", "list") == "no job router has reported a route\n"
    east = RouteOutline(name="east", target="server gone:1", max_jobs=5, closed=SHUT)
    router.put(NORTH, SOUTH, east, constraint="IsGood", left_out=[LeftOutRoute(name="west", reason="no target")])
    lines = shown("routes", "list").splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["ROUTE", "north", "south", "east"]
    assert lines[1].split()[3:7] == ["3", "10", "1", "any"]
    assert [line.partition("  throttled: ")[2] for line in lines[1:4]] == ["", "19 failed", ""]
    assert [line.partition("  closed: ")[2] for line in lines[1:4]] == ["", "", SHUT]
    assert lines[4:] == [
        f"{ROUTER}: every job must satisfy IsGood",
        f"{ROUTER}: route west is not used: no target",
    ]
    north, south, shut, west = shown.objects("routes", "list")
    assert {tuple(each) for each in (north, south, shut, west)} == {tuple(KEYS["routes list"])}
    assert (north["requirements"], north["constraint"], north["max_idle_jobs"]) == ("WantRoute", "IsGood", None)
    assert [(each["throttled"], each["closed"]) for each in (north, south, shut)] == [
        *((None, None), ("19 failed", None), (None, SHUT))
    ]
    assert (south["router"], west["left_out"]) == (ROUTER, "no target")


def test_a_job_is_told_what_keeps_it_from_each_route(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    (job_id,) = grid.submit(a_job())
    router.put(NORTH, SOUTH, RouteOutline(name="open", target=f"queue {QUEUE}", max_jobs=1))
    mine = pilotage(grid, tmp_path)
    assert mine("routes", "explain", job_id).splitlines() == [
        f"north -> queue {QUEUE} ({ROUTER})",
        "    requirements: WantRoute is undefined",
        f"south -> server far:4711 ({ROUTER})",
        "    throttled: 19 failed",
        f"open -> queue {QUEUE} ({ROUTER})",
        "    takes the job",
    ]
    assert f"Routes that take it: open of 3 routes (`pilotage routes explain {job_id}`" in mine("why", job_id)
    (answer,) = mine.objects("routes", "explain", job_id)
    assert list(answer) == list(KEYS["routes explain"])
    assert [each["obstacles"] for each in answer["routes"]][1:] == [[{"kind": "throttled", "why": "19 failed"}], []]
    other = pilotage(grid, tmp_path, owner="bob")
    assert other.run("routes", "explain", job_id).stderr == f"pilotage: there is no job {job_id}\n"


def test_a_job_that_is_on_its_way_shows_where_it_went(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    (job_id,) = grid.submit(a_job())
    router.put(NORTH)
    router.route(job_id)
    running = jobs_pb2.JobReport(job_id=job_id, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    router.tell(CopyReport(job_id=job_id, attempt=1, reference="slurm 17", node="n42", report=running))
    mine = pilotage(grid, tmp_path)
    why = mine("why", job_id)
    assert f"Job {job_id} is RUNNING. It runs as a copy by route north to {QUEUE} on n42, attempt 1" in why
    assert f"Attempt 1 was routed by north of {ROUTER} to queue {QUEUE} at" in why
    assert ", slurm 17 there" in why
    assert f"route north to queue {QUEUE}" in mine("logs", job_id)
    assert mine("routes", "explain", job_id).startswith(f"No route takes job {job_id} now: it is RUNNING\n")
    (status,) = mine.objects("status", job_id)
    assert (status["site"], status["queue"], status["node"], status["slot"]) == ("SITE", "long", "n42", "north")
    (answer,) = mine.objects("routes", "explain", job_id)
    assert list(answer["copy"]) == list(KEYS["routes give-up"])
    assert answer["copy"]["reference"] == "slurm 17"


def test_what_hooks_say_of_a_copy_is_shown_with_the_ad_of_its_job(
    grid: WireGrid, router: WireRouter, tmp_path: Path
) -> None:
    (job_id,) = grid.submit(replace(a_job(), attributes={"Color": "red"}))
    router.route(job_id)
    said = {"Progress": Value(integer=70), "COLOR": Value(text="blue"), "VO": Value(text="x"), "Note": Value(text='"')}
    router.tell(CopyReport(job_id=job_id, attempt=1, reference="slurm 17", attributes=said))
    mine = pilotage(grid, tmp_path)
    lines = mine("ad", job_id).splitlines()
    assert {"Progress = 70", 'Color = "red"', 'RoutedToJobId = "slurm 17"', f'VO = "{grid.vo}"'} <= set(lines)
    assert [line for line in lines if line.startswith("Note")] == ['Note = "\\""']
    assert not [line for line in lines if line.startswith("COLOR")]
    (ad,) = mine.objects("ad", job_id)
    assert (ad["Progress"], ad["Color"], ad["RouteName"]) == (70, "red", "north")


def test_an_operator_gives_a_router_up(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    first, second = grid.submit(a_job(), a_job())
    router.put(NORTH)
    router.route(first, second)
    assert pilotage(grid, tmp_path).run("routes", "give-up", ROUTER).returncode == 2
    operator = pilotage(grid, tmp_path, Role.OPERATOR, owner="olga")
    refused = operator.run("routes", "give-up", ROUTER)
    assert (refused.returncode, "is running at" in refused.stderr) == (1, True)
    router.stop()
    done = operator.run("routes", "give-up", ROUTER)
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        [str(job_id), "1", "WAITING"] for job_id in (first, second)
    ]
    assert "may still run" in done.stderr
    assert operator("routes", "list") == "no job router has reported a route\n"
    assert operator("routes", "give-up", "nobody", exits=2) == ""
