"""Events of HTCondor's user log: which ones a transition of a job writes, and their text.

The format is that of HTCondor's manual (job event log codes) and of its reader, `htcondor2.JobEventLog`: a header with
number, job and local time, lines that begin with a tab, and a line of three dots.

Rules
-----
- A payload that had started and returns to the queue was evicted (004). If its pilot was lost, the log says so (024).
  A payload that could not run, or whose output was lost, is an error of the shadow (007).
- A job that ends with an exit code or a signal has terminated (005). Any other end is an abort (009).
- A payload that runs when its job is held or removed is evicted first, as in HTCondor.
- Races, matches and the transfer of output are not events of HTCondor, and are not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pilotage_client.models import JobEvent, JobStatus

SUBMIT, EXECUTE, EVICTED, TERMINATED, IMAGE_SIZE, SHADOW_EXCEPTION = 0, 1, 4, 5, 6, 7
ABORTED, SUSPENDED, UNSUSPENDED, HELD, RELEASED, RECONNECT_FAILED = 9, 10, 11, 12, 13, 24
"""HTCondor's numbers of the events that are written."""

_END = "...\n"
_PAYLOAD = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RACING"})
"""States of a job whose payload has started."""
_SUBMITTED_ON_HOLD, _USER_REQUEST, _JOB_POLICY, _STARTD_HELD_JOB = 15, 1, 3, 21
"""HTCondor's HoldReasonCode."""


class EventKey(NamedTuple):
    """What makes an event the same in the feed and in a log: the end of a job is one event, terminated or aborted."""

    number: int
    cluster: int
    process: int
    time: str


def event_key(number: int, cluster: int, process: int, time: str) -> EventKey:
    """Return the key of an event; `time` as in its header."""
    return EventKey(TERMINATED if number == ABORTED else number, cluster, process, time)


@dataclass(frozen=True, slots=True)
class UserLogEvent:
    """One event of a user log; `text` is all behind the header, with the line of three dots."""

    number: int
    cluster: int
    process: int
    time: str
    text: str

    @property
    def key(self) -> EventKey:
        """What identifies the event."""
        return event_key(self.number, self.cluster, self.process, self.time)

    def __str__(self) -> str:
        """Return the event as the log has it."""
        return f"{self.number:03d} ({self.cluster:03d}.{self.process:03d}.000) {self.time} {self.text}"


@dataclass(frozen=True, slots=True)
class AttemptFigures:
    """What an attempt has used; None = unknown."""

    user_cpu_s: float | None = None
    system_cpu_s: float | None = None
    wall_s: float | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None


def attempt_figures(event: JobEvent, job: JobStatus) -> AttemptFigures:
    """Return what the attempt of the event has used, as far as the server tells it with the job."""
    used = job.usage
    if used is None or used.attempt != event.attempt:
        return AttemptFigures()
    return AttemptFigures(used.user_cpu_s, used.system_cpu_s, used.wall_s, used.peak_memory_mib, used.peak_disk_mib)


def user_log_events(event: JobEvent, job: JobStatus, submit_host: str) -> list[UserLogEvent]:
    """Return the events that a transition writes, in their order.

    `job` is the job now, which may have gone on since. What it no longer tells about the event is left out.
    """
    time = "" if event.time is None else local_time(event.time)
    return [
        UserLogEvent(number, job.cluster, job.process, time, text + _END)
        for number, text in _texts(event, job, submit_host)
    ]


def local_time(time: datetime) -> str:
    """Return a time as headers have it: local, to the second."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _texts(event: JobEvent, job: JobStatus, submit_host: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each event, without its last line."""
    before, after = event.before, event.after
    if before == after:  # an edit, or a payload that plugs its slot
        return
    if before in ("", "RECEIVED"):
        yield SUBMIT, f"Job submitted from host: <{submit_host}>\n"
    if after in ("DONE", "FAILED"):
        yield from _end(event, job)
    elif after in ("HELD", "REMOVED", "WAITING", "BLOCKED"):
        if before in _PAYLOAD or event.cause == "start failed":
            yield from _loss(event, job)
        yield from _standstill(event, job)
    elif after == "RUNNING" and before in ("MATCHED", "WAITING"):
        yield EXECUTE, _execution(event, job)
    elif (before, after) == ("RUNNING", "SUSPENDED"):
        yield SUSPENDED, "Job was suspended.\n\tNumber of processes actually suspended: 1\n"
    elif (before, after) == ("SUSPENDED", "RUNNING"):
        yield UNSUSPENDED, "Job was unsuspended.\n"


def _standstill(event: JobEvent, job: JobStatus) -> Iterator[tuple[int, str]]:
    """Yield the event of a job that is held, removed or released."""
    if event.after == "HELD":
        code, subcode = _hold_code(event, job)
        reason = _line(event.reason) or "Reason unspecified"
        yield HELD, f"Job was held.\n\t{reason}\n\tCode {code} Subcode {subcode}\n"
    elif event.after == "REMOVED":
        yield ABORTED, f"Job was aborted.\n{_reason_line(event)}"
    elif event.before == "HELD":
        yield RELEASED, f"Job was released.\n{_reason_line(event)}"


