"""Pilots of a set of queues: each is bound to the queue that it names at its enrolment."""

from __future__ import annotations

from functools import partial

import pytest

from pilotage.errors import NotFoundError, PermissionDeniedError
from pilotage.resources.tree import QueueId
from pilotage.values.demand import DemandAnswer, QueueSupply
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.identity import NO_QUEUE, AgentBounds, Identity, PilotCredential, Role
from pilotage_server.core.pilots.pilots import PilotFilter, PilotRecord, SecondUse
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.pilots.enrolment import EnrolmentRefused, enrol_pilot, renew_pilot
from pilotage_server.operations.pilots.pilots import (
    NewPilots,
    list_pilots,
    register_pilots,
    renewable_credentials,
    report_glideins,
)
from pilotage_server.operations.pilots.revocation import PilotsToRevoke, revoke_pilots
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_set_pilots
from support.grid import LONG, Grid, Pilot, a_tree, an_idle_slot
from support.jobs import an_operator
from support.sql_statements import plan_of
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SHORT, ELSEWHERE, UNKNOWN = "CERN/ce01/short", "Lyon/ce1/short", "CERN/ce01/none"
CERN = ("CERN/*/*",)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    grid = Grid(database, clock)
    grid.put(a_tree(LONG, SHORT, ELSEWHERE))
    return grid


def a_director(*queues: str) -> Identity:
    return Identity("agent:d", "", (), frozenset({Role.DIRECTOR}), bounds=AgentBounds(queues))


def register(grid: Grid, stamp: str = "p1", identity: Identity | None = None, *queue_set: str) -> PilotCredential:
    wanted = NewPilots(NO_QUEUE, 1, queue_set=queue_set or CERN)
    caller = identity or an_operator()
    (credential,) = grid.write(
        lambda transaction, state: register_pilots(transaction, state, caller, wanted, lambda: stamp)
    )
    return credential


def enrol(
    grid: Grid, credential: PilotCredential, queue: str | None, nonce_hash: str = "mine"
) -> PilotCredential | EnrolmentRefused:
    landed = None if queue is None else QueueId.parse(queue)
    return grid.write(
        lambda transaction, state: enrol_pilot(
            transaction, state, credential, landed, nonce_hash, "ipv4:1", SecondUse.DRAIN
        )
    )


def landed_pilot(grid: Grid, stamp: str, queue: str) -> Pilot:
    bound = enrol(grid, register(grid, stamp), queue)
    assert isinstance(bound, PilotCredential)
    return grid.pilot_of(bound)


def record(grid: Grid, stamp: str = "p1") -> PilotRecord:
    listed = grid.read(lambda transaction, _: list_pilots(transaction, PilotFilter(ended=True)))
    (found,) = (each.pilot for each in listed if each.pilot.stamp == stamp)
    return found


def demand(grid: Grid, *queues: str) -> DemandAnswer:
    ids = [QueueId.parse(queue) for queue in queues]
    return grid.read(lambda transaction, state: get_demand(transaction, state, ids, queue_set=CERN))


def test_pilot_is_bound_to_the_queue_that_it_names(grid: Grid) -> None:
    credential = register(grid)
    assert (record(grid).queue, record(grid).queue_set) == (NO_QUEUE, CERN)
    bound = PilotCredential("p1", QueueId.parse(SHORT), (), "mine")
    assert [enrol(grid, credential, SHORT) for _ in ("lost answer", "repeated")] == [bound, bound]
    assert (record(grid).queue, record(grid).queue_set) == (bound.queue, CERN)
    assert grid.read(lambda transaction, _: renew_pilot(transaction, bound)) == bound
    grid.submit()
    assert grid.pilot_of(bound).claim()


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (None, "does not say in which it is"),
        (ELSEWHERE, f"it is in the queue {ELSEWHERE}, but its enrolment secret is for the queues CERN/*/*"),
        (UNKNOWN, f"it is in the queue {UNKNOWN}, which is not in the resource tree"),
    ],
)
def test_pilot_elsewhere_is_refused_and_its_secret_stays_valid(grid: Grid, queue: str | None, why: str) -> None:
    credential = register(grid)
    refused = enrol(grid, credential, queue)
    assert isinstance(refused, EnrolmentRefused)
    assert why in refused.why
    assert not record(grid).alarm
    assert isinstance(enrol(grid, credential, LONG), PilotCredential)


