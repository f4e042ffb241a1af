"""Pilots that ended without a job, and the smaller allowance of their queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage.values.demand import EmptyReturns
from pilotage_agents.site_director.planning import FIRST_PAUSE, LONGEST_PAUSE, pilot_allowance
from pilotage_server.core.matching.demand import EmptyPilot, empty_returns

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def a_pilot(registered: float, ended: float) -> EmptyPilot:
    return EmptyPilot(at(registered), at(ended))


def returns_of(*pilots: EmptyPilot, proven: float | None = None) -> EmptyReturns | None:
    return empty_returns(pilots, None if proven is None else at(proven), at(100))


def test_pilots_sent_before_first_return_are_one_batch() -> None:
    assert returns_of(a_pilot(0, 20), a_pilot(5, 21), a_pilot(10, 30)) == EmptyReturns(3, 1, timedelta(minutes=70))


def test_pilots_sent_after_a_return_are_the_next_batch() -> None:
    pilots = (a_pilot(0, 20), a_pilot(21, 40), a_pilot(25, 39), a_pilot(50, 60))
    assert returns_of(*pilots) == EmptyReturns(4, 3, timedelta(minutes=40))


def test_successful_pilot_clears_its_batch_and_earlier_ones() -> None:
    pilots = (a_pilot(0, 20), a_pilot(30, 50), a_pilot(60, 80))
    assert returns_of(*pilots, proven=30) == EmptyReturns(1, 1, timedelta(minutes=20))
    assert returns_of(*pilots, proven=60) is None


def test_no_empty_pilots_give_no_returns() -> None:
    assert returns_of() is None


def evidence(batches: int, last_ago: timedelta = timedelta(0)) -> EmptyReturns:
    return EmptyReturns(3 * batches, batches, last_ago)


def test_each_empty_batch_halves_allowance() -> None:
    assert [pilot_allowance(10, evidence(batches)).pilots for batches in range(5)] == [10, 5, 2, 1, 0]


def test_single_probes_follow_with_doubling_pauses() -> None:
    for batches, pause in ((4, FIRST_PAUSE), (5, 2 * FIRST_PAUSE), (6, 4 * FIRST_PAUSE), (30, LONGEST_PAUSE)):
        early = pilot_allowance(10, evidence(batches, pause - timedelta(seconds=1)))
        assert early.pilots == 0
        assert early.reason.endswith("came back without having run a job; the next probe goes in 1 s")
        assert pilot_allowance(10, evidence(batches, pause)).pilots == 1


@pytest.mark.parametrize(("pilots", "text"), [(1, "the last pilot came back"), (2, "the last 2 pilots came back")])
def test_reason_has_number_of_empty_pilots(pilots: int, text: str) -> None:
    assert text in pilot_allowance(10, EmptyReturns(pilots, 1)).reason
