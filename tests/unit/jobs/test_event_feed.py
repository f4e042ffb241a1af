"""Calls that wait for the end of jobs, woken by the event feed."""

from __future__ import annotations

from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.rpc.jobs.event_feed import EndFollower
from support.virtual_clock import START


def done(job_id: int) -> FeedEvent:
    return FeedEvent(job_id, job_id, START, JobState.RUNNING, JobState.DONE, JobCause.DONE, "", 1, "pilot:p1")


async def test_wait_ends_with_the_last_job() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(1), done(3)])
    assert not await follower.wait(0)
    follower.notify([done(2)])
    assert await follower.wait(0)


async def test_jobs_that_ended_before_the_wait_are_not_awaited() -> None:
    follower = EndFollower([1, 2])
    follower.mark_ended([1])
    follower.notify([done(2)])
    assert await follower.wait(0)


async def test_event_during_the_initial_read_counts() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(2)])
    follower.mark_ended([1])
    assert await follower.wait(0)


async def test_job_that_was_rescheduled_is_awaited_again() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(1), done(2)])
    assert await follower.wait(0)
    follower.reset()
    follower.mark_ended([1])
    assert not await follower.wait(0)
    follower.notify([done(2)])
    assert await follower.wait(0)
