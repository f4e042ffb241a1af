"""Who follows the events is woken by what matters to it."""

from __future__ import annotations

from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.rpc.jobs.event_feed import EndFollower
from support.virtual_clock import START


def done(job_id: int) -> FeedEvent:
    return FeedEvent(job_id, job_id, START, JobState.RUNNING, JobState.DONE, JobCause.DONE, "", 1, "pilot:p1")


async def test_who_waits_for_jobs_is_woken_by_the_end_of_the_last_one() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(1), done(3)])
    assert not await follower.wait(0)
    follower.notify([done(2)])
    assert await follower.wait(0)


async def test_jobs_that_had_ended_before_anybody_told_of_them_are_not_waited_for() -> None:
    follower = EndFollower([1, 2])
    follower.mark_ended([1])
    follower.notify([done(2)])
    assert await follower.wait(0)


async def test_jobs_whose_end_is_told_while_it_is_read_which_have_ended_are_not_waited_for() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(2)])
    follower.mark_ended([1])
    assert await follower.wait(0)


async def test_a_job_that_came_back_to_life_is_waited_for_again() -> None:
    follower = EndFollower([1, 2])
    follower.notify([done(1), done(2)])
    assert await follower.wait(0)
    follower.reset()
    follower.mark_ended([1])
    assert not await follower.wait(0)
    follower.notify([done(2)])
    assert await follower.wait(0)
