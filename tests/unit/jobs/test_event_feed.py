"""Calls that follow events: notified of what they may see, and woken by the ends of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pilotage_server.core.identity import Holder
from pilotage_server.operations.jobs.queries import FeedNews
from pilotage_server.rpc.jobs.event_feed import EndFollower, EventFeed, Follower

ALICE, BOB = Holder("sky", "alice"), Holder("sky", "bob")
SOON_S = 10.0


async def test_wait_ends_with_the_last_job() -> None:
    follower = EndFollower(ALICE, [1, 2])
    follower.notify({1, 3})
    assert not await follower.wait(0)
    follower.notify({2})
    assert await follower.wait(0)


async def test_jobs_that_ended_before_the_wait_are_not_awaited() -> None:
    follower = EndFollower(ALICE, [1, 2])
    follower.mark_ended([1])
    follower.notify({2})
    assert await follower.wait(0)


async def test_event_during_the_initial_read_counts() -> None:
    follower = EndFollower(ALICE, [1, 2])
    follower.notify({2})
    follower.mark_ended([1])
    assert await follower.wait(0)


async def test_job_that_was_rescheduled_is_awaited_again() -> None:
    follower = EndFollower(ALICE, [1, 2])
    follower.notify({1, 2})
    assert await follower.wait(0)
    follower.reset()
    follower.mark_ended([1])
    assert not await follower.wait(0)
    follower.notify({2})
    assert await follower.wait(0)


class ScriptedNews:
    """News in the order given, one for each reading."""

    def __init__(self, *news: FeedNews) -> None:
        self._news = iter(news)
        self.positions: list[int | None] = []

    async def read(self, after: int | None) -> FeedNews:
        self.positions.append(after)
        return next(self._news)


@asynccontextmanager
async def running_feed(news: ScriptedNews) -> AsyncIterator[EventFeed]:
    feed = EventFeed(news.read)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(feed.run())
        yield feed
        feed.close()


async def test_only_followers_that_may_see_an_event_are_woken() -> None:
    news = ScriptedNews(FeedNews(5, at_end=True), FeedNews(6, at_end=True, owners=frozenset({ALICE})))
    alice, bob, operator = Follower(ALICE), Follower(BOB), Follower(None)
    async with running_feed(news) as feed, feed.subscribed(alice), feed.subscribed(bob), feed.subscribed(operator):
        feed.announce()
        assert await alice.wait(SOON_S)
        assert await operator.wait(0)
        assert not await bob.wait(0)
    assert news.positions == [None, 5]


async def test_long_news_are_read_to_their_end() -> None:
    news = ScriptedNews(
        FeedNews(5, at_end=True),
        FeedNews(6, at_end=False, owners=frozenset({ALICE}), ended=frozenset({1})),
        FeedNews(7, at_end=True, owners=frozenset({ALICE}), ended=frozenset({2})),
    )
    follower = EndFollower(ALICE, [1, 2])
    async with running_feed(news) as feed, feed.subscribed(follower):
        feed.announce()
        assert await follower.wait(SOON_S)
    assert news.positions == [None, 5, 6]


async def test_feed_begins_at_its_end_when_the_first_follower_comes() -> None:
    news = ScriptedNews(
        FeedNews(5, at_end=True), FeedNews(90, at_end=True), FeedNews(91, at_end=True, owners=frozenset({ALICE}))
    )
    alice = Follower(ALICE)
    async with running_feed(news) as feed:
        async with feed.subscribed(Follower(BOB)):
            pass
        async with feed.subscribed(alice):
            feed.announce()
            assert await alice.wait(SOON_S)
    assert news.positions == [None, None, 90]
