"""Patience with a server that cannot be reached for a while, such as one that is being restarted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import WorldError
from pilotage_client.job_calls import JobCalls
from pilotage_client.statuses import FINAL_STATES, JobEvent, JobStatus

DEFAULT_PATIENCE_S = 300.0

Returned = TypeVar("Returned")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0


class Patience:
    """Tries calls again while no server answers, at most `patience_s` at a stretch, with growing pauses.

    `tell` gets one line a stretch. Give it calls that may be repeated: those that only ask, or that have a
    request id of their own.
    """

    def __init__(
        self,
        patience_s: float,
        tell: Callable[[str], None],
        *,
        clock: BootClock = boot_time_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience_s = patience_s
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def __call__(self, act: Callable[[], Returned], *, until_s: float = math.inf) -> Returned:
        """Return what `act` returns; raises its error when patience is at its end, or the boot clock at `until_s`."""
        while True:
            try:
                returned = act()
            except WorldError as error:
                self.bear(error, until_s=until_s)
            else:
                self._since_s = None
                return returned

    def bear(self, error: WorldError, *, until_s: float = math.inf) -> None:
        """Pause after an error that may pass; raises it when it will not, or has lasted too long."""
        now_s = self._clock()
        began_s = now_s if self._since_s is None else self._since_s
        gives_up_s = min(began_s + self._patience_s, until_s)
        if not error.transient or now_s >= gives_up_s:
            raise error
        if self._since_s is None:
            self._since_s, self._pause_s = now_s, _FIRST_PAUSE_S
            self._tell(f"{error}; trying again for up to {gives_up_s - now_s:.0f} s")
        self._sleep(min(self._pause_s, gives_up_s - now_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def wait_until_final(
    client: JobCalls, job_ids: Sequence[int], patience: Patience, timeout_s: float = math.inf
) -> list[JobStatus]:
    """Return the jobs as soon as all are final, or as they are after `timeout_s`."""
    ends_s = boot_time_s() + timeout_s
    while True:
        jobs = patience(lambda: client.wait(job_ids, max(0.0, ends_s - boot_time_s())), until_s=ends_s)
        if all(job.is_final for job in jobs) or boot_time_s() >= ends_s:
            return jobs


def follow_until_final(client: JobCalls, job_id: int, patience: Patience) -> Iterator[JobEvent]:
    """Yield a job's events from its first to the one with which it ends; each once, whatever happens to the server."""
    position = 0
    while True:
        # Asked for anew after each interruption: what is known to have ended before is no end of the job now.
        events = patience(lambda: client.events(job_id))
        yield from (event for event in events if event.position > position)
        position = events[-1].position if events else position
        if events and events[-1].after in FINAL_STATES:
            return
        try:
            for event in client.follow([job_id], after=position):
                position = event.position
                yield event
                if event.after in FINAL_STATES:
                    return
        except WorldError as error:
            patience.bear(error)
