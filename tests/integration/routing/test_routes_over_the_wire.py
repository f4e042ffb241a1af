"""RouteService over the wire: loading, routing and ending jobs, and the checks of its requests."""

from __future__ import annotations

import hashlib

import pytest

from pilotage.errors import InvalidInputError, LeadershipLostError, NotFoundError, PermissionDeniedError
from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.wire import description_from_wire
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import jobs_pb2
from pilotage.v1.job_service_pb2 import (
    JOB_CHANGE_HOLD,
    GetJobsRequest,
    ListOutputFilesRequest,
    UploadFileRequest,
    WatchEventsRequest,
)
from pilotage.v1.route_service_pb2 import (
    CopyReport,
    ExplainRoutesRequest,
    GiveUpCopiesRequest,
    LeftOutRoute,
    ListCopiesRequest,
    ListRoutesRequest,
    LookAtJobsRequest,
    NewCopy,
    PutRoutesRequest,
    ReportCopiesRequest,
    RouteJobsRequest,
    RouteOutline,
)
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.values.leadership import Leadership
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_server.core.identity import Role
from support.routers import WireRouter, an_end
from support.server import request_id
from support.wire_grid import QUEUE, WireGrid, a_job


@pytest.fixture
def router(grid: WireGrid) -> WireRouter:
    return WireRouter(grid)


def test_router_loads_jobs_with_their_descriptions(grid: WireGrid, router: WireRouter) -> None:
    description = JobDescription("/bin/echo", arguments="$(Process)", count=2, attributes={"WantRoute": True})
    first, second = grid.submit(description)
    found = router.routes.LookAtJobs(LookAtJobsRequest(job_ids=[second, 999_999, first])).jobs
    assert [job.job_id for job in found] == [second, first]
    assert found[0].state == jobs_pb2.JOB_STATE_WAITING
    assert "WantRoute = true" in found[0].ad
    run = description_from_wire(found[0].description)
    assert (run.arguments, run.environment["PILOTAGE_ATTEMPT"]) == ("1", "1")
    assert (found[0].owner, found[0].vo) == ("alice", grid.vo)


def submit_large(grid: WireGrid) -> list[int]:
    """Submit jobs of the maximum size, more than fit into one response."""
    large = JobDescription("/bin/true", environment={f"V{number}": "x" * 60_000 for number in range(34)})
    return [job_id for _ in range(12) for job_id in grid.submit(large)]


def test_jobs_beyond_the_response_budget_are_listed_as_unseen(grid: WireGrid, router: WireRouter) -> None:
    ids = submit_large(grid)
    answer = router.routes.LookAtJobs(LookAtJobsRequest(job_ids=ids))
    returned = [job.job_id for job in answer.jobs]
    assert returned + list(answer.unseen) == ids
    assert 1 < len(returned) < len(ids)


async def test_router_link_loads_waiting_jobs_in_several_calls(grid: WireGrid) -> None:
    ids = submit_large(grid)
    token = grid.server.token(Role.ROUTER, owner="agent:router")
    async with grid.server.async_channel(token) as channel:
        link = RouterServerLink(channel, Leadership("router", "me"))
        assert [job.job_id for job in await link.load_jobs(ids)] == ids


def test_routed_job_ends_with_its_output(grid: WireGrid, router: WireRouter) -> None:
    content = b"what the job reads"
    checksum = hashlib.sha256(content).hexdigest()
    grid.jobs.UploadFile(iter([UploadFileRequest(checksum=checksum, size=len(content), content=content)]))
    description = JobDescription("/bin/cat", input_files=(InputFile("in", checksum=checksum, size=len(content)),))
    (job_id,) = grid.submit(description)
    with pytest.raises(NotFoundError):
        router.download(job_id, checksum)
    (routed,) = router.route(job_id).jobs
    assert (routed.attempt, routed.refusal) == (1, "")
    assert router.download(job_id, checksum) == content
    (listed,) = router.routes.ListCopies(ListCopiesRequest(router=router.turn.agent)).copies
    assert (listed.job_id, listed.route, listed.state) == (job_id, "north", jobs_pb2.JOB_STATE_MATCHED)
    output_files = [
        jobs_pb2.OutputFile(name="out", checksum=router.upload(b"written"), size=7),
        jobs_pb2.OutputFile(name="log", checksum=hashlib.sha256(b"said").hexdigest(), size=4, content=b"said"),
    ]
    (result,) = router.send_reports(an_end(job_id, output_files=output_files)).results
    assert result.accepted
    assert grid.state_of(job_id) == "DONE"
    files = grid.jobs.ListOutputFiles(ListOutputFilesRequest(job_id=job_id)).files
    assert sorted(file.name for file in files) == ["log", "out"]
    assert not router.routes.ListCopies(ListCopiesRequest(router=router.turn.agent)).copies


