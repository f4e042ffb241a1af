"""RaceService over the wire: checks, permissions and empty answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.errors import InvalidInputError, LeadershipLostError, PermissionDeniedError
from pilotage.v1.race_service_pb2 import FindStragglersRequest, ListRacesRequest, NewRaceCopy, StartCopiesRequest
from pilotage.v1.race_service_pb2_grpc import RaceServiceStub
from pilotage.v1.values_pb2 import Turn
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id


@pytest.fixture
def races(shared_server: RunningServer) -> Iterator[RaceServiceStub]:
    with shared_server.channel(shared_server.token(Role.RACER, owner="agent:test")) as channel:
        yield RaceServiceStub(channel)


def fields_of(caught: pytest.ExceptionInfo[InvalidInputError]) -> list[str]:
    return [violation.where for violation in caught.value.violations]


def start_request(*job_ids: int, **fields: object) -> StartCopiesRequest:
    copies = [NewRaceCopy(job_id=job_id, reason="it lags behind") for job_id in job_ids]
    return StartCopiesRequest(request_id=request_id(), copies=copies, **fields)  # type: ignore[arg-type]


def test_race_copies_need_ids_of_different_jobs(races: RaceServiceStub) -> None:
    with pytest.raises(InvalidInputError) as caught:
        races.StartCopies(start_request(1, -2, 0, turn=Turn(agent="racer")))
    assert fields_of(caught) == ["turn.holder", "copies[1].job_id", "copies[2].job_id"]
    for invalid in (start_request(), start_request(1, 2, 1), start_request(*range(1, 1002))):
        with pytest.raises(InvalidInputError) as caught:
            races.StartCopies(invalid)
        assert fields_of(caught) == ["copies"]


def test_race_copy_of_an_unknown_job_is_rejected(races: RaceServiceStub) -> None:
    (answer,) = races.StartCopies(start_request(12345)).copies
    assert (answer.job_id, answer.copy_id, answer.refusal) == (12345, 0, "there is no job 12345")


def test_racer_without_leadership_starts_nothing(races: RaceServiceStub) -> None:
    with pytest.raises(LeadershipLostError, match="no longer leads"):
        races.StartCopies(start_request(1, turn=Turn(agent="racer", holder="nobody")))


def test_users_see_races_but_may_not_start_them(shared_server: RunningServer) -> None:
    with shared_server.channel(shared_server.token(Role.USER)) as channel:
        user_races = RaceServiceStub(channel)
        answer = user_races.ListRaces(ListRacesRequest())
        assert (list(answer.races), list(answer.costs), answer.next_page_token) == ([], [], "")
        for call in (
            lambda: user_races.StartCopies(start_request(1)),
            lambda: user_races.FindStragglers(FindStragglersRequest()),
        ):
            with pytest.raises(PermissionDeniedError):
                call()
        with pytest.raises(InvalidInputError) as caught:
            user_races.ListRaces(ListRacesRequest(page_size=-1, job_ids=[0]))
        assert fields_of(caught) == ["job_ids[0]", "page_size"]


def test_no_stragglers_without_running_jobs(races: RaceServiceStub) -> None:
    answer = races.FindStragglers(FindStragglersRequest())
    assert (list(answer.sets), answer.next_after_set, list(answer.load.owners)) == ([], 0, [])
    with pytest.raises(InvalidInputError) as caught:
        races.FindStragglers(FindStragglersRequest(after_jobs=dict.fromkeys(range(10_001), 1)))
    assert fields_of(caught) == ["after_jobs"]
