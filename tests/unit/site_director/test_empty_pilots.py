"""What a server makes of pilots that came back empty, and how far a director trusts their queue."""

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


def seen(*pilots: EmptyPilot, proven: float | None = None) -> EmptyReturns | None:
    return empty_returns(pilots, None if proven is None else at(proven), at(100))


def test_pilots_that_were_sent_before_the_first_was_back_are_one_sending() -> None:
    assert seen(a_pilot(0, 20), a_pilot(5, 21), a_pilot(10, 30)) == EmptyReturns(3, 1, timedelta(minutes=70))


def test_pilots_that_were_sent_although_one_was_back_are_the_next_sending() -> None:
    pilots = (a_pilot(0, 20), a_pilot(21, 40), a_pilot(25, 39), a_pilot(50, 60))
    assert seen(*pilots) == EmptyReturns(4, 3, timedelta(minutes=40))


def test_a_pilot_that_has_run_a_job_clears_those_sent_before_and_together_with_it() -> None:
    pilots = (a_pilot(0, 20), a_pilot(30, 50), a_pilot(60, 80))
    assert seen(*pilots, proven=30) == EmptyReturns(1, 1, timedelta(minutes=20))
    assert seen(*pilots, proven=60) is None


def test_without_empty_pilots_nothing_is_to_be_said() -> None:
    assert seen() is None


def evidence(sendings: int, last_ago: timedelta = timedelta(0)) -> EmptyReturns:
    return EmptyReturns(3 * sendings, sendings, last_ago)


def test_each_sending_that_came_back_empty_halves_what_a_queue_is_trusted_with() -> None:
    assert [pilot_allowance(10, evidence(sendings)).pilots for sendings in range(5)] == [10, 5, 2, 1, 0]


def test_after_that_one_pilot_goes_on_trial_after_a_pause_that_doubles_up_to_a_bound() -> None:
    for sendings, pause in ((4, FIRST_PAUSE), (5, 2 * FIRST_PAUSE), (6, 4 * FIRST_PAUSE), (30, LONGEST_PAUSE)):
        early = pilot_allowance(10, evidence(sendings, pause - timedelta(seconds=1)))
        assert early.pilots == 0
        assert early.reason.endswith("came back without having run a job; the next probe goes in 1 s")
        assert pilot_allowance(10, evidence(sendings, pause)).pilots == 1


@pytest.mark.parametrize(("pilots", "words"), [(1, "the last pilot came back"), (2, "the last 2 pilots came back")])
def test_the_reason_says_how_many_came_back(pilots: int, words: str) -> None:
    assert words in pilot_allowance(10, EmptyReturns(pilots, 1)).reason
