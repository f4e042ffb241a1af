"""What a job router hears of a server, be it a real one or the one in memory."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.errors import NotFoundError
from pilotage.job_description import InputFile, Value
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.values.leadership import Leadership
from pilotage.values.routing import LeftOutRoute, PublishedRoutes, RouteOutline
from pilotage_agents.router.core.model import CollectedFile, RoutedJobReport, RoutedJobState
from pilotage_agents.router.ports import NotRouted, Routed
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.process_grid import RealJobs
from support.router_processes import NOON, QUEUE, Scene, ended, new_routed_job, scene, server
from support.server import RunningServer, request_id

__all__ = ["scene", "server"]


async def test_the_feed_tells_who_waits_and_goes_on_where_it_was_left(scene: Scene) -> None:
    first = scene.submit(5)
    assert (await scene.waiting())[-5:] == first
    page = await scene.link.next_events(0)
    assert page.events
    second = await scene.link.next_events(page.position)
    assert second.position > page.position or not second.events
    scene.change("remove", first[0])
    assert first[0] not in await scene.waiting()


async def test_jobs_are_seen_with_their_ads_and_descriptions(scene: Scene) -> None:
    (job,) = scene.submit(WantJobRouter=True, executable="/bin/echo")
    (seen,) = await scene.link.load_jobs([job, 10**9])
    assert (seen.job_id, seen.is_waiting, seen.ad["WantJobRouter"]) == (job, True, True)
    assert seen.description.executable == "/bin/echo"
    assert (seen.owner, seen.vo) in (("alice", "sky"), ("ann", "sky"))


async def test_a_job_is_given_once_and_then_is_this_routers(scene: Scene) -> None:
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


async def test_a_job_that_is_not_there_or_does_not_wait_is_not_given_and_the_others_are(scene: Scene) -> None:
    first, second = scene.submit(2)
    scene.change("hold", first)
    answers = await scene.link.route(
        request_id(), [new_routed_job(10**9), new_routed_job(first), new_routed_job(second)]
    )
    assert [isinstance(answer, Routed) for answer in answers] == [False, False, True]
    assert all(answer.reason for answer in answers if isinstance(answer, NotRouted))


async def test_a_copy_on_another_server_needs_no_queue(scene: Scene) -> None:
    (job,) = scene.submit()
    (answer,) = await scene.link.route(request_id(), [new_routed_job(job, queue=None)])
    assert answer == Routed(job, 1)


async def test_what_is_told_of_a_copy_is_kept_and_shown(scene: Scene) -> None:
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
@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it is seen to run"])
async def test_an_end_makes_the_original_what_it_says(
    scene: Scene, report: RoutedJobReport, state: str, is_running: bool
) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    if is_running and report.outcome and report.outcome.outcome != "DECLINED":
        await scene.report(RoutedJobReport(job, 1, state="RUNNING", started=NOON))
    told = RoutedJobReport(job, 1, state="DONE", outcome=report.outcome)
    assert await scene.report(told) == {}
    assert scene.state(job) == state
    assert await scene.link.routed_jobs() == ()
    if state == "WAITING":
        assert await scene.route(job) == [2]


async def test_the_copy_of_a_job_that_was_taken_away_is_unwanted_until_it_is_told_to_be_over(scene: Scene) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    assert (await scene.link.report(request_id(), ())).unwanted == ()
    scene.change("hold", job)
    (unwanted,) = (await scene.link.report(request_id(), ())).unwanted
    assert (unwanted.job_id, unwanted.attempt, bool(unwanted.reason)) == (job, 1, True)
    assert (await scene.link.routed_jobs())[0].unwanted
    scene.change("release", job)
    (again,) = await scene.link.route(request_id(), [new_routed_job(job)])
    assert isinstance(again, NotRouted), "two copies of a job never live at once"
    assert await scene.report(ended(job, "KILLED", reason="held")) == {}
    assert await scene.route(job) == [2]


@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it is seen to run"])
async def test_a_job_whose_copy_is_held_is_held_and_its_copy_unwanted_until_it_is_told_to_be_over(
    scene: Scene, is_running: bool
) -> None:
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


async def test_a_copy_that_is_told_to_be_held_and_over_at_once_holds_its_job(scene: Scene) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    assert await scene.report(replace(ended(job, "KILLED"), held="the proxy has expired")) == {}
    assert scene.state(job) == "HELD"
    assert await scene.link.routed_jobs() == ()


async def test_a_report_on_an_attempt_that_is_not_this_routers_is_refused_and_the_others_are_not(
    scene: Scene,
) -> None:
    first, second = scene.submit(2)
    await scene.route(first)
    running = RoutedJobReport(second, 1, reference="x", state="RUNNING")
    refused = await scene.report(running, RoutedJobReport(first, 1, reference="y"))
    assert list(refused) == [(second, 1)]
    assert (await scene.link.routed_jobs())[0].reference == "y"


async def test_a_malformed_report_changes_nothing_of_its_copy_and_keeps_no_other_from_being_heard(scene: Scene) -> None:
    first, second = scene.submit(2)
    await scene.route(first, second)
    reports = (RoutedJobReport(first, 1, node="n\0", state="RUNNING"), RoutedJobReport(second, 1, state="RUNNING"))
    answer = await scene.link.report(request_id(), reports)
    assert (list(answer.malformed), list(answer.refused)) == ([(first, 1)], [])
    assert "NUL" in answer.malformed[first, 1]
    assert [scene.state(each) for each in (first, second)] == ["MATCHED", "RUNNING"]
    assert [copy.job_id for copy in await scene.link.routed_jobs()] == [first, second]


async def test_what_hooks_say_of_a_copy_is_shown_where_the_job_says_nothing(scene: Scene) -> None:
    (job,) = scene.submit(Color="red")
    await scene.route(job)
    said: dict[str, Value] = {"Progress": 70, "Share": 0.5, "Color": "blue", "Owner": "eve", "Hosts": ("n1", "n2")}
    assert await scene.report(RoutedJobReport(job, 1, attributes=said)) == {}
    ad = scene.ad(job)
    assert (ad["Progress"], ad["Share"], ad["Hosts"]) == (70, 0.5, ("n1", "n2"))
    assert ad["Color"] == "red"
    assert ad["Owner"] != "eve"
    assert "Progress" not in (await scene.link.load_jobs([job]))[0].ad, "no route looks at it"


async def test_what_hooks_say_is_as_it_was_told_last_until_another_attempt_begins(scene: Scene) -> None:
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
    "said", [{f"A{number}": 1 for number in range(65)}, {"Text": "x" * 20_000}, {"no name": 1}, {"a": 1, "A": 2}]
)
async def test_a_report_with_too_many_attributes_or_ones_that_are_none_is_malformed(
    scene: Scene, said: dict[str, Value]
) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    answer = await scene.link.report(request_id(), [RoutedJobReport(job, 1, state="RUNNING", attributes=said)])
    assert answer.malformed[job, 1].startswith("attributes: ")
    assert (scene.state(job), scene.ad(job).keys() & said.keys()) == ("MATCHED", set())


@pytest.mark.parametrize("are_brought", [True, False], ids=["brought before", "with the report"])
async def test_files_come_home_small_and_large(scene: Scene, tmp_path: Path, are_brought: bool) -> None:
    (job,) = scene.submit()
    await scene.route(job)
    small, large = b"hello\n", b"0123456789abcdef" * 10_000
    files = []
    for name, content in (("stdout", small), ("results/data", large), ("empty", b"")):
        path = tmp_path / name.replace("/", "-")
        await asyncio.to_thread(path.write_bytes, content)
        files.append(CollectedFile(name, str(path)))
    if are_brought:
        await scene.link.upload([*files, CollectedFile("gone", f"{tmp_path}/gone")])
    report = ended(job, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=tuple(files))
    assert await scene.report(report) == {}
    assert scene.output(job) == {"stdout": small, "results/data": large, "empty": b""}


async def test_a_job_of_whose_files_one_cannot_be_read_has_not_ended_well_and_its_neighbour_has(
    scene: Scene, tmp_path: Path
) -> None:
    lost, whole = scene.submit(2)
    await scene.route(lost, whole)
    (tmp_path / "stdout").write_text("hello\n")
    stdout, gone = CollectedFile("stdout", f"{tmp_path}/stdout"), CollectedFile("results", f"{tmp_path}/gone")
    cut_short = ended(lost, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=(stdout, gone))
    well = ended(whole, "EXITED", RoutedJobState.COMPLETED, exit_code=0, files=(stdout,))
    assert await scene.report(cut_short, well) == {}
    assert (scene.state(lost), scene.state(whole)) == ("WAITING", "DONE")
    assert (scene.output(lost), scene.output(whole)) == ({}, {"stdout": b"hello\n"})


async def test_files_that_a_job_brings_are_fetched_whole(server: RunningServer, tmp_path: Path) -> None:
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
    async with server.async_channel(server.token(Role.AGENT, owner="agent:router")) as channel:
        turn = Leadership(f"job router {request_id()}", "this one")
        await AgentServerLink(channel).take_leadership(turn, 60, "here")
        link = RouterServerLink(channel, turn)
        await link.route(request_id(), [new_routed_job(job)])
        await link.fetch(job, InputFile("data", checksum=checksum, size=len(content)), tmp_path / "data")
        with pytest.raises(NotFoundError):
            await link.fetch(job, InputFile("other", checksum="0" * 64), tmp_path / "other")
    assert await asyncio.to_thread((tmp_path / "data").read_bytes) == content
    assert not await asyncio.to_thread((tmp_path / "other").exists)


async def test_the_routes_are_told(scene: Scene) -> None:
    route = RouteOutline("A", f"queue {QUEUE}", "WantJobRouter", '[name = "A"]', 10)
    bars = {"throttled": "19 failed", "closed": "its target cannot be opened"}
    other = RouteOutline("B", "server elsewhere:4711", max_jobs=10, max_idle_jobs=5, copies=3, idle=2, **bars)
    await scene.link.publish_routes(
        PublishedRoutes((route, other), "true", 100, (LeftOutRoute("C", "it has no target"),))
    )
