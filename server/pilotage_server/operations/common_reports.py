"""Reports of the common kind, recorded together: what many of them say alike is judged once and changes all their jobs.

They leave what the plain way (`reports`) would leave of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pilotage_server.core.common_reports import (
    Alike,
    HeldJob,
    Step,
    Word,
    attempt_changes,
    common_steps,
    job_changes,
    metered_from_start,
    tells_numbers_only,
    word_of,
)
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_policies import UNDER_POLICY
from pilotage_server.core.jobs import FINAL
from pilotage_server.core.reports import JobReport
from pilotage_server.operations.event_outbox import tell
from pilotage_server.operations.metering import begin_metering, settle
from pilotage_server.operations.pilot_calls import credential_of
from pilotage_server.operations.running_counts import count_ended
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import AttemptKey, change_columns
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.job_rows import change_locked
from pilotage_server.storage.leases import load_held
from pilotage_server.storage.pilots import count_ended_jobs


class Told(NamedTuple):
    """A report, the stamp of who holds the attempt that it tells of, and whose call brought it.

    `actor` is who the events name.
    """

    identity: Identity
    stamp: str
    actor: str
    report: JobReport
    key: AttemptKey


def told_by(identity: Identity, reports: Sequence[JobReport]) -> list[Told]:
    """Return the reports with the pilot that they are from; raises PermissionDeniedError where it is none."""
    stamp = credential_of(identity).stamp
    actor = f"pilot:{stamp}"
    return [Told(identity, stamp, actor, report, (report.job_id, report.attempt)) for report in reports]


def record_common(unit: Unit, world: World, told: Sequence[Told]) -> set[int]:
    """Record those of the reports that are of the common kind, and return their places; their jobs are locked."""
    candidates = _candidates(told)
    held = load_held(unit.session, [each.report.job_id for _, each in candidates]) if candidates else {}
    alike: dict[Word, list[tuple[int, HeldJob]]] = {}
    for place, each in candidates:
        job = held.get(each.report.job_id)
        if job is None or job.races:  # the end of a race moves others too
            continue
        if job.attempt == each.report.attempt and job.pilot_stamp == each.stamp:
            alike.setdefault(word_of(job, each.report), []).append((place, job))
    recorded: set[int] = set()
    ended: Counter[str] = Counter()
    for found in alike.values():
        places, jobs = zip(*found, strict=True)
        steps = common_steps(jobs[0].state, told[places[0]].report)
        if steps is not None:
            recorded.update(places)
            _take(unit, world, steps, jobs, [told[place] for place in places])
            if steps and steps[-1].after in FINAL:
                ended.update(job.pilot_stamp for job in jobs)
    count_ended_jobs(unit.session, ended)  # of all at once, for it takes the pilots' rows in one order
    return recorded


def _candidates(told: Sequence[Told]) -> list[tuple[int, Told]]:
    """Return the reports that may be of the common kind, with their places.

    Of a job that is reported twice the second report means something only when the first has been recorded.
    """
    times = Counter([each.report.job_id for each in told])
    numbers = [(place, each) for place, each in enumerate(told) if tells_numbers_only(each.report)]
    return [(place, each) for place, each in numbers if times[each.report.job_id] == 1]


def _take(unit: Unit, world: World, steps: Sequence[Step], jobs: Sequence[HeldJob], told: Sequence[Told]) -> None:
    """Let the jobs take the steps that pilots have told of them alike."""
    if not steps:
        return
    alike = Alike(jobs, [each.report for each in told])
    if jobs[0].metered is None:
        alike = metered_from_start(steps, alike, unit.now)
        begin_metering(unit, world, alike.jobs)
    change_locked(unit.session, [job.job_id for job in jobs], job_changes(steps, alike, unit.now))
    change_columns(unit.session, [each.key for each in told], attempt_changes(steps, alike, unit.now))
    if steps[-1].after in FINAL:
        settle(unit, world, alike.jobs)
        count_ended(unit, world, [(job.queue, job.task_queue_id) for job in jobs])
    watched = [job.job_id for job in jobs if job.is_watched]
    if watched and steps[-1].after in UNDER_POLICY:
        unit.after_commit(partial(world.look_at, watched))
    for before, cause, after, why in steps:
        pairs = zip(jobs, told, strict=True)
        events = [
            JobEvent(0, job.job_id, unit.now, before, after, cause, why, job.attempt, each.actor) for job, each in pairs
        ]
        tell(unit, world, *events)