@pytest.mark.parametrize(
    ("nonce_hash", "why", "alarm"),
    [("mine", f"it is bound to the queue {LONG}", False), ("of a restarted one", "secret has been used", True)],
)
def test_enrolled_pilot_stays_in_its_queue(grid: Grid, nonce_hash: str, why: str, alarm: bool) -> None:
    credential = register(grid)
    enrol(grid, credential, LONG)
    refused = enrol(grid, credential, SHORT, nonce_hash)
    assert isinstance(refused, EnrolmentRefused)
    assert why in refused.why
    assert refused.is_alarm is alarm
    assert record(grid).queue == QueueId.parse(LONG)


def test_secret_of_one_queue_enrols_in_no_other(grid: Grid) -> None:
    pilot = grid.start_pilot(LONG)
    credential = PilotCredential(pilot.stamp, QueueId.parse(LONG))
    refused = enrol(grid, credential, SHORT)
    assert isinstance(refused, EnrolmentRefused)
    assert refused.why == f"its enrolment secret is for the queue {LONG}, not {SHORT}"
    assert isinstance(enrol(grid, credential, LONG), PilotCredential)


def test_set_is_registered_only_within_bounds_and_tree(grid: Grid) -> None:
    for bounds, wanted in ((("cern/*/*",), CERN), (("*/*/*",), CERN), (("CERN/*",), ("CERN/ce01/*", SHORT))):
        register(grid, f"of {bounds}", a_director(*bounds), *wanted)
    for bounds, wanted in ((("CERN/ce01/*",), CERN), (("CERN/?/*",), CERN), (("CERN/*",), (*CERN, ELSEWHERE))):
        with pytest.raises(PermissionDeniedError, match="do not cover"):
            register(grid, "refused", a_director(*bounds), *wanted)
    with pytest.raises(NotFoundError):
        register(grid, "nowhere", None, "RAL/*/*")


@pytest.mark.parametrize(("queues", "is_known"), [(("CERN/*/*",), True), (("CERN/ce01/long",), False)])
def test_director_reports_and_renews_only_pilots_of_sets_in_its_bounds(
    grid: Grid, queues: tuple[str, ...], is_known: bool
) -> None:
    credential, director = register(grid), a_director(*queues)
    report = GlideinReport("p1", "1", PilotState.SUBMITTED)
    answer = grid.write(lambda transaction, state: report_glideins(transaction, state, director, [report]))
    assert answer.unknown == (() if is_known else ("p1",))
    renewed = grid.read(lambda transaction, _: renewable_credentials(transaction, ["p1"], director.bounds))
    assert renewed == ((credential,) if is_known else ())


def test_revocation_of_a_site_concerns_the_pilots_that_landed_there(grid: Grid) -> None:
    waiting = register(grid, "p1")
    landed_pilot(grid, "p2", LONG)
    for wanted, revoked in ((PilotsToRevoke(node=TreeNode("CERN")), ("p2",)), (PilotsToRevoke(("p1",)), ("p1",))):
        done = grid.write(partial(revoke_pilots, identity=an_operator(), wanted=wanted, reason="broken into"))
        assert done.stamps == revoked
    refused = enrol(grid, waiting, LONG)
    assert isinstance(refused, EnrolmentRefused)
    assert refused.why == "its credential has ended"


def test_pilots_count_in_the_set_until_they_land(grid: Grid) -> None:
    for stamp in ("p1", "p2", "p3"):
        register(grid, stamp)
    register(grid, "of another set", None, "*/*/*")
    landed_pilot(grid, "p4", SHORT).show(an_idle_slot())
    grid.submit(count=2)
    answer = demand(grid, LONG, SHORT)
    assert [each.waiting for each in answer.demands] == [2]
    assert answer.set_supply == QueueSupply(known=True, pilots_waiting=3)
    assert [(each.pilots_waiting, each.pilots_running, each.idle_cpus) for each in answer.supplies] == [
        (0, 0, 0),
        (0, 1, 1),
    ]


def test_empty_returns_of_a_set_end_with_a_job_at_any_of_its_queues(grid: Grid) -> None:
    register(grid, "p1")
    grid.glidein(GlideinReport("p1", "1", PilotState.SUBMITTED))
    grid.glidein(GlideinReport("p1", "1", PilotState.ENDED, "exit code 1"))
    landed_pilot(grid, "p2", SHORT).beat(ending=True, ending_reason="it had no job", came_back_empty=True)
    returns = demand(grid).set_supply.empty_returns
    assert returns is not None
    assert returns.pilots == 2
    grid.pass_time(minutes=1)
    grid.submit()
    pilot = landed_pilot(grid, "p3", LONG)
    pilot.start(pilot.take())
    assert demand(grid).set_supply.empty_returns is None


def test_supply_of_a_set_is_read_by_index(database: Database) -> None:
    assert "ix_pilots_queue_set" in plan_of(
        database, lambda transaction: load_set_pilots(transaction.session, CERN, transaction.now)
    )
