"""What the token of an agent lets it do over the wire: its calls, its queues, its VOs and its turns."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from pilotage.errors import InvalidInputError, LeadershipLostError, NotFoundError, PermissionDeniedError
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1.agent_service_pb2 import GiveBackTurnRequest, TakeTurnRequest
from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
from pilotage.v1.job_service_pb2 import GetJobDescriptionRequest, GetJobsRequest, WatchEventsRequest
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.matcher_service_pb2 import GetSubmitPoolsForQueueRequest, NodeState
from pilotage.v1.matcher_service_pb2_grpc import MatcherServiceStub
from pilotage.v1.node_service_pb2 import GetNodeUseRequest, NodeId, SetNodeAttributesRequest
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2 import (
    PILOT_STATE_ENDED,
    GlideinReport,
    RegisterPilotsRequest,
    RenewCredentialsRequest,
    ReportGlideinsRequest,
)
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.pool_service_pb2 import GetDemandRequest
from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub
from pilotage.v1.race_service_pb2 import NewRaceCopy, StartCopiesRequest
from pilotage.v1.race_service_pb2_grpc import RaceServiceStub
from pilotage.v1.resource_service_pb2 import ListQueuesRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.route_service_pb2 import ListCopiesRequest, LookAtJobsRequest, PutRoutesRequest
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage.v1.values_pb2 import Amounts, Turn
from pilotage_server.core.identity import AGENT_NAMES, AgentBounds, Role
from support.routers import WireRouter
from support.server import RunningServer, request_id
from support.wire_grid import QUEUE, WireGrid, a_job

SHORT = QueueId("SITE", "ce1", "short")
LONG_ONLY = AgentBounds(queues=("site/CE1/long",))
SECRET = JobDescription("/bin/true", environment={"PASSWORD": "secret"})


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


def agent(grid: WireGrid, role: Role, bounds: AgentBounds | None = None) -> grpc.Channel:
    return grid.channel(grid.server.token(role, owner=f"{role}:test", bounds=bounds or AgentBounds()))


def registration(queue: QueueId = QUEUE, *vos: str) -> RegisterPilotsRequest:
    return RegisterPilotsRequest(request_id=request_id(), queue=queue_to_wire(queue), count=1, vos=vos)


@pytest.mark.parametrize("role", [role for role in AGENT_NAMES if role is not Role.ROUTER])
def test_agent_that_sends_no_jobs_reads_no_descriptions(grid: WireGrid, role: Role) -> None:
    (job,) = grid.submit(SECRET)
    channel = agent(grid, role)
    for read in (
        lambda: RouteServiceStub(channel).LookAtJobs(LookAtJobsRequest(job_ids=[job])),
        lambda: JobServiceStub(channel).GetJobDescription(GetJobDescriptionRequest(job_id=job)),
        lambda: JobServiceStub(channel).GetJobs(GetJobsRequest(job_ids=[job])),
        lambda: list(JobServiceStub(channel).WatchEvents(WatchEventsRequest(until_now=True))),
    ):
        with pytest.raises(PermissionDeniedError):
            read()


def test_router_reads_only_jobs_that_wait_or_that_it_has(grid: WireGrid) -> None:
    waiting, ours, theirs, at_pilot = grid.submit(SECRET, SECRET, SECRET, SECRET)
    router, other = WireRouter(grid), WireRouter(grid)
    router.route(ours)
    other.route(theirs)
    pilot = grid.start_pilot()
    matched = [match.job_id for match in pilot.request_jobs().matches]
    assert len(matched) == 1
    bound = AgentBounds(turns=(router.turn.agent,))
    routes = RouteServiceStub(agent(grid, Role.ROUTER, bound))
    found = routes.LookAtJobs(LookAtJobsRequest(job_ids=[waiting, ours, theirs, at_pilot])).jobs
    assert {job.job_id for job in found} == {waiting, ours, at_pilot} - set(matched)


def test_router_of_a_vo_sees_and_routes_no_jobs_of_others(grid: WireGrid) -> None:
    (job,) = grid.submit(SECRET)
    router = WireRouter(grid, bounds=AgentBounds(vos=("elsewhere",)))
    assert not router.routes.LookAtJobs(LookAtJobsRequest(job_ids=[job])).jobs
    assert router.route(job).jobs[0].refusal == f"there is no job {job}"
    events = [event for page in router.jobs.WatchEvents(WatchEventsRequest(until_now=True)) for event in page.events]
    assert job not in {event.job_id for event in events}
    mine = WireRouter(grid, bounds=AgentBounds(vos=(grid.vo.upper(),)))
    events = [event for page in mine.jobs.WatchEvents(WatchEventsRequest(until_now=True)) for event in page.events]
    assert job in {event.job_id for event in events}
    assert not mine.route(job).jobs[0].refusal


def test_agent_cannot_end_pilots_of_foreign_queues(grid: WireGrid) -> None:
    (job,) = grid.submit(a_job())
    pilot = grid.start_pilot(SHORT)
    assert pilot.request_jobs().matches
    report = ReportGlideinsRequest(
        request_id=request_id(), reports=[GlideinReport(stamp=pilot.stamp, state=PILOT_STATE_ENDED)]
    )
    director = PilotServiceStub(agent(grid, Role.DIRECTOR, LONG_ONLY))
    assert director.ReportGlideins(report).unknown_stamps == [pilot.stamp]
    assert grid.state_of(job) == "MATCHED"
    assert not director.RenewCredentials(RenewCredentialsRequest(stamps=[pilot.stamp])).pilots
    for role in (Role.ROUTER, Role.DRAINER, Role.CLEANER, Role.RACER):
        with pytest.raises(PermissionDeniedError):
            PilotServiceStub(agent(grid, role)).ReportGlideins(report)


def test_director_registers_pilots_only_within_its_bounds(grid: WireGrid) -> None:
    channel = agent(grid, Role.DIRECTOR, AgentBounds(LONG_ONLY.queues, (grid.vo,)))
    pilots, queue = PilotServiceStub(channel), queue_to_wire(SHORT)
    assert len(pilots.RegisterPilots(registration(QUEUE, grid.vo)).pilots) == 1
    for refused in (registration(SHORT, grid.vo), registration(QUEUE, grid.vo, "other")):
        with pytest.raises(PermissionDeniedError):
            pilots.RegisterPilots(refused)
    with pytest.raises(PermissionDeniedError, match="bound to the queues"):
        PoolServiceStub(channel).GetDemand(GetDemandRequest(queues=[queue]))
    with pytest.raises(PermissionDeniedError, match="bound to the queues"):
        MatcherServiceStub(channel).GetSubmitPoolsForQueue(GetSubmitPoolsForQueueRequest(queues=[queue]))
    listed = ResourceServiceStub(channel).ListQueues(ListQueuesRequest()).queues
    assert [each.queue.queue for each in listed] == ["long"]


def test_director_registers_sets_of_queues_only_within_its_bounds(grid: WireGrid) -> None:
    channel = agent(grid, Role.DIRECTOR, AgentBounds(("SITE/*/long", "other/*/*")))
    pilots, pools = PilotServiceStub(channel), PoolServiceStub(channel)
    request = RegisterPilotsRequest(request_id=request_id(), queue_set=["site/ce1/*ong"], count=1)
    with pytest.raises(PermissionDeniedError, match="do not cover site/ce1/\\*ong"):
        pilots.RegisterPilots(request)
    request.queue_set[:] = ["site/ce1/long"]
    (made,) = pilots.RegisterPilots(request).pilots
    (shown,) = (each for each in grid.list_pilots() if each.stamp == made.stamp)
    assert not shown.HasField("queue")
    assert shown.queue_set == ["site/ce1/long"]
    assert pools.GetDemand(GetDemandRequest(queue_set=["site/ce1/long"])).set_supply.pilots_waiting >= 1
    with pytest.raises(PermissionDeniedError, match="do not cover"):
        pools.GetDemand(GetDemandRequest(queue_set=["*/*/*"]))
    long = [f"é/é/{number}" for number in range(500)]
    for wrong, why in (
        (["long"], "is not SITE/CE/QUEUE"),
        ([], "either a queue or a queue_set"),
        (long, "has more than 4096 characters as JSON"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            pilots.RegisterPilots(RegisterPilotsRequest(request_id=request_id(), queue_set=wrong, count=1))


def test_pilots_of_a_director_of_a_vo_serve_that_vo(grid: WireGrid) -> None:
    pilots = PilotServiceStub(agent(grid, Role.DIRECTOR, AgentBounds(vos=("elsewhere",))))
    (made,) = pilots.RegisterPilots(registration()).pilots
    (shown,) = (each for each in grid.list_pilots() if each.stamp == made.stamp)
    assert shown.vos == ["elsewhere"]


def test_drainer_drains_only_nodes_of_its_queues(grid: WireGrid) -> None:
    node = NodeState(name=request_id(), amounts=Amounts(cpus=1), settable_attributes=["OnlyMulticore"])
    grid.start_pilot(SHORT).heartbeat(node=node)
    nodes = NodeServiceStub(agent(grid, Role.DRAINER, LONG_ONLY))
    seen = nodes.GetNodeUse(GetNodeUseRequest(attribute="OnlyMulticore")).nodes
    assert node.name not in {each.node.node for each in seen}
    for name in (node.name, "no-such-node"):
        request = SetNodeAttributesRequest(
            request_id=request_id(), nodes=[NodeId(site="SITE", node=name)], set={"OnlyMulticore": "True"}
        )
        with pytest.raises(PermissionDeniedError):
            nodes.SetNodeAttributes(request)
    everywhere = NodeServiceStub(agent(grid, Role.DRAINER, AgentBounds(queues=("SITE/*/*",))))
    request.nodes[0].node = node.name
    assert everywhere.SetNodeAttributes(request).nodes


def test_racer_copies_only_jobs_of_its_vos(grid: WireGrid) -> None:
    (job,) = grid.submit(a_job())
    request = StartCopiesRequest(request_id=request_id(), copies=[NewRaceCopy(job_id=job, reason="slow")])
    bound = RaceServiceStub(agent(grid, Role.RACER, AgentBounds(vos=("elsewhere",))))
    assert bound.StartCopies(request).copies[0].refusal == f"there is no job {job}"
    request.request_id = request_id()
    refusal = RaceServiceStub(agent(grid, Role.RACER)).StartCopies(request).copies[0].refusal
    assert refusal != f"there is no job {job}"


@pytest.mark.parametrize("role", AGENT_NAMES)
def test_agent_takes_no_turn_of_another_agent(grid: WireGrid, role: Role) -> None:
    turns = AgentServiceStub(agent(grid, role))
    for kind, name in ((kind, name) for kind, names in AGENT_NAMES.items() for name in names):
        turn = Turn(agent=f"{name} of {request_id()}", holder="me")
        request = TakeTurnRequest(turn=turn, for_s=30)
        if kind is role:
            assert turns.TakeTurn(request).taken
        else:
            with pytest.raises(PermissionDeniedError):
                turns.TakeTurn(request)
            with pytest.raises(PermissionDeniedError):
                turns.GiveBackTurn(GiveBackTurnRequest(turn=turn))


def test_router_bound_to_a_turn_acts_under_no_other(grid: WireGrid) -> None:
    theirs = WireRouter(grid)
    bound = agent(grid, Role.ROUTER, AgentBounds(turns=("job router of ours",)))
    routes = RouteServiceStub(bound)
    for act in (
        lambda: AgentServiceStub(bound).TakeTurn(TakeTurnRequest(turn=theirs.turn, for_s=30)),
        lambda: routes.PutRoutes(PutRoutesRequest(turn=theirs.turn)),
        lambda: routes.ListCopies(ListCopiesRequest(router=theirs.turn.agent)),
    ):
        with pytest.raises(PermissionDeniedError):
            act()
    with pytest.raises(LeadershipLostError):
        routes.PutRoutes(PutRoutesRequest(turn=Turn(agent="job router of ours", holder="me")))


def test_director_downloads_no_input_of_jobs(grid: WireGrid) -> None:
    (job,) = grid.submit(a_job())
    router = WireRouter(grid)
    router.route(job)
    with pytest.raises(NotFoundError):
        router.download(job, "0" * 64)
    with pytest.raises(PermissionDeniedError):
        JobServiceStub(agent(grid, Role.DIRECTOR)).GetJobs(GetJobsRequest(job_ids=[job]))
