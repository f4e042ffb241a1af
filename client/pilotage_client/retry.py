"""Retries of calls while no server answers, for example during a restart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from pilotage.backoff import Retry, backoff
from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import FeedPositionLostError, WorldError
from pilotage_client.models import FINAL_STATES, JobEvent, JobStatus, OutputPart

if TYPE_CHECKING:
    from pilotage_client.job_calls import JobCalls

DEFAULT_RETRY_S = 300.0

Returned = TypeVar("Returned")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_BLOCKED_POLL_S = 10.0
_SHOWN_EVERY_S = 1.0


class RetryBudget:
    """Retries calls while no server answers, with growing pauses, for at most `timeout_s` in each outage.

    `notify` gets one line for each outage. Use it only for calls that may be repeated: read-only calls, and calls with
    a fixed request id.
    """

    def __init__(
        self,
        timeout_s: float,
        notify: Callable[[str], None],
        *,
        clock: BootClock = boot_time_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = timeout_s
        self._notify = notify
        self._clock = clock
        self._sleep = sleep
        self._outage: Retry | None = None

    def __call__(self, act: Callable[[], Returned], *, until_s: float = math.inf) -> Returned:
        """Return the result of `act`; raises its error at the timeout, or when the boot clock reaches `until_s`."""
        while True:
            try:
                returned = act()
            except WorldError as error:
                self.pause_after(error, until_s=until_s)
            else:
                self._outage = None
                return returned

    def pause_after(self, error: WorldError, *, until_s: float = math.inf) -> None:
        """Pause after a transient error; raises the error if it is not transient, or at the timeout."""
        if not error.transient:
            raise error
        if self._outage is None:
            timeout_s = min(self._timeout_s, until_s - self._clock())
            self._outage = Retry(timeout_s, self._clock, is_last_at_end=True)
        outage = self._outage
        pause_s = outage.failed(lambda failures: backoff(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))
        if pause_s is None:
            self._outage = None
            raise error
        if outage.failures == 1:
            self._notify(f"{error}; trying again for up to {outage.remaining_s:.0f} s")
        self._sleep(pause_s)


def opened(stream: Callable[[], Iterator[Returned]]) -> Iterator[Returned]:
    """Return what the stream yields, when its first message has come: with this an outage of the server is over."""
    messages = stream()
    return chain(list(islice(messages, 1)), messages)


def wait_until_final(
    client: JobCalls,
    job_ids: Sequence[int],
    retry: RetryBudget,
    timeout_s: float = math.inf,
    show: Callable[[Sequence[JobStatus]], None] | None = None,
) -> list[JobStatus]:
    """Return the jobs when all are final or futile, or in their present state after `timeout_s`.

    `show` gets their states about once a second, of many jobs less often.
    """
    began_s = boot_time_s()
    ends_s = began_s + timeout_s
    poll_s, shortest_s = 0.0, 0.0
    while True:
        left_s = max(0.0, ends_s - boot_time_s())
        jobs = retry(partial(client.wait, job_ids, min(poll_s, left_s)), until_s=ends_s)
        if show is not None:
            show(jobs)
            shortest_s = shortest_s or max(_SHOWN_EVERY_S, 4 * (boot_time_s() - began_s))
        left = [job for job in jobs if not job.is_final]
        if boot_time_s() >= ends_s or all(job.futile for job in left):
            return jobs
        # A poll ends early when all jobs are final, not when the last of them becomes futile.
        poll_s = _BLOCKED_POLL_S if any(job.state == "BLOCKED" for job in left) else math.inf
        poll_s = min(poll_s, shortest_s or math.inf)


def event_pages_since(
    client: JobCalls,
    first_job: int,
    new_retry: Callable[[], RetryBudget],
    job_ids: Sequence[int] = (),
    *,
    ends_s: float = math.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[list[JobEvent]]:
    """Yield the pages of events from the first one of `first_job`, each event once, across outages of the server.

    `job_ids` are those of the events, none = all visible ones. It ends when the boot clock reaches `ends_s`, or when
    the stream is interrupted and `is_over`: a follower ends so when its connection is closed.
    """
    retry = new_retry()
    seen = retry(partial(client.events, first_job))
    position = seen[0].position - 1 if seen else 0
    while (left_s := ends_s - boot_time_s()) > 0:
        try:
            for page in client.event_pages(job_ids, after=position, timeout_s=left_s):
                position = page[-1].position if page else position
                yield page
                retry = new_retry()
        except FeedPositionLostError as error:
            position = error.resume_after
        except (WorldError, ValueError) as error:  # ValueError: the connection has been closed
            if is_over() or boot_time_s() >= ends_s:
                return
            interruption = error if isinstance(error, WorldError) else WorldError(str(error), transient=False)
            retry.pause_after(interruption, until_s=ends_s)


def follow_until_final(client: JobCalls, job_id: int, retry: RetryBudget) -> Iterator[JobEvent]:
    """Yield a job's events from the first to the final one, each once, across restarts of the server.

    It ends before that when the job is futile.
    """
    position = 0
    while True:
        # Read again after each interruption: a job that had ended may have been rescheduled.
        events = retry(lambda: client.events(job_id))
        yield from (event for event in events if event.position > position)
        position = events[-1].position if events else position
        if events and events[-1].after in FINAL_STATES:
            return
        blocked = bool(events) and events[-1].after == "BLOCKED"
        try:
            for page in client.event_pages([job_id], after=position):
                for event in page:
                    position, blocked = event.position, event.after == "BLOCKED"
                    yield event
                    if event.after in FINAL_STATES:
                        return
                # A job becomes futile without an event; an empty page comes first, and then twice a minute.
                if blocked and not page and client.jobs([job_id])[0].futile:
                    return
        except FeedPositionLostError as error:  # a backup was restored: what came after this position is void
            position = error.resume_after
        except WorldError as error:
            retry.pause_after(error)


def follow_output_until_final(
    client: JobCalls, job_id: int, retry: RetryBudget, *, error: bool = False
) -> Iterator[OutputPart]:
    """Yield a job's standard output, or with `error` its standard error, to its end, across restarts of the server.

    It ends without a last part when the job is futile.
    """
    attempt = offset = 0
    while True:
        parts = partial(client.follow_output, job_id, error=error, attempt=attempt, offset=offset)
        try:
            for part in retry(partial(opened, parts)):
                if part.attempt:  # else no attempt runs
                    attempt, offset = part.attempt, part.offset + len(part.content)
                yield part
                if part.over or (not part.attempt and client.jobs([job_id])[0].futile):
                    return
        except WorldError as interruption:
            retry.pause_after(interruption)
