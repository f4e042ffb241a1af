"""What has become of a job that does not wait, in one plain sentence.

Rules
-----
From the job's record alone.
"""

from __future__ import annotations

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.routes import place_name, router_of

_TEXTS = {
    JobState.RECEIVED: "It has just come in",
    JobState.WAITING: "It waits",
    JobState.MATCHED: "It is matched to {where} and has not started yet",
    JobState.RUNNING: "It runs on {where}",
    JobState.SUSPENDED: "It is suspended on {where}",
    JobState.COMPLETING: "It has ended on {where} and its output is on the way",
    JobState.DONE: "It is done; it ran on {where}",
    JobState.FAILED: "It failed on {where}",
    JobState.HELD: "It is held until it is released",
    JobState.REMOVED: "It was removed",
    JobState.RACING: "Its own run on {where} has failed, and copies of it race on",
}

_ROUTED = {
    JobState.MATCHED: "It goes as a copy by {where}, and the copy has not started yet",
    JobState.RUNNING: "It runs as a copy by {where}",
    JobState.SUSPENDED: "It is suspended, as a copy by {where}",
    JobState.COMPLETING: "Its copy by {where} has ended, and its output is on the way",
    JobState.DONE: "It is done; it ran as a copy by {where}",
    JobState.FAILED: "It failed as a copy by {where}",
}
"""What is otherwise where a job router had the last attempt."""

_LINGERS = "It waits for the end of its last attempt, which was taken from {where}, at the latest at {until}"
_COPY_LINGERS = "It waits for the word of job router {router} that its copy by {where} is no more"


def summary(job: JobRecord) -> str:
    """Return where the job is, or how it ended."""
    router = router_of(job)
    until = f"{job.lease_until:%Y-%m-%d %H:%M:%S} UTC" if job.lease_until else ""
    text = _text(job, router).format(where=_place(job, router), until=until, router=router)
    return f"{text}: {job.reason}." if job.reason else f"{text}."


def _text(job: JobRecord, router: str) -> str:
    if job.state is JobState.WAITING and job.lingers:
        return _COPY_LINGERS if router else _LINGERS
    return _ROUTED.get(job.state, _TEXTS[job.state]) if router else _TEXTS[job.state]


def _place(job: JobRecord, router: str) -> str:
    if router and job.queue is not None:
        node = f" on {job.node}" if job.node else ""
        return f"route {job.slot} to {place_name(job.queue)}{node}, attempt {job.attempt}"
    slot = f"slot {job.slot} of {job.node}" if job.node else f"slot {job.slot}"
    return f"{slot} at {job.queue}, attempt {job.attempt}" if job.queue else "no slot"
