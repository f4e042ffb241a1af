"""Slurm as a batch system, by its commands. One squeue polls all pilots; only Slurm's own answer ends one."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

import structlog

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
    Unanswered,
    live_ids_by_stamp,
)
from pilotage_agents.batch_systems.hosts import CommandResult, Host
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.batch_systems.slurm_text import (
    SACCT_OPTIONS,
    SlurmId,
    accounting_statuses,
    is_no_answer,
    is_not_reached,
    is_unknown_job,
    numbers,
    parse_queue,
    script,
    submission,
    submitted_job,
)

log = structlog.get_logger()

_SQUEUE = ("squeue", "--json", "--noheader", "--me", "--all", "--states=all")
_POLL_INTERVAL_S = 0.5
_MAX_JOBS_PER_COMMAND = 500
_MAX_CONTROLLER_QUERIES = 100

_Statuses = dict[SlurmId, GlideinStatus]


class SlurmBatchSystem:
    """Runs glideins as batch jobs of one user; `name` is the cluster's name in the settings.

    Its commands run on `host`, which holds the glideins' folders where the nodes see them. A job that has left Slurm's
    queue has ended when the accounting says so, or the controller does not know it.
    """

    def __init__(self, name: str, settings: SlurmBatchSystemSettings, host: Host) -> None:
        self._name = name
        self._settings = settings
        self._host = host
        self._user_id: int | None = None
        self._last_queried = ""

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit one job each; after one that got no answer, or did not arrive, no other is tried. See BatchSystem."""
        try:
            await self._host.upload([request.folder for request in requests if request.self_contained is None])
        except WorldError as error:
            return tuple(NotSubmitted(f"{self._name}: {error}") for _ in requests)
        answers: list[Submission] = []
        for request in requests:
            answers.append(await self._submit(request))
            last = answers[-1]
            if isinstance(last, Unanswered) or (isinstance(last, NotSubmitted) and not last.was_tried):
                left = len(requests) - len(answers)
                return (*answers, *[NotSubmitted(f"as before: {last.reason}", was_tried=False)] * left)
        return tuple(answers)

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the jobs that have these stamps and have not ended; see BatchSystem."""
        return live_ids_by_stamp(await self._queue(), stamps) if stamps else {}

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return the statuses from the queue, and for other jobs from accounting or controller; see BatchSystem."""
        jobs = {job: each for each in glidein_ids if (job := SlurmId.of(each))}
        statuses = dict.fromkeys(glidein_ids, GlideinStatus(GlideinState.UNKNOWN, "it is no job of Slurm's"))
        return statuses | {jobs[job]: status for job, status in (await self._statuses(jobs)).items()}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Signal only the pilots, so that they can end their jobs, and kill late ones; see BatchSystem."""
        wanted = {job for each in glidein_ids if (job := SlurmId.of(each))}
        if not wanted:
            return
        try:
            waiting = await self._living(wanted, GlideinState.WAITING)
            await self._cancel(waiting)
            running = await self._living(wanted, GlideinState.RUNNING)
            await self._cancel(running, "--batch", "--signal=TERM")
            await self._cancel(await self._late(running))
        except WorldError as error:
            log.warning("glideins could not be cancelled", batch_system=self._name, reason=str(error))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Copy the file to Slurm's host, except for nodes that do not see the folders; see BatchSystem."""
        if not self._settings.node_folder:
            await self._host.upload(folders, name)

    async def collect(self, folders: Sequence[Path]) -> None:
        """Fetch the pilots' output from Slurm's host; see BatchSystem."""
        await self._host.fetch_output(folders)

    async def _submit(self, request: GlideinRequest) -> Submission:
        options = submission(request, self._log_of(request), self._settings.account, self._settings.sbatch_options)
        try:
            answer = await self._ask("sbatch", *options, stdin=script(request))
        except WorldError as error:
            if is_not_reached(str(error)):
                return NotSubmitted(str(error), was_tried=False)
            return Unanswered(str(error)) if error.transient else NotSubmitted(str(error))
        if answer.exit_code != 0:
            reason = f"{self._name}: {answer.error_text}"
            if is_not_reached(reason):
                return NotSubmitted(reason, was_tried=False)
            return Unanswered(reason) if is_no_answer(reason) else NotSubmitted(reason)
        job = submitted_job(answer.stdout)
        if job is None:
            return Unanswered(f"{self._name}: sbatch: its answer holds no job id: {answer.error_text}")
        if job[1] and job[1] != self._settings.cluster:
            return await self._cancel_misrouted(*job)
        return Submitted(str(SlurmId(job[0], request.stamp)))

    def _log_of(self, request: GlideinRequest) -> PurePath:
        if request.self_contained is None:
            return self._host.path_of(request.folder) / LOG_NAME
        return PurePosixPath(self._settings.node_folder, f"pilotage-{request.stamp}.log")

    async def _cancel_misrouted(self, job: str, cluster: str) -> NotSubmitted:
        """Cancel a job that went to a cluster which later commands would not ask."""
        reason = f'{self._name}: sbatch has sent it to the cluster {cluster}: set cluster = "{cluster}" to use that one'
        try:
            await self._ask_cluster(cluster, "scancel", job)
        except WorldError as error:
            log.warning("job could not be cancelled", batch_system=self._name, job=job, reason=str(error))
        return NotSubmitted(reason)

    async def _statuses(self, jobs: Collection[SlurmId]) -> _Statuses:
        """Return the status of each of the jobs."""
        if not jobs:
            return {}
        try:
            queue = await self._queue()
        except WorldError as error:
            log.warning("batch system gives no answer", batch_system=self._name, reason=str(error), glideins=len(jobs))
            return dict.fromkeys(jobs, GlideinStatus(GlideinState.UNKNOWN, str(error)))
        statuses = {job: queue[job] for job in jobs if job in queue}
        statuses |= await self._statuses_of_gone([job for job in jobs if job not in queue])
        unclear = [status.reason for status in statuses.values() if not status.state.is_known]
        if unclear:
            log.warning("glideins are unclear", batch_system=self._name, glideins=len(unclear), reason=unclear[0])
        return statuses

    async def _statuses_of_gone(self, jobs: Sequence[SlurmId]) -> _Statuses:
        """Return the statuses of jobs that are not in the queue."""
        accounts = await self._accounts(jobs) if jobs else {}
        ended = {job: accounts[job] for job in jobs if job in accounts and accounts[job].state is GlideinState.ENDED}
        return ended | await self._controller_statuses([job for job in jobs if job not in ended])

    async def _controller_statuses(self, jobs: Sequence[SlurmId]) -> _Statuses:
        """Return the controller's answers; after a missing answer it is not asked again.

        It answers for one job per call, so only some jobs are asked for in each cycle, the others in later ones.
        """
        later = GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: scontrol is asked for it in a later cycle")
        statuses = dict.fromkeys(jobs, later)
        ordered = sorted(jobs, key=str)
        start = bisect_right(ordered, self._last_queried, key=str)
        for job in [*ordered[start:], *ordered[:start]][:_MAX_CONTROLLER_QUERIES]:
            self._last_queried = str(job)
            try:
                statuses[job] = await self._controller_status(job)
            except WorldError as error:
                unknown = GlideinStatus(GlideinState.UNKNOWN, str(error))
                return {each: unknown if status is later else status for each, status in statuses.items()}
        return statuses

    async def _accounts(self, jobs: Sequence[SlurmId]) -> _Statuses:
        """Return the statuses in the accounting; empty when there is none, or it does not answer."""
        accounts: _Statuses = {}
        for start in range(0, len(jobs), _MAX_JOBS_PER_COMMAND):
            some = ",".join(numbers(jobs[start : start + _MAX_JOBS_PER_COMMAND]))
            try:
                answer = await self._ask("sacct", *SACCT_OPTIONS, f"--jobs={some}")
            except WorldError:
                return accounts
            accounts |= accounting_statuses(answer.stdout) if answer.exit_code == 0 else {}
        return accounts

    async def _controller_status(self, job: SlurmId) -> GlideinStatus:
        """Return the status of a job that is not in the queue: it has ended if the controller does not know it."""
        answer = await self._ask("scontrol", "--oneliner", "show", "job", job.job)
        if answer.exit_code != 0 and is_unknown_job(answer.error_text):
            return GlideinStatus(GlideinState.ENDED, f"{self._name} no longer knows job {job.job}")
        if answer.exit_code != 0:
            return GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: scontrol: {answer.error_text}")
        return GlideinStatus(
            GlideinState.UNKNOWN, f"{self._name}: squeue has left out job {job.job}, or it is another's"
        )

    async def _living(self, wanted: Collection[SlurmId], state: GlideinState) -> list[SlurmId]:
        return [job for job, status in (await self._queue()).items() if job in wanted and status.state is state]

    async def _late(self, running: Sequence[SlurmId]) -> list[SlurmId]:
        """Return the jobs that have not ended within `kill_after_s`."""
        late = list(running)
        try:
            async with asyncio.timeout(self._settings.kill_after_s):
                while late:
                    late = await self._living(late, GlideinState.RUNNING)
                    await asyncio.sleep(_POLL_INTERVAL_S if late else 0)
        except TimeoutError:
            return late
        return []

    async def _cancel(self, jobs: Sequence[SlurmId], *options: str) -> None:
        for start in range(0, len(jobs), _MAX_JOBS_PER_COMMAND):
            await self._ask("scancel", "--quiet", *options, *numbers(jobs[start : start + _MAX_JOBS_PER_COMMAND]))

    async def _queue(self) -> _Statuses:
        """Return our jobs in Slurm's queue; raises WorldError when the answer is incomplete."""
        answer = await self._ask(*_SQUEUE)
        if answer.exit_code != 0:
            raise WorldError(f"{self._name}: squeue: {answer.error_text}", transient=True)
        user_id = await self._user()
        try:
            # A whole cluster's queue is megabytes of JSON.
            return await asyncio.to_thread(parse_queue, answer.stdout, user_id)
        except WorldError as error:
            raise WorldError(f"{self._name}: squeue: {error}", transient=True) from error

    async def _user(self) -> int | None:
        """Return the id of the user of our jobs; None = not known."""
        if self._user_id is None:
            answer = await self._ask_cluster("", "id", "-u")
            user_id = answer.stdout.strip()
            self._user_id = int(user_id) if answer.exit_code == 0 and user_id.isdecimal() else None
        return self._user_id

    async def _ask(self, program: str, *arguments: str, stdin: str = "") -> CommandResult:
        """Run one of Slurm's commands."""
        return await self._ask_cluster(self._settings.cluster, program, *arguments, stdin=stdin)

    async def _ask_cluster(self, cluster: str, program: str, *arguments: str, stdin: str = "") -> CommandResult:
        chosen = (f"--clusters={cluster}",) if cluster else ()
        command = (*self._settings.command_prefix, program, *chosen, *arguments)
        try:
            return await self._host.run(command, timeout_s=self._settings.timeout_s, stdin=stdin.encode())
        except WorldError as error:
            raise WorldError(f"{self._name}: {program}: {error}", transient=error.transient) from error
