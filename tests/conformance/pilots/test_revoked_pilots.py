"""Revoked pilots: no credential and no work any more, and jobs that come back when their leases run out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.pilots.pilots import PilotRecord, SecondUse
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.core.revocations import RevocationKind
from pilotage_server.operations.attempts.pilot_calls import credential_of
from pilotage_server.operations.pilots.enrolment import EnrolmentRefused, enrol_pilot, renew_pilot
from pilotage_server.operations.pilots.nodes import list_slots
from pilotage_server.operations.pilots.pilots import renewable_credentials
from pilotage_server.operations.pilots.revocation import PilotsToRevoke, RevokedPilots, revoke_pilots
from pilotage_server.operations.revocations import list_revocations, sync_revocations
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_pilots
from support.grid import LONG, Grid, Pilot, an_idle_slot
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

SHORT, ELSEWHERE = "CERN/ce02/short", "FNAL/ce01/long"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, LONG, SHORT, ELSEWHERE)


def revoke(grid: Grid, wanted: PilotsToRevoke, by: Identity | None = None, reason: str = "stolen") -> RevokedPilots:
    identity = by or an_operator()
    return grid.write(lambda transaction, state: revoke_pilots(transaction, state, identity, wanted, reason))


def revoke_all(grid: Grid, *pilots: Pilot) -> RevokedPilots:
    return revoke(grid, PilotsToRevoke([pilot.stamp for pilot in pilots]))


def record(grid: Grid, pilot: Pilot) -> PilotRecord:
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [pilot.stamp]))[pilot.stamp]


def enrol(grid: Grid, pilot: Pilot) -> object:
    credential = credential_of(pilot.identity)
    return grid.write(
        lambda transaction, state: enrol_pilot(transaction, state, credential, None, "nonce", "ipv4:1", SecondUse.DRAIN)
    )


def renew(grid: Grid, pilot: Pilot) -> object:
    return grid.read(lambda transaction, _: renew_pilot(transaction, credential_of(pilot.identity)))


def test_jobs_of_revoked_pilot_return_when_their_leases_end(grid: Grid) -> None:
    (job,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    assert revoke_all(grid, pilot) == RevokedPilots((pilot.stamp,), ())
    grid.pass_time(minutes=19)
    assert grid.job(job).state is JobState.RUNNING
    grid.pass_time(minutes=2)
    assert grid.job(job).state is JobState.WAITING
    assert grid.start_pilot().claim() == [job]


def test_revoked_pilot_is_lost_and_stays_lost_when_it_calls(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot())
    revoke_all(grid, pilot)
    for _ in range(2):
        found = record(grid, pilot)
        assert (found.state, found.reason) == (PilotState.LOST, "revoked by olga: stolen")
        assert not grid.read(lambda transaction, _: list_slots(transaction))
        grid.glidein(GlideinReport(pilot.stamp, "42", PilotState.RUNNING))
        pilot.beat()  # as at a server that does not know of the revocation yet


def test_revoked_pilot_gets_no_job_from_any_server(grid: Grid) -> None:
    grid.submit(count=2)
    pilot, other = grid.start_pilot(), grid.restarted()
    pilot.beat()
    revoke_all(grid, pilot)
    for server in (grid, other):
        answer = Pilot(server, pilot.identity).request_jobs()
        assert not answer.matches
        assert "credential of the pilot has ended" in str(answer.commands)


def test_revoked_pilot_neither_enrols_nor_renews(grid: Grid) -> None:
    registered, enrolled = grid.start_pilot(), grid.start_pilot()
    assert not isinstance(enrol(grid, enrolled), EnrolmentRefused)
    revoke_all(grid, registered, enrolled)
    assert enrol(grid, registered) == enrol(grid, enrolled) == EnrolmentRefused("its credential has ended")
    assert renew(grid, enrolled) == EnrolmentRefused("its credential has ended")
    stamps = [registered.stamp, enrolled.stamp]
    assert grid.read(lambda transaction, _: renewable_credentials(transaction, stamps)) == ()


def test_ended_pilot_renews_no_token(grid: Grid) -> None:
    pilot = grid.start_pilot()
    enrol(grid, pilot)
    assert not isinstance(renew(grid, pilot), EnrolmentRefused)
    pilot.beat(ending=True)
    assert isinstance(renew(grid, pilot), EnrolmentRefused)


@pytest.mark.parametrize(
    ("node", "revoked", "named"),
    [
        (TreeNode("cern"), (LONG, SHORT), "CERN"),
        (TreeNode("CERN", "ce02"), (SHORT,), "CERN/ce02"),
        (TreeNode("CERN", "CE01", "long"), (LONG,), "CERN/ce01/long"),
    ],
)
def test_place_revokes_its_present_pilots_only(
    grid: Grid, node: TreeNode, revoked: tuple[str, ...], named: str
) -> None:
    pilots = {queue: grid.start_pilot(queue) for queue in (LONG, SHORT, ELSEWHERE)}
    pilots[LONG].beat()
    done = revoke(grid, PilotsToRevoke(node=node))
    assert set(done.stamps) == {pilots[queue].stamp for queue in revoked}
    later = grid.start_pilot(revoked[0])
    now = grid.clock()
    assert {queue for queue, pilot in pilots.items() if record(grid, pilot).is_revoked(now)} == set(revoked)
    assert not record(grid, later).is_revoked(now)
    assert grid.state.revocations.end_of_pilot(later.stamp) is None
    (listed,) = grid.read(lambda transaction, _: list_revocations(transaction, an_operator()))
    assert (listed.kind, listed.subject, listed.by) == (RevocationKind.PILOTS, named, "olga")


def test_place_that_left_the_tree_is_revoked_too(grid: Grid) -> None:
    pilot = grid.start_pilot(ELSEWHERE)
    grid.put({"sites": {"CERN": {"ces": {"ce01": {"queues": {"long": {}}}}}}})
    assert revoke(grid, PilotsToRevoke(node=TreeNode("FNAL"))).stamps == (pilot.stamp,)
    with pytest.raises(InvalidInputError, match="no site 'NOWHERE'"):
        revoke(grid, PilotsToRevoke(node=TreeNode("NOWHERE")))


def test_unknown_and_ended_pilots_are_named(grid: Grid) -> None:
    pilot, ended = grid.start_pilot(), grid.start_pilot()
    ended.beat(ending=True)
    done = revoke(grid, PilotsToRevoke(["nobody", pilot.stamp, ended.stamp]))
    assert done == RevokedPilots((pilot.stamp,), ("nobody", ended.stamp))
    assert record(grid, ended).state is PilotState.ENDED


def test_other_servers_learn_of_revoked_pilots(grid: Grid) -> None:
    pilot, other = grid.start_pilot(), grid.restarted()
    revoke_all(grid, pilot)
    assert other.state.revocations.end_of_pilot(pilot.stamp) is None
    other.read(sync_revocations)
    for server in (grid, other, grid.restarted()):
        assert server.state.revocations.end_of_pilot(pilot.stamp) == grid.clock()


def test_revoked_pilot_ends_when_its_glidein_has_ended(grid: Grid) -> None:
    (job,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    revoke_all(grid, pilot)
    grid.clock.advance(timedelta(seconds=1))
    grid.glidein_ended(pilot)
    assert record(grid, pilot).state is PilotState.ENDED
    assert grid.job(job).state is JobState.WAITING


@pytest.mark.parametrize("evict", [False, True])
def test_credential_of_evicted_pilot_ends_after_the_time_for_its_reports(grid: Grid, evict: bool) -> None:
    grid.submit()
    pilot, other = grid.start_pilot(), grid.restarted()
    pilot.start(pilot.take())
    grid.drain(pilot, evict=evict)
    ends = grid.clock() + grid.state.rules.eviction if evict else None
    pilot.beat()
    assert record(grid, pilot).state is PilotState.DRAINING
    assert record(grid, pilot).credential_ends == ends
    other.read(sync_revocations)
    assert other.state.revocations.end_of_pilot(pilot.stamp) == ends
    grid.clock.advance(timedelta(minutes=30))
    grid.drain(pilot, evict=evict)
    assert record(grid, pilot).credential_ends == grid.state.revocations.end_of_pilot(pilot.stamp) == ends


def test_revocation_names_pilots_and_a_reason(grid: Grid) -> None:
    with pytest.raises(InvalidInputError, match="names nothing"):
        revoke(grid, PilotsToRevoke())
    with pytest.raises(InvalidInputError, match="reason"):
        revoke(grid, PilotsToRevoke(["p1"]), reason=" ")


def test_long_lists_of_stamps_are_shortened_in_the_record(grid: Grid) -> None:
    pilots = [grid.start_pilot() for _ in range(7)]
    revoke_all(grid, *pilots)
    (listed,) = grid.read(lambda transaction, _: list_revocations(transaction, an_operator()))
    assert listed.subject == "p1, p2, p3, p4, p5 and 2 more"