def _execution(event: JobEvent, job: JobStatus) -> str:
    """Return where the payload runs; of an earlier attempt only the pilot is known."""
    if job.attempt != event.attempt or not job.node:
        return f"Job executing on host: <{event.actor}>\n"
    slot = f"\tSlotName: {job.slot}@{job.node}\n" if job.slot else ""
    return f"Job executing on host: <{job.node}>\n{slot}"


def _end(event: JobEvent, job: JobStatus) -> Iterator[tuple[int, str]]:
    """Yield the end of a job."""
    figures = attempt_figures(event, job)
    yield from _image_size(figures)
    is_last = job.attempt == event.attempt
    exit_code, signal = (job.exit_code, job.signal) if is_last else (None, None)
    if event.after == "DONE" and exit_code is None and signal is None:  # a copy has won, or the job was run again
        exit_code = 0
    if signal:
        ended = f"\t(0) Abnormal termination (signal {signal})\n\t(0) No core file\n"
    elif exit_code is not None:
        ended = f"\t(1) Normal termination (return value {exit_code})\n"
    else:
        yield ABORTED, f"Job was aborted.\n{_reason_line(event)}"
        return
    use = f"{_run_use(figures)}{_run_use(figures, 'Total')}{_bytes('Run')}{_bytes('Total')}{_resources(figures)}"
    why = f"\n{_reason_line(event)}" if event.after == "FAILED" else ""
    yield TERMINATED, f"Job terminated.\n{ended}{use}{why}"


def _loss(event: JobEvent, job: JobStatus) -> Iterator[tuple[int, str]]:
    """Yield the event of an attempt that ends without an end of its job."""
    if event.cause == "lease lost":
        place = f"{job.slot}@{job.node}" if job.attempt == event.attempt and job.node else event.actor
        reason = _line(event.reason) or event.cause
        yield (
            RECONNECT_FAILED,
            f"Job reconnection failed\n    {reason}\n    Can not reconnect to {place}, rescheduling job\n",
        )
    elif event.cause == "start failed":
        yield SHADOW_EXCEPTION, f"Shadow exception!\n\t{_line(event.reason) or event.cause}\n{_bytes('Run')}"
    else:
        figures = attempt_figures(event, job)
        yield from _image_size(figures)
        use = f"{_run_use(figures)}{_bytes('Run')}{_reason_line(event)}{_resources(figures)}"
        yield EVICTED, f"Job was evicted.\n\t(0) CPU times\n{use}"


def _image_size(figures: AttemptFigures) -> Iterator[tuple[int, str]]:
    if figures.memory_mib is not None:
        kib = figures.memory_mib * 1024
        sizes = f"\t{figures.memory_mib}  -  MemoryUsage of job (MB)\n\t{kib}  -  ResidentSetSize of job (KB)\n"
        yield IMAGE_SIZE, f"Image size of job updated: {kib}\n{sizes}"


def _run_use(figures: AttemptFigures, kind: str = "Run") -> str:
    """Return the lines of the CPU time; unknown times are 0, as HTCondor writes them."""
    remote = f"Usr {_duration(figures.user_cpu_s)}, Sys {_duration(figures.system_cpu_s)}"
    local = f"Usr {_duration(None)}, Sys {_duration(None)}"
    return f"\t\t{remote}  -  {kind} Remote Usage\n\t\t{local}  -  {kind} Local Usage\n"


def _bytes(kind: str) -> str:
    """Return the lines of transferred bytes, which pilots do not count."""
    return f"\t0  -  {kind} Bytes Sent By Job\n\t0  -  {kind} Bytes Received By Job\n"


def _resources(figures: AttemptFigures) -> str:
    """Return the table of used resources, with the known ones."""
    cpu_s, wall_s = (figures.user_cpu_s or 0) + (figures.system_cpu_s or 0), figures.wall_s
    used = {
        "Cpus": f"{cpu_s / wall_s:.2f}" if wall_s and figures.user_cpu_s is not None else None,
        "Disk (KB)": None if figures.disk_mib is None else figures.disk_mib * 1024,
        "Memory (MB)": figures.memory_mib,
        "TimeExecute (s)": None if wall_s is None else round(wall_s),
    }
    rows = [f"\t   {name:<21}: {amount:>8} {'':>8} {'':>9} \n" for name, amount in used.items() if amount is not None]
    return "".join(["\tPartitionable Resources :    Usage  Request Allocated \n", *rows]) if rows else ""


def _duration(seconds: float | None) -> str:
    """Return a time as `D HH:MM:SS`."""
    minutes, second = divmod(round(seconds or 0), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day} {hour:02d}:{minute:02d}:{second:02d}"


def _hold_code(event: JobEvent, job: JobStatus) -> tuple[int, int]:
    """Return code and subcode of a hold; of one that is over only who held the job is known."""
    if job.state == "HELD" and job.hold_code is not None and job.reason == event.reason:
        return job.hold_code, job.hold_subcode or 0
    if event.before in ("", "RECEIVED"):
        return _SUBMITTED_ON_HOLD, 0
    if event.actor == "server":
        return _JOB_POLICY, 0
    return (_STARTD_HELD_JOB if event.actor.startswith("pilot:") else _USER_REQUEST), 0


def _reason_line(event: JobEvent) -> str:
    reason = _line(event.reason)
    return f"\t{reason}\n" if reason else ""


def _line(text: str) -> str:
    """Return a text on one line, as a reason may contain lines of the payload's output."""
    return " ".join(text.split())
