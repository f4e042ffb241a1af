"""RaceService over the wire: what is refused, with its place, and what owners and racers see of a race."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.v1.race_service_pb2 import FindStragglersRequest, ListRacesRequest, NewRaceCopy, StartCopiesRequest
from pilotage.v1.race_service_pb2_grpc import RaceServiceStub
from pilotage.v1.values_pb2 import Turn
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id, shared_server

__all__ = ["shared_server"]


@pytest.fixture
def races(shared_server: RunningServer) -> Iterator[RaceServiceStub]:
    with shared_server.channel(shared_server.token(Role.AGENT, owner="agent:test")) as channel:
        yield RaceServiceStub(channel)


def places(caught: pytest.ExceptionInfo[InvalidInputError]) -> list[str]:
    return [violation.where for violation in caught.value.violations]


def asked(*job_ids: int, **fields: object) -> StartCopiesRequest:
    copies = [NewRaceCopy(job_id=job_id, reason="it lags behind") for job_id in job_ids]
    return StartCopiesRequest(request_id=request_id(), copies=copies, **fields)  # type: ignore[arg-type]


def test_copies_are_asked_for_by_ids_of_different_jobs(races: RaceServiceStub) -> None:
    with pytest.raises(InvalidInputError) as caught:
        races.StartCopies(asked(1, -2, 0, turn=Turn(agent="racer")))
    assert places(caught) == ["turn.holder", "copies[1].job_id", "copies[2].job_id"]
    for wrong in (asked(), asked(1, 2, 1), asked(*range(1, 1002))):
        with pytest.raises(InvalidInputError) as caught:
            races.StartCopies(wrong)
        assert places(caught) == ["copies"]


def test_a_copy_of_a_job_that_is_not_there_is_refused_and_no_other(races: RaceServiceStub) -> None:
    (answer,) = races.StartCopies(asked(12345)).copies
    assert (answer.job_id, answer.copy_id, answer.refusal) == (12345, 0, "there is no job 12345")


def test_a_racer_without_the_turn_starts_nothing(races: RaceServiceStub) -> None:
    with pytest.raises(Exception, match="no longer leads"):
        races.StartCopies(asked(1, turn=Turn(agent="racer", holder="nobody")))


def test_owners_see_races_and_do_not_start_any(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel:
        mine = RaceServiceStub(channel)
        answer = mine.ListRaces(ListRacesRequest())
        assert (list(answer.races), list(answer.costs), answer.next_page_token) == ([], [], "")
        for call in (lambda: mine.StartCopies(asked(1)), lambda: mine.FindStragglers(FindStragglersRequest())):
            with pytest.raises(PermissionDeniedError):
                call()
        with pytest.raises(InvalidInputError) as caught:
            mine.ListRaces(ListRacesRequest(page_size=-1, job_ids=[0]))
        assert places(caught) == ["job_ids[0]", "page_size"]


def test_where_nothing_runs_there_is_nothing_to_race(races: RaceServiceStub) -> None:
    answer = races.FindStragglers(FindStragglersRequest())
    assert (list(answer.sets), answer.next_after_set, list(answer.load.owners)) == ([], 0, [])
    with pytest.raises(InvalidInputError) as caught:
        races.FindStragglers(FindStragglersRequest(after_jobs=dict.fromkeys(range(10_001), 1)))
    assert places(caught) == ["after_jobs"]
