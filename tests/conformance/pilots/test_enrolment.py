"""Enrolment in the database: one nonce wins on all servers, and another one is an alarm."""

from __future__ import annotations

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.pilots.pilots import PilotRecord, SecondUse
from pilotage_server.operations.pilots.enrolment import EnrolmentRefused, enrol_pilot
from pilotage_server.operations.pilots.pilots import report_glideins
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_pilots
from support.grid import LONG, Grid
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

CREDENTIAL = PilotCredential("p1", QueueId.parse(LONG))


STAMP = CREDENTIAL.stamp


@pytest.fixture
def pilots(database: Database, clock: VirtualClock) -> Grid:
    """Return a grid with one registered pilot."""
    grid = Grid(database, clock)
    assert grid.start_pilot().stamp == STAMP
    return grid


def enrol(
    grid: Grid,
    nonce_hash: str,
    second_use: SecondUse = SecondUse.DRAIN,
    credential: PilotCredential = CREDENTIAL,
    landed: str = "",
) -> PilotCredential | EnrolmentRefused:
    queue = QueueId.parse(landed) if landed else None
    return grid.write(
        lambda transaction, state: enrol_pilot(transaction, state, credential, queue, nonce_hash, "ipv4:1", second_use)
    )


def record(grid: Grid) -> PilotRecord:
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [STAMP]))[STAMP]


def test_repeated_nonce_gets_the_same_credential(pilots: Grid) -> None:
    first, repeated = enrol(pilots, "mine"), enrol(pilots, "mine")
    assert first == repeated == PilotCredential(STAMP, CREDENTIAL.queue, (), "mine")
    assert not record(pilots).alarm


@pytest.mark.parametrize(
    ("second_use", "drains", "evicts"),
    [(SecondUse.REPORT, False, False), (SecondUse.DRAIN, True, False), (SecondUse.EVICT, True, True)],
)
def test_second_nonce_is_refused_with_an_alarm(pilots: Grid, second_use: SecondUse, drains: bool, evicts: bool) -> None:
    enrol(pilots, "mine")
    refused = enrol(pilots, "another", second_use)
    assert isinstance(refused, EnrolmentRefused)
    assert refused.is_alarm
    pilot = record(pilots)
    assert pilot.alarm.endswith("by ipv4:1")
    assert (pilot.nonce_hash, bool(pilot.drain_reason), pilot.drain_evicts) == ("mine", drains, evicts)


def test_unknown_and_ended_pilots_are_refused_without_alarm(pilots: Grid) -> None:
    unknown = PilotCredential("unknown", CREDENTIAL.queue)
    elsewhere = PilotCredential(STAMP, QueueId("SITE", "ce", "another"))
    end = GlideinReport(STAMP, "", PilotState.ENDED)
    pilots.write(lambda transaction, state: report_glideins(transaction, state, an_operator(), [end]))
    for credential in (unknown, elsewhere, CREDENTIAL):
        refused = enrol(pilots, "mine", credential=credential)
        assert isinstance(refused, EnrolmentRefused)
        assert not refused.is_alarm
    assert not record(pilots).alarm
