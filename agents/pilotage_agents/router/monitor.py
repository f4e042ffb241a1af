"""Monitors routed jobs at their targets, reports them to the server, and cleans up after them.

`RoutedJobMonitor` adopts routed jobs after a restart and polls the targets. `RoutedJobReporter` sends due reports and
receives which jobs are no longer wanted. `RoutedJobCleanup` removes what targets keep of ended jobs, also after a
restart of the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby, islice
from uuid import uuid4

import structlog

from pilotage.classads.library import AdValue
from pilotage_agents.batch_systems.base import Unanswered
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.report import RejectedReports, reduced_report, report_of
from pilotage_agents.router.core.routed_job import (
    RoutedJobAction,
    RoutedJobKey,
    RouteResult,
    SearchTimeouts,
    TrackedJob,
    end_of_gone,
    end_of_missing,
    held,
    next_action,
)
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.folder import CleanupEntry, RouterFolder
from pilotage_agents.router.ports import FindAnswer, RoutedJobReportAnswer, RoutedJobTarget
from pilotage_agents.router.submit import RoutedJobEnds, RoutedJobSender
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks

log = structlog.get_logger()

_STRAY_AFTER = timedelta(days=1)
_OVER = frozenset({RoutedJobState.COMPLETED, RoutedJobState.GONE})
_NOT_MADE = frozenset({"DECLINED", "REFUSED_BY_JOB"})
"""Outcomes of jobs that a target did not accept, or was not asked for."""


class RoutedJobCleanup:
    """Keeps ended jobs by target and name until the target has removed them; one that may be alive is stopped first."""

    def __init__(self, targets: TargetPool, folder: RouterFolder, background_tasks: BackgroundTasks) -> None:
        self._targets = targets
        self._folder = folder
        self._background_tasks = background_tasks
        self._entries: dict[str, dict[str, CleanupEntry]] = {}
        self._is_saved = True

    async def save(self, jobs: Iterable[TrackedJob]) -> None:
        """Save ended jobs in the folder before the server knows their ends; raises WorldError."""
        entries = {target: dict(entries) for target, entries in self._entries.items()}
        for routed in jobs:
            if _was_made(routed):
                entries.setdefault(routed.target, {})[routed.name] = CleanupEntry(routed.reference, may_live=False)
        await asyncio.to_thread(self._folder.save_cleanup, entries)
        self._is_saved = True

    def add(self, routed: TrackedJob) -> None:
        """Add a routed job that this router no longer tracks."""
        if _was_made(routed):
            entry = CleanupEntry(routed.reference, may_live=routed.outcome is None)
            self._entries.setdefault(routed.target, {})[routed.name] = entry
            self._is_saved = self._is_saved and not entry.may_live

    def names(self) -> frozenset[str]:
        """Return the names of the jobs to clean up."""
        return frozenset(name for entries in self._entries.values() for name in entries)

    async def load(self, jobs: TrackedJobs) -> None:
        """Load the jobs that an earlier router saved, without those whose ends the server does not know."""
        tracked = {(routed.target, routed.name) for routed in jobs}
        for target, entries in (await asyncio.to_thread(self._folder.load_cleanup)).items():
            for name, each in entries.items():
                if (target, name) not in tracked:
                    self._entries.setdefault(target, {})[name] = each

    def sweep(self, targets: Iterable[str], jobs: TrackedJobs, listed: datetime) -> None:
        """Start to remove what targets keep of this router's unknown jobs.

        `listed` is the time at which the server listed `jobs`. Files of the last day stay: another router with
        leadership may have made them in between.
        """
        known = {routed.name for routed in jobs} | self.names()
        question = partial(_sweep_target, known, listed - _STRAY_AFTER)
        for target in targets:
            self._background_tasks.start(("sweep", target), partial(self._run_sweep, target, question))

    async def _run_sweep(self, target: str, question: Callable[[RoutedJobTarget], Awaitable[None]]) -> None:
        await self._targets.ask(target, question, about="cleanup")

    async def run(self, *, stops: bool = False) -> None:
        """Start the cleanup at the targets; `stops` also stops jobs that may be alive.

        Jobs that may be alive are saved in the folder first, as nothing else lists them. After a failure the next cycle
        tries again. Raises WorldError.
        """
        if not self._is_saved:
            await self.save(())
        for target, entries in self._entries.items():
            if stops or not all(each.may_live for each in entries.values()):
                self._background_tasks.start(("tidy", target), partial(self._tidy, target, stops=stops))

    async def _tidy(self, target: str, *, stops: bool) -> None:
        entries = {name: each for name, each in self._entries[target].items() if stops or not each.may_live}
        living = await self._targets.ask(target, partial(_forget, entries), about="cleanup")
        if living is None:
            return
        added = {name: each for name, each in self._entries[target].items() if entries.get(name) != each}
        self._entries[target] = {**living, **added}
        if not self._entries[target]:
            del self._entries[target]


def _was_made(routed: TrackedJob) -> bool:
    """Return whether the target may keep something of a job: it does not if it did not accept it."""
    return bool(routed.reference) or routed.outcome is None or routed.outcome.outcome not in _NOT_MADE


async def _sweep_target(known: Collection[str], before: datetime, opened: RoutedJobTarget) -> None:
    """Clean up unknown jobs at a target; one that has not ended is found by the next sweep."""
    if strays := await opened.leftovers(known, before):
        entries = {name: CleanupEntry(reference, may_live=bool(reference)) for name, reference in strays.items()}
        living = await _forget(entries, opened)
        log.info("unknown jobs cleaned up", jobs=len(entries) - len(living), may_live=len(living))


async def _forget(entries: Mapping[str, CleanupEntry], opened: RoutedJobTarget) -> Mapping[str, CleanupEntry]:
    """Stop the jobs that may be alive, and remove those that have ended; returns the others."""
    living = await _living({name: each for name, each in entries.items() if each.may_live}, opened)
    await opened.forget([name for name in entries if name not in living])
    return living


async def _living(entries: Mapping[str, CleanupEntry], opened: RoutedJobTarget) -> Mapping[str, CleanupEntry]:
    """Stop jobs; returns those that have not ended, or whose status is unknown."""
    lost = [name for name, each in entries.items() if not each.reference]
    found = await opened.find_again(lost) if lost else {}
    answers = {name: each.reference or found.get(name, "") for name, each in entries.items()}
    references = {name: each for name, each in answers.items() if isinstance(each, str) and each}
    if references:
        await opened.cancel(references.values())
    statuses = await opened.poll(references.values()) if references else {}
    living = {name: each for name, each in references.items() if statuses[each].state not in _OVER}
    unclear = {name: entries[name] for name, each in answers.items() if isinstance(each, Unanswered)}
    return {**unclear, **{name: CleanupEntry(reference, may_live=True) for name, reference in living.items()}}


class RoutedJobMonitor:
    """Keeps routed jobs up to date with their targets; a target without an answer changes none."""

    def __init__(
        self,
        context: RouterContext,
        sender: RoutedJobSender,
        ends: RoutedJobEnds,
        cleanup: RoutedJobCleanup,
        timeouts: SearchTimeouts,
    ) -> None:
        self._jobs = context.jobs
        self._link = context.link
        self._targets = context.targets
        self._background_tasks = context.background_tasks
        self._sender = sender
        self._ends = ends
        self._cleanup = cleanup
        self._clock = context.clock
        self._timeouts = timeouts

    async def adopt(self) -> None:
        """Make the tracked jobs those that the server lists for this router; raises a PilotageError."""
        known = {RoutedJobKey(each.job_id, each.attempt): each for each in await self._link.routed_jobs()}
        now = self._clock()
        for routed in self._jobs:
            if routed.key not in known and not self._sender.is_sending(routed):
                log.warning("the server no longer lists a routed job", routed_job=routed.name, route=routed.route)
                self._jobs.remove(routed.key)
                self._cleanup.add(routed)
        for key, each in known.items():
            if self._jobs.get(key) is None:
                self._jobs.put(TrackedJob.adopted(each, now))
                log.info("routed job adopted", job_id=each.job_id, attempt=each.attempt, route=each.route)
            elif each.unwanted:
                self._jobs.mark_unwanted(key, each.unwanted)

    def refresh(self) -> None:
        """Start to poll the targets, and to act on the statuses; changes become due reports.

        A target that has not answered the last poll is not polled again. Jobs that are being submitted or ended are
        left out, so that no two tasks act on one job.
        """
        self._ends.retry_cleanup()
        asked = []
        for routed in self._jobs:
            if self._ends.is_ending(routed):
                if routed.is_unwanted:
                    self._ends.stop_fetching(routed)
            elif routed.outcome is None and not self._sender.is_sending(routed):
                asked.append(routed)
        for target, those in groupby(sorted(asked, key=_target), key=_target):
            self._background_tasks.start(("look", target), partial(self._poll_target, target, list(those)))

    async def _poll_target(self, target: str, jobs: Sequence[TrackedJob]) -> None:
        if lost := [routed for routed in jobs if not routed.reference]:
            found = await self._targets.ask(target, lambda opened: opened.find_again([routed.name for routed in lost]))
            if found is not None:
                self._found_again(lost, found)
        referred = [routed for routed in self._current(jobs) if routed.reference]
        if not referred:
            return
        references = [routed.reference for routed in referred]
        statuses = await self._targets.ask(target, lambda opened: opened.poll(references))
        if statuses is not None:
            await self._apply_statuses(
                target, [(routed, statuses[routed.reference]) for routed in self._current(referred)]
            )

    def _current(self, jobs: Sequence[TrackedJob]) -> list[TrackedJob]:
        """Return the jobs as they are known now, without those that have ended."""
        known = (self._jobs.get(routed.key) for routed in jobs)
        return [routed for routed in known if routed is not None and routed.outcome is None]

    def _found_again(self, lost: Sequence[TrackedJob], found: Mapping[str, FindAnswer]) -> None:
        unclear: dict[str, str] = {}
        for routed in self._current(lost):
            match found.get(routed.name):
                case str(reference):
                    self._jobs.put(replace(routed, reference=reference), report_due=True)
                case Unanswered(reason):
                    unclear[routed.name] = reason
                case None:
                    if (over := end_of_missing(routed, self._timeouts, self._clock())) is not None:
                        self._ends.end(routed, *over)
        if unclear:
            example, why = next(iter(unclear.items()))
            log.warning("target does not know whether it has jobs", jobs=len(unclear), example=example, reason=why)

    async def _apply_statuses(self, target: str, reported: Sequence[tuple[TrackedJob, RoutedJobStatus]]) -> None:
        """Apply the statuses of a target: stop, collect and end jobs."""
        found: dict[RoutedJobAction, list[TrackedJob]] = {each: [] for each in RoutedJobAction}
        for routed, status in reported:
            action = next_action(routed, status)
            seen = held(routed, status) if action is RoutedJobAction.HOLD else routed.with_status(status)
            found[action].append(seen)
            if action not in (RoutedJobAction.COLLECT, RoutedJobAction.END):
                changed = _progress(seen) != _progress(routed)
                self._jobs.put(seen, report_due=changed and action in (RoutedJobAction.REPORT, RoutedJobAction.HOLD))
        for routed in found[RoutedJobAction.HOLD]:
            self._jobs.count_end(routed.route, RouteResult.FAILURE, self._clock())
        for routed in found[RoutedJobAction.END]:
            self._ends.end(routed, *end_of_gone(routed))
        self._ends.run_update_hooks(found[RoutedJobAction.REPORT])
        self._ends.collect(found[RoutedJobAction.COLLECT])
        if to_stop := [routed.reference for routed in found[RoutedJobAction.CANCEL]]:
            await self._targets.ask(target, lambda opened: opened.cancel(to_stop))


def _progress(routed: TrackedJob) -> tuple[object, ...]:
    """Return what is reported of a routed job that has not ended."""
    return routed.status.state, routed.status.node, routed.status.is_plugged


def _target(routed: TrackedJob) -> str:
    return routed.target


_MAX_IN_A_CALL = 1000
_MAX_ENDED_IN_A_CALL = 200
"""Fewer in a call, as reports of ends have files."""


class RoutedJobReporter:
    """Sends due reports; an ended job is kept here and at the target until the server has confirmed its end.

    A rejected end is reported again with less content, so that its job goes on.
    """

    def __init__(self, context: RouterContext, cleanup: RoutedJobCleanup) -> None:
        self._jobs = context.jobs
        self._link = context.link
        self._cleanup = cleanup
        self._clock = context.clock
        self._malformed: set[RoutedJobKey] = set()
        self._rejected: dict[RoutedJobKey, RejectedReports] = {}

    async def fetch_unwanted(self) -> None:
        """Ask the server which jobs are no longer wanted; raises a PilotageError if it does not answer.

        Rejected reports become due again.
        """
        self._jobs.reports_due |= dict.fromkeys(key for key in self._malformed if self._jobs.get(key) is not None)
        self._malformed.clear()
        self._rejected = {key: each for key, each in self._rejected.items() if self._jobs.get(key) is not None}
        if len(self._jobs):
            self._apply_answer((), await self._link.report(uuid4().hex, ()))

    async def send(self) -> None:
        """Send all due reports; raises a PilotageError if the server does not answer."""
        while owed := self._next():
            if ended := [routed for routed in owed if routed.outcome is not None]:
                await self._cleanup.save(ended)
            reports = [(routed, self._jobs.unreported_attributes(routed.key)) for routed in owed]
            answer = await self._link.report(
                uuid4().hex, [self._report(routed, reported) for routed, reported in reports]
            )
            self._apply_answer(reports, answer)
        await self._cleanup.run()

    def _report(self, routed: TrackedJob, reported: Mapping[str, AdValue]) -> RoutedJobReport:
        report, rejected = report_of(routed, reported), self._rejected.get(routed.key)
        return report if rejected is None else reduced_report(report, rejected, self._clock())

    def _next(self) -> list[TrackedJob]:
        """Return the jobs of the next call."""
        found = [self._jobs.get(key) for key in islice(self._jobs.reports_due, _MAX_IN_A_CALL)]
        jobs = [routed for routed in found if routed is not None]
        ended = [routed for routed in jobs if routed.outcome is not None]
        return ended[:_MAX_ENDED_IN_A_CALL] if len(ended) > _MAX_ENDED_IN_A_CALL else jobs

    def _apply_answer(
        self, reports: Sequence[tuple[TrackedJob, Mapping[str, AdValue]]], answer: RoutedJobReportAnswer
    ) -> None:
        for routed, reported in reports:
            known = self._jobs.get(routed.key)
            is_malformed = routed.key in answer.malformed
            if not is_malformed:
                self._jobs.confirm_attributes(routed.key, reported)
            if known is routed and (is_malformed or not self._jobs.unreported_attributes(routed.key)):
                self._jobs.reports_due.pop(routed.key, None)  # else it has changed since the report
            if is_malformed:
                fault = answer.malformed[routed.key]
                self._malformed.add(routed.key)
                if routed.outcome is not None:
                    before = self._rejected.get(routed.key)
                    self._rejected[routed.key] = (
                        before.with_rejection(fault) if before else RejectedReports(self._clock(), fault)
                    )
                log.error("the server rejects a report, the routed job is kept", routed_job=routed.name, reason=fault)
                continue
            if routed.key in answer.refused:
                log.warning(
                    "routed job is no longer this router's", routed_job=routed.name, reason=answer.refused[routed.key]
                )
            if routed.outcome is not None or routed.key in answer.refused:
                self._jobs.remove(routed.key)
                self._cleanup.add(known or routed)
        for each in answer.unwanted:
            self._jobs.mark_unwanted(RoutedJobKey(each.job_id, each.attempt), each.reason)
