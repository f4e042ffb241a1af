"""The contract of the router's link to a server, for a real server and the one in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.errors import NotFoundError
from pilotage.job_description import InputFile, Value
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.route_service_pb2 import ListRoutesRequest
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.values.leadership import Leadership
from pilotage.values.routing import LeftOutRoute, PublishedRoutes, RouteOutline
from pilotage.values.wire.routing import left_out_from_wire, outline_from_wire
from pilotage_agents.router.core.model import CollectedFile, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import NotRouted, Routed
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.process_grid import RealJobs
from support.router_processes import NOON, QUEUE, LinkUnderTest, ended, new_routed_job, scene, server
from support.server import RunningServer, request_id

__all__ = ["scene", "server"]


async def test_feed_lists_waiting_jobs_and_continues_at_position(scene: LinkUnderTest) -> None:
    first = scene.submit(5)
    assert (await scene.waiting())[-5:] == first
    page = await scene.link.next_events(0)
    assert page.events
    second = await scene.link.next_events(page.position)
    assert second.position > page.position or not second.events
    scene.change("remove", first[0])
    assert first[0] not in await scene.waiting()


async def test_loads_jobs_with_ads_and_descriptions(scene: LinkUnderTest) -> None:
    (job,) = scene.submit(WantJobRouter=True, executable="/bin/echo")
    (loaded,) = await scene.link.load_jobs([job, 10**9])
    assert (loaded.job_id, loaded.is_waiting, loaded.ad["WantJobRouter"]) == (job, True, True)
    assert loaded.description.executable == "/bin/echo"
    assert (loaded.owner, loaded.vo) in (("alice", "sky"), ("ann", "sky"))


async def test_router_claims_a_job_once(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    request = request_id()
    assert await scene.link.route(request, [new_routed_job(job)]) == (Routed(job, 1),)
    assert await scene.link.route(request, [new_routed_job(job)]) == (Routed(job, 1),), "a repeated call has one effect"
    (again,) = await scene.link.route(request_id(), [new_routed_job(job)])
    assert isinstance(again, NotRouted)
    assert scene.state(job) == "MATCHED"
    (known,) = await scene.link.routed_jobs()
    assert (known.job_id, known.attempt, known.route, known.target) == (job, 1, "A", f"queue {QUEUE}")
    assert (known.reference, known.unwanted, known.is_running) == ("", "", False)
    assert not (await scene.link.load_jobs([job]))[0].is_waiting


async def test_refuses_unknown_and_held_jobs_of_a_call_only(scene: LinkUnderTest) -> None:
    first, second = scene.submit(2)
    scene.change("hold", first)
    answers = await scene.link.route(
        request_id(), [new_routed_job(10**9), new_routed_job(first), new_routed_job(second)]
    )
    assert [isinstance(answer, Routed) for answer in answers] == [False, False, True]
    assert all(answer.reason for answer in answers if isinstance(answer, NotRouted))


async def test_routed_job_of_remote_server_needs_no_queue(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    (answer,) = await scene.link.route(request_id(), [new_routed_job(job, queue=None)])
    assert answer == Routed(job, 1)


async def test_reports_of_routed_job_are_stored(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    assert await scene.report(RoutedJobReport(job, 1, reference="slurm.17")) == {}
    assert await scene.report(RoutedJobReport(job, 1, node="n17", state="RUNNING", started=NOON)) == {}
    (known,) = await scene.link.routed_jobs()
    assert (known.reference, known.is_running) == ("slurm.17", True)
    assert scene.state(job) == "RUNNING"
    assert (
        await scene.report(RoutedJobReport(job, 1, state="SUSPENDED"), RoutedJobReport(job, 1, state="COMPLETING"))
        == {}
    )
    assert scene.state(job) == "COMPLETING"


async def test_plugged_failure_is_an_event_of_the_job(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    failed = RoutedJobStatus(RoutedJobState.RUNNING, exit_code=3, wall_s=2.0, is_plugged=True)
    report = RoutedJobReport(job, 1, state="RUNNING", started=NOON, plugged=failed)
    for _ in range(2):
        assert await scene.report(report) == {}
    assert scene.state(job) == "RUNNING"
    causes = await scene.causes(job)
    assert (causes[-1], causes.count("plugged")) == ("plugged", 1)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (ended(0, "EXITED", RoutedJobState.COMPLETED, exit_code=0, started=NOON, ended=NOON, wall_s=3.0), "DONE"),
        (ended(0, "EXITED", RoutedJobState.COMPLETED, exit_code=3), "FAILED"),
        (ended(0, "EVICTED", reason="the copy is gone"), "WAITING"),
        (ended(0, "DECLINED", reason="no such account"), "WAITING"),
    ],
    ids=["done", "failed", "vanished", "not submitted"],
)
@pytest.mark.parametrize("is_running", [True, False], ids=["while running", "before a report of its start"])
async def test_end_of_routed_job_determines_state_of_job(
    scene: LinkUnderTest, report: RoutedJobReport, state: str, is_running: bool
) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    if is_running and report.outcome and report.outcome.outcome != "DECLINED":
        await scene.report(RoutedJobReport(job, 1, state="RUNNING", started=NOON))
    final = RoutedJobReport(job, 1, state="DONE", outcome=report.outcome)
    assert await scene.report(final) == {}
    assert scene.state(job) == state
    assert await scene.link.routed_jobs() == ()
    if state == "WAITING":
        assert await scene.route(job) == [2]


async def test_routed_job_of_held_job_is_unwanted_until_its_end(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    assert (await scene.link.report(request_id(), ())).unwanted == ()
    scene.change("hold", job)
    (unwanted,) = (await scene.link.report(request_id(), ())).unwanted
    assert (unwanted.job_id, unwanted.attempt, bool(unwanted.reason)) == (job, 1, True)
    assert (await scene.link.routed_jobs())[0].unwanted
    scene.change("release", job)
    (again,) = await scene.link.route(request_id(), [new_routed_job(job)])
    assert isinstance(again, NotRouted), "a job never has two routed jobs at once"
    assert await scene.report(ended(job, "KILLED", reason="held")) == {}
    assert await scene.route(job) == [2]


@pytest.mark.parametrize("is_running", [True, False], ids=["while running", "before a report of its start"])
async def test_hold_at_target_holds_job_until_routed_job_ends(scene: LinkUnderTest, is_running: bool) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    if is_running:
        await scene.report(RoutedJobReport(job, 1, state="RUNNING", started=NOON))
    answer = await scene.link.report(request_id(), [RoutedJobReport(job, 1, held="the proxy has expired")])
    (unwanted,) = answer.unwanted
    assert (unwanted.job_id, unwanted.attempt) == (job, 1)
    assert "the proxy has expired" in unwanted.reason
    assert await scene.report(RoutedJobReport(job, 1, held="it is held yet")) == {}
    scene.change("release", job)
    (again,) = await scene.link.route(request_id(), [new_routed_job(job)])
    assert isinstance(again, NotRouted)
    assert await scene.report(replace(ended(job, "KILLED"), held="it is held yet")) == {}
    assert await scene.route(job) == [2]


async def test_report_with_hold_and_end_holds_the_job(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    assert await scene.report(replace(ended(job, "KILLED"), held="the proxy has expired")) == {}
    assert scene.state(job) == "HELD"
    assert await scene.link.routed_jobs() == ()


async def test_refuses_only_reports_of_foreign_attempts(
    scene: LinkUnderTest,
) -> None:
    first, second = scene.submit(2)
    await scene.route(first)
    running = RoutedJobReport(second, 1, reference="x", state="RUNNING")
    refused = await scene.report(running, RoutedJobReport(first, 1, reference="y"))
    assert list(refused) == [(second, 1)]
    assert (await scene.link.routed_jobs())[0].reference == "y"


async def test_malformed_report_does_not_affect_other_reports(scene: LinkUnderTest) -> None:
    first, second = scene.submit(2)
    await scene.route(first, second)
    reports = (RoutedJobReport(first, 1, node="n\0", state="RUNNING"), RoutedJobReport(second, 1, state="RUNNING"))
    answer = await scene.link.report(request_id(), reports)
    assert (list(answer.malformed), list(answer.refused)) == ([(first, 1)], [])
    assert "NUL" in answer.malformed[first, 1]
    assert [scene.state(job) for job in (first, second)] == ["MATCHED", "RUNNING"]
    assert [copy.job_id for copy in await scene.link.routed_jobs()] == [first, second]


async def test_hook_attributes_do_not_override_job_attributes(scene: LinkUnderTest) -> None:
    (job,) = scene.submit(Color="red")
    await scene.route(job)
    attributes: dict[str, Value] = {
        "Progress": 70,
        "Share": 0.5,
        "Color": "blue",
        "Owner": "eve",
        "Hosts": ("n1", "n2"),
    }
    assert await scene.report(RoutedJobReport(job, 1, attributes=attributes)) == {}
    ad = scene.ad(job)
    assert (ad["Progress"], ad["Share"], ad["Hosts"]) == (70, 0.5, ("n1", "n2"))
    assert ad["Color"] == "red"
    assert ad["Owner"] != "eve"
    assert "Progress" not in (await scene.link.load_jobs([job]))[0].ad, "routes do not see hook attributes"


async def test_hook_attributes_are_replaced_and_end_with_attempt(scene: LinkUnderTest) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    await scene.report(RoutedJobReport(job, 1, attributes={"Progress": 70, "Stage": "in"}))
    await scene.report(RoutedJobReport(job, 1, attributes={"Progress": 80}))
    await scene.report(RoutedJobReport(job, 1, node="n17", state="RUNNING"))
    assert (scene.ad(job)["Progress"], "Stage" in scene.ad(job)) == (80, False)
    await scene.report(ended(job, "EVICTED", reason="the copy is gone"))
    assert (scene.state(job), scene.ad(job)["Progress"]) == ("WAITING", 80)
    await scene.route(job)
    assert "Progress" not in scene.ad(job)


@pytest.mark.parametrize(
    "attributes", [{f"A{number}": 1 for number in range(65)}, {"Text": "x" * 20_000}, {"no name": 1}, {"a": 1, "A": 2}]
)
async def test_report_with_invalid_attributes_is_malformed(scene: LinkUnderTest, attributes: dict[str, Value]) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    answer = await scene.link.report(request_id(), [RoutedJobReport(job, 1, state="RUNNING", attributes=attributes)])
    assert answer.malformed[job, 1].startswith("attributes: ")
    assert (scene.state(job), scene.ad(job).keys() & attributes.keys()) == ("MATCHED", set())


@pytest.mark.parametrize("are_uploaded", [True, False], ids=["uploaded before", "with the report"])
async def test_uploads_small_and_large_output_files(scene: LinkUnderTest, tmp_path: Path, are_uploaded: bool) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    small, large = b"hello\n", b"0123456789abcdef" * 10_000
    files = []
    for name, content in (("stdout", small), ("results/data", large), ("empty", b"")):
        path = tmp_path / name.replace("/", "-")
        await asyncio.to_thread(path.write_bytes, content)
        files.append(CollectedFile(name, str(path)))
    if are_uploaded:
        await scene.link.upload([*files, CollectedFile("missing", f"{tmp_path}/missing")])
    report = ended(job, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=tuple(files))
    assert await scene.report(report) == {}
    assert scene.output(job) == {"stdout": small, "results/data": large, "empty": b""}


async def test_unreadable_output_file_requeues_only_its_job(scene: LinkUnderTest, tmp_path: Path) -> None:
    incomplete, complete = scene.submit(2)
    await scene.route(incomplete, complete)
    (tmp_path / "stdout").write_text("hello\n")
    stdout, missing = CollectedFile("stdout", f"{tmp_path}/stdout"), CollectedFile("results", f"{tmp_path}/missing")
    failed = ended(incomplete, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=(stdout, missing))
    succeeded = ended(complete, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=(stdout,))
    assert await scene.report(failed, succeeded) == {}
    assert (scene.state(incomplete), scene.state(complete)) == ("WAITING", "DONE")
    assert (scene.output(incomplete), scene.output(complete)) == ({}, {"stdout": b"hello\n"})


@asynccontextmanager
async def a_leading_router(server: RunningServer) -> AsyncIterator[tuple[str, RouterServerLink]]:
    """Return the name of a new job router that is the leader, and its link."""
    async with server.async_channel(server.token(Role.ROUTER, owner="agent:router")) as channel:
        leadership = Leadership(f"job router of {request_id()}", "this one")
        await AgentServerLink(channel).take_leadership(leadership, 60, "here")
        yield leadership.agent, RouterServerLink(channel, leadership)


async def test_fetches_input_files_of_routed_job(server: RunningServer, tmp_path: Path) -> None:
    content = b"x" * 3_000_000
    checksum = hashlib.sha256(content).hexdigest()
    with server.channel(server.token()) as channel:
        pieces = [job_service_pb2.UploadFileRequest(checksum=checksum, size=len(content), content=content[:1_000_000])]
        pieces += [
            job_service_pb2.UploadFileRequest(content=content[n : n + 1_000_000]) for n in (1_000_000, 2_000_000)
        ]
        JobServiceStub(channel).UploadFile(iter(pieces))
    file = jobs_pb2.InputFile(name="data", checksum=checksum, size=len(content))
    (job,) = RealJobs(server).submit(files=[file])
    async with a_leading_router(server) as (_, link):
        await link.route(request_id(), [new_routed_job(job)])
        await link.fetch(job, InputFile("data", checksum=checksum, size=len(content)), tmp_path / "data")
        with pytest.raises(NotFoundError):
            await link.fetch(job, InputFile("other", checksum="0" * 64), tmp_path / "other")
    assert await asyncio.to_thread((tmp_path / "data").read_bytes) == content
    assert not await asyncio.to_thread((tmp_path / "other").exists)


async def test_published_routes_are_listed_with_all_fields(server: RunningServer) -> None:
    first = RouteOutline("A", f"queue {QUEUE}", "WantJobRouter", '[name = "A"]', 10)
    obstacles = {"throttled": "19 failed", "closed": "its target cannot be opened"}
    second = RouteOutline("B", "server elsewhere:4711", max_jobs=10, max_idle_jobs=5, copies=3, idle=2, **obstacles)
    left_out = LeftOutRoute("C", "it has no target", copies=3, idle=2)
    async with a_leading_router(server) as (name, link):
        await link.publish_routes(PublishedRoutes((first, second), "true", 100, (left_out,)))
    with server.channel(server.token()) as channel:
        routers = RouteServiceStub(channel).ListRoutes(ListRoutesRequest()).routers
    (listed,) = [router for router in routers if router.name == name]
    assert [outline_from_wire(route) for route in listed.routes] == [first, second]
    assert [left_out_from_wire(route) for route in listed.left_out] == [left_out]
    assert (listed.constraint, listed.max_jobs) == ("true", 100)
