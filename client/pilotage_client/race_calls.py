"""What a client asks about races of copies of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pilotage.v1 import race_service_pb2
from pilotage_client.connection import Connection


class RaceCalls(Connection):
    """The calls that show races; they change nothing."""

    def races(
        self, job_ids: Sequence[int] = (), *, owner: str = "", open_only: bool = False
    ) -> Iterator[race_service_pb2.Race]:
        """Yield races, the newest original first: of these originals (none = of any) whose copies race or have raced.

        `owner` empty = the caller's own, "*" = all that he may see; `open_only` = those that go on.
        """
        request = race_service_pb2.ListRacesRequest(job_ids=job_ids, owner=owner, open=open_only)
        while True:
            page = self._races.ListRaces(request)
            yield from page.races
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def race_costs(self, *, owner: str = "") -> list[race_service_pb2.RaceCost]:
        """Return what the races that are known and have ended have cost, by account."""
        return list(self._races.ListRaces(race_service_pb2.ListRacesRequest(owner=owner, page_size=1)).costs)
