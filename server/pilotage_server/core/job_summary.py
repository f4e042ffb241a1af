"""What has become of a job that does not wait, in one plain sentence.

Rules
-----
From the job's record alone.
"""

from __future__ import annotations

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState

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
}

_LINGERS = "It waits for the end of its last attempt, which was taken from {where}, at the latest at {until}"


def summary(job: JobRecord) -> str:
    """Return where the job is, or how it ended."""
    text = (_LINGERS if job.state is JobState.WAITING and job.lingers else _TEXTS[job.state]).format(
        where=_place(job), until=f"{job.lease_until:%Y-%m-%d %H:%M:%S} UTC" if job.lease_until else ""
    )
    return f"{text}: {job.reason}." if job.reason else f"{text}."


def _place(job: JobRecord) -> str:
    slot = f"slot {job.slot} of {job.node}" if job.node else f"slot {job.slot}"
    return f"{slot} at {job.queue}, attempt {job.attempt}" if job.queue else "no slot"
