"""The half of JobService that tells what happened to jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pilotage.v1 import job_service_pb2
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_events import FeedPage
from pilotage_server.operations.job_events import get_events, read_feed
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_jobs import event_to_wire
from pilotage_server.rpc.convert_values import Fields, each, job_id_from_wire, not_too_many
from pilotage_server.rpc.deadlines import patience_s
from pilotage_server.rpc.event_feed import EventFeed, Follower
from pilotage_server.rpc.transactions import Transactions

SIGN_OF_LIFE_S = 30.0
"""A feed without events sends an empty message so often."""


class EventCalls:
    """Events of one job, and the feed of all that the caller may see."""

    def __init__(self, transactions: Transactions, feed: EventFeed) -> None:
        self._event_transactions = transactions
        self._event_feed = feed

    async def GetJobEvents(
        self, request: job_service_pb2.GetJobEventsRequest, context: Any
    ) -> job_service_pb2.GetJobEventsResponse:
        identity = caller()
        fields = Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        fields.done()
        events = await self._event_transactions.read(lambda unit, _: get_events(unit, identity, job_id))
        return job_service_pb2.GetJobEventsResponse(events=[event_to_wire(event) for event in events])

    async def WatchEvents(
        self, request: job_service_pb2.WatchEventsRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchEventsResponse]:
        identity = caller()
        position, job_ids = _feed_request(request)
        follower = Follower()
        tells = True  # the first message tells the position, also without events
        with self._event_feed.followed_by(follower):
            while True:
                page = await self._page(identity, position, job_ids)
                if tells or page.events:
                    events = [event_to_wire(event) for event in page.events]
                    yield job_service_pb2.WatchEventsResponse(events=events, position=page.position)
                position, tells = page.position, False
                if page.at_end:
                    patience = patience_s(context, SIGN_OF_LIFE_S, SIGN_OF_LIFE_S)
                    if request.until_now or patience == 0 or not self._event_feed.is_open:
                        return
                    tells = not await follower.woken(patience)

    async def _page(self, identity: Identity, position: int, job_ids: tuple[int, ...]) -> FeedPage:
        return await self._event_transactions.read(lambda unit, _: read_feed(unit, identity, position, job_ids))


def _feed_request(request: job_service_pb2.WatchEventsRequest) -> tuple[int, tuple[int, ...]]:
    fields = Fields(request)
    fields("job_ids", not_too_many)
    job_ids = fields("job_ids", lambda ids: each(ids, job_id_from_wire))
    position = fields.count("after_position")
    fields.done()
    return position, job_ids