def test_repeated_request_routes_no_job_twice(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    id_ = request_id()
    assert router.route(job_id, id_=id_) == router.route(job_id, id_=id_)
    assert router.route(job_id).jobs[0].refusal == "it is MATCHED"


def test_empty_report_returns_unwanted_routed_jobs(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    router.route(job_id)
    assert not router.send_reports().unwanted
    grid.change(JOB_CHANGE_HOLD, job_id)
    (unwanted,) = router.send_reports().unwanted
    assert (unwanted.job_id, unwanted.attempt) == (job_id, 1)
    assert "because" in unwanted.reason


def test_repeated_report_returns_newly_unwanted_jobs(grid: WireGrid, router: WireRouter) -> None:
    first, second = grid.submit(JobDescription("/bin/true", count=2))
    router.route(first, second)
    report = ReportCopiesRequest(request_id=request_id(), turn=router.turn, copies=[an_end(first)])
    before = router.routes.ReportCopies(report)
    grid.change(JOB_CHANGE_HOLD, second)
    after = router.routes.ReportCopies(report)
    assert before.results == after.results
    assert (
        [routed_job.job_id for routed_job in before.unwanted],
        [routed_job.job_id for routed_job in after.unwanted],
    ) == ([], [second])


async def test_router_link_loads_routed_jobs_in_several_calls(grid: WireGrid) -> None:
    ids = grid.submit(JobDescription("/bin/true", count=1003))
    router = WireRouter(grid)
    router.route(*ids[:1000])
    router.route(*ids[1000:])
    long = [CopyReport(job_id=job_id, attempt=1, reference="x" * 19_000) for job_id in ids[:1000]]
    router.send_reports(*long)
    grid.change(JOB_CHANGE_HOLD, *ids)
    token = grid.server.token(Role.ROUTER, owner="agent:router")
    async with grid.server.async_channel(token) as channel:
        link = RouterServerLink(channel, Leadership(router.turn.agent, router.turn.holder))
        assert [routed_job.job_id for routed_job in await link.routed_jobs()] == ids
        assert [routed_job.job_id for routed_job in (await link.report(request_id(), ())).unwanted] == ids


def test_router_sees_all_events_and_a_user_only_his_own(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    request = WatchEventsRequest(job_ids=[job_id], until_now=True)
    assert [event.job_id for page in router.jobs.WatchEvents(request) for event in page.events] == [job_id]
    bob = grid.user("bob")
    assert not [event for page in bob.WatchEvents(request) for event in page.events]
    with pytest.raises(NotFoundError):
        bob.GetJobs(GetJobsRequest(job_ids=[job_id]))


def test_users_see_the_routes_of_all_routers(grid: WireGrid, router: WireRouter) -> None:
    outlines = [
        RouteOutline(name="north", target=f"queue {QUEUE}", requirements="WantRoute", max_jobs=10, copies=3, idle=1),
        RouteOutline(name="south", target="server far:4711", own='[a = "b"]', max_jobs=1, max_idle_jobs=0, copies=1),
    ]
    left_out = [LeftOutRoute(name="west", reason="no target")]
    request = PutRoutesRequest(turn=router.turn, routes=outlines, max_jobs=100, left_out=left_out)
    router.routes.PutRoutes(request)
    users = RouteServiceStub(grid.channel(grid.server.token(vo=grid.vo)))
    (mine,) = [info for info in users.ListRoutes(ListRoutesRequest()).routers if info.name == router.turn.agent]
    assert (list(mine.routes), mine.max_jobs, mine.HasField("constraint")) == (outlines, 100, False)
    assert list(mine.left_out) == left_out


def test_only_routers_route_and_only_operators_give_up(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    router.route(job_id)
    users = RouteServiceStub(grid.channel(grid.server.token(vo=grid.vo)))
    with pytest.raises(PermissionDeniedError):
        users.RouteJobs(RouteJobsRequest(request_id=request_id()))
    give_up = GiveUpCopiesRequest(request_id=request_id(), router=router.turn.agent)
    with pytest.raises(PermissionDeniedError):
        router.routes.GiveUpCopies(give_up)
    router.stop()
    operators = RouteServiceStub(grid.channel(grid.server.token(Role.OPERATOR, owner="olga")))
    (routed_job,) = operators.GiveUpCopies(give_up).copies
    assert (routed_job.job_id, routed_job.state) == (job_id, jobs_pb2.JOB_STATE_WAITING)


def test_router_without_leadership_changes_nothing(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    router.turn.holder = "another"
    with pytest.raises(LeadershipLostError):
        router.route(job_id)
    with pytest.raises(LeadershipLostError):
        router.routes.PutRoutes(PutRoutesRequest(turn=router.turn))
    assert grid.state_of(job_id) == "WAITING"


def test_invalid_request_is_rejected_with_all_fields(router: WireRouter) -> None:
    copies = [NewCopy(job_id=1, route="n", target="t")] * 2
    with pytest.raises(InvalidInputError) as caught:
        router.routes.RouteJobs(RouteJobsRequest(request_id=request_id(), copies=copies))
    assert [violation.where for violation in caught.value.violations] == ["turn.agent", "turn.holder", "copies"]


def test_malformed_routing_request_is_rejected_alone(grid: WireGrid, router: WireRouter) -> None:
    nameless, free = grid.submit(JobDescription("/bin/true", count=2))
    copies = [
        NewCopy(job_id=job_id, route=route, target=f"queue {QUEUE}", queue=queue_to_wire(QUEUE))
        for job_id, route in ((nameless, " "), (free, "north"))
    ]
    request = RouteJobsRequest(request_id=request_id(), turn=router.turn, copies=copies)
    for _ in range(2):
        answers = router.routes.RouteJobs(request).jobs
        assert [(job.job_id, job.attempt, job.refusal) for job in answers] == [
            (nameless, 0, "route: is missing"),
            (free, 1, ""),
        ]
    assert [grid.state_of(job_id) for job_id in (nameless, free)] == ["WAITING", "MATCHED"]


def test_malformed_report_is_rejected_alone_and_changes_nothing(grid: WireGrid, router: WireRouter) -> None:
    bad_text, wrong, waits, sound = ids = grid.submit(JobDescription("/bin/true", count=4))
    router.route(*ids)
    waiting = jobs_pb2.JobReport(job_id=waits, attempt=1, state=jobs_pb2.JOB_STATE_WAITING)
    wrong_file = jobs_pb2.OutputFile(name="log", checksum=hashlib.sha256(b"said").hexdigest(), size=4, content=b"told")
    report = ReportCopiesRequest(request_id=request_id(), turn=router.turn)
    report.copies.add(job_id=bad_text, attempt=1, reference="half\0")
    report.copies.append(an_end(wrong, output_files=[wrong_file]))
    report.copies.add(job_id=waits, attempt=1, reference="seven", report=waiting)
    report.copies.append(an_end(sound))
    for _ in range(2):
        answer = router.routes.ReportCopies(report)
        assert [(result.job_id, result.accepted) for result in answer.results] == [(sound, True)]
        assert {
            (routed_job.job_id, routed_job.attempt): routed_job.fault.split(": ")[0] for routed_job in answer.malformed
        } == {
            (bad_text, 1): "reference",
            (wrong, 1): "report.output_files[0].content",
            (waits, 1): "report.state",
        }
    assert [grid.state_of(job_id) for job_id in ids] == ["MATCHED", "MATCHED", "MATCHED", "DONE"]
    listed = router.routes.ListCopies(ListCopiesRequest(router=router.turn.agent)).copies
    assert [(routed_job.job_id, routed_job.reference) for routed_job in listed] == [
        (bad_text, ""),
        (wrong, ""),
        (waits, ""),
    ]
    assert router.send_reports(an_end(wrong)).results[0].accepted


def test_report_must_match_its_job_and_attempt(router: WireRouter) -> None:
    report = jobs_pb2.JobReport(job_id=3, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    (malformed,) = router.send_reports(CopyReport(job_id=2, attempt=1, report=report)).malformed
    assert (malformed.job_id, malformed.fault) == (2, "report: is of another job or attempt")


def test_only_the_owner_sees_why_a_job_was_not_routed(grid: WireGrid, router: WireRouter) -> None:
    (job_id,) = grid.submit(a_job())
    outline = RouteOutline(name="north", target=f"queue {QUEUE}", requirements="WantRoute", max_jobs=1, copies=1)
    router.routes.PutRoutes(PutRoutesRequest(turn=router.turn, routes=[outline]))
    mine = RouteServiceStub(grid.channel(grid.server.token(vo=grid.vo)))
    answer = mine.ExplainRoutes(ExplainRoutesRequest(job_id=job_id))
    (verdict,) = [verdict for verdict in answer.verdicts if verdict.router == router.turn.agent]
    assert [obstacle.kind for obstacle in verdict.obstacles] == ["requirements", "full"]
    assert not answer.HasField("copy")
    assert answer.obstacle == ""
    others = RouteServiceStub(grid.channel(grid.server.token(owner="bob", vo=grid.vo)))
    with pytest.raises(NotFoundError):
        others.ExplainRoutes(ExplainRoutesRequest(job_id=job_id))
