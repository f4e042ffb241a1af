"""`pilotage routes` with a running server: list, explain and give-up."""

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
CLOSED = "its target cannot be opened: no such queue"
ROUTER = "job router of sky"


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    wire_grid = WireGrid(server)
    wire_grid.put_tree()
    yield wire_grid
    wire_grid.close()


@pytest.fixture
def router(grid: WireGrid) -> WireRouter:
    return WireRouter(grid, ROUTER)


def pilotage(grid: WireGrid, home: Path, *roles: Role, owner: str = "alice") -> Command:
    token = grid.server.token(*roles, owner=owner, vo=grid.vo)
    return Command(environment_of(home, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))


def test_routes_list_shows_counts_states_and_constraints(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    show = pilotage(grid, tmp_path)
    assert show("routes", "list") == "no job router has reported a route\n"
    east = RouteOutline(name="east", target="server gone:1", max_jobs=5, closed=CLOSED)
    old = LeftOutRoute(name="old", reason="it is no longer in the table", copies=2, idle=1)
    left_out = [LeftOutRoute(name="west", reason="no target"), old]
    router.put(NORTH, SOUTH, east, constraint="IsGood", left_out=left_out)
    lines = show("routes", "list").splitlines()
    former = lines.pop(4)
    assert former.split()[:6] == ["old", "-", "2", "-", "1", "-"]
    assert former.endswith("  not used: it is no longer in the table")
    assert [line.split()[0] for line in lines[:4]] == ["ROUTE", "north", "south", "east"]
    assert lines[1].split()[3:7] == ["3", "10", "1", "any"]
    assert [line.partition("  throttled: ")[2] for line in lines[1:4]] == ["", "19 failed", ""]
    assert [line.partition("  closed: ")[2] for line in lines[1:4]] == ["", "", CLOSED]
    assert lines[4:] == [
        f"{ROUTER}: every job must satisfy IsGood",
        f"{ROUTER}: route west is not used: no target",
    ]
    north, south, closed, west, former_route = show.json_objects("routes", "list")
    assert {tuple(route) for route in (north, south, closed, west, former_route)} == {tuple(KEYS["routes list"])}
    assert (north["requirements"], north["constraint"], north["max_idle_jobs"]) == ("WantRoute", "IsGood", None)
    assert [(route["throttled"], route["closed"]) for route in (north, south, closed)] == [
        *((None, None), ("19 failed", None), (None, CLOSED))
    ]
    assert (south["router"], west["left_out"]) == (ROUTER, "no target")
    assert [(route["copies"], route["idle"]) for route in (west, former_route)] == [(0, 0), (2, 1)]


def test_routes_explain_lists_the_obstacles_of_a_job(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    (job_id,) = grid.submit(a_job())
    router.put(NORTH, SOUTH, RouteOutline(name="open", target=f"queue {QUEUE}", max_jobs=1))
    user = pilotage(grid, tmp_path)
    assert user("routes", "explain", job_id).splitlines() == [
        f"north -> queue {QUEUE} ({ROUTER})",
        "    requirements: WantRoute is undefined",
        f"south -> server far:4711 ({ROUTER})",
        "    throttled: 19 failed",
        f"open -> queue {QUEUE} ({ROUTER})",
        "    takes the job",
    ]
    assert f"Routes that take it: open of 3 routes (`pilotage routes explain {job_id}`" in user("why", job_id)
    (answer,) = user.json_objects("routes", "explain", job_id)
    assert list(answer) == list(KEYS["routes explain"])
    assert [route["obstacles"] for route in answer["routes"]][1:] == [[{"kind": "throttled", "why": "19 failed"}], []]
    other = pilotage(grid, tmp_path, owner="bob")
    assert other.run("routes", "explain", job_id).stderr == f"pilotage: there is no job {job_id}\n"


def test_commands_show_where_a_routed_job_runs(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    (job_id,) = grid.submit(a_job())
    router.put(NORTH)
    router.route(job_id)
    running = jobs_pb2.JobReport(job_id=job_id, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    router.send_reports(CopyReport(job_id=job_id, attempt=1, reference="slurm 17", node="n42", report=running))
    user = pilotage(grid, tmp_path)
    why = user("why", job_id)
    assert f"Job {job_id} is RUNNING. It runs as a copy by route north to {QUEUE} on n42, attempt 1" in why
    assert f"Attempt 1 was routed by north of {ROUTER} to queue {QUEUE} at" in why
    assert ", slurm 17 there" in why
    assert f"route north to queue {QUEUE}" in user("events", job_id)
    assert user("routes", "explain", job_id).startswith(f"No route takes job {job_id} now: it is RUNNING\n")
    (status,) = user.json_objects("status", job_id)
    assert (status["site"], status["queue"], status["node"], status["slot"]) == ("SITE", "long", "n42", "north")
    (answer,) = user.json_objects("routes", "explain", job_id)
    assert list(answer["copy"]) == list(KEYS["routes give-up"])
    assert answer["copy"]["reference"] == "slurm 17"


def test_attributes_of_hooks_are_in_the_job_ad(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    (job_id,) = grid.submit(replace(a_job(), attributes={"Color": "red"}))
    router.route(job_id)
    attributes = {
        "Progress": Value(integer=70),
        "COLOR": Value(text="blue"),
        "VO": Value(text="x"),
        "Note": Value(text='"'),
    }
    router.send_reports(CopyReport(job_id=job_id, attempt=1, reference="slurm 17", attributes=attributes))
    user = pilotage(grid, tmp_path)
    lines = user("ad", job_id).splitlines()
    assert {"Progress = 70", 'Color = "red"', 'RoutedToJobId = "slurm 17"', f'VO = "{grid.vo}"'} <= set(lines)
    assert [line for line in lines if line.startswith("Note")] == ['Note = "\\""']
    assert not [line for line in lines if line.startswith("COLOR")]
    (ad,) = user.json_objects("ad", job_id)
    assert (ad["Progress"], ad["Color"], ad["RouteName"]) == (70, "red", "north")


def test_operator_gives_up_the_jobs_of_a_stopped_router(grid: WireGrid, router: WireRouter, tmp_path: Path) -> None:
    first, second = grid.submit(a_job(), a_job())
    router.put(NORTH)
    router.route(first, second)
    assert pilotage(grid, tmp_path).run("routes", "give-up", ROUTER).returncode == 2
    operator = pilotage(grid, tmp_path, Role.OPERATOR, owner="olga")
    rejected = operator.run("routes", "give-up", ROUTER)
    assert (rejected.returncode, "is running at" in rejected.stderr) == (1, True)
    router.stop()
    done = operator.run("routes", "give-up", ROUTER)
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        [str(job_id), "1", "WAITING"] for job_id in (first, second)
    ]
    assert "may still run" in done.stderr
    assert operator("routes", "list") == "no job router has reported a route\n"
    assert operator("routes", "give-up", "nobody", exits=2) == ""
