"""Slurm as a batch system: by its commands, one squeue for all pilots, and no word of a pilot's end but Slurm's own."""

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
    living_by_stamp,
)
from pilotage_agents.batch_systems.commands import Answer
from pilotage_agents.batch_systems.places import Place
from pilotage_agents.batch_systems.slurm_text import (
    ACCOUNTS,
    SlurmId,
    accounts_of,
    denies_job,
    heard_nothing,
    numbers,
    queue_of,
    script,
    submission,
    submitted_job,
)
from pilotage_agents.settings import SlurmBatchSystemSettings

log = structlog.get_logger()

_SQUEUE = ("squeue", "--json", "--noheader", "--me", "--all", "--states=all")
_LOOK_AGAIN_S = 0.5
_MOST_IN_A_COMMAND = 500
_MOST_OF_CONTROLLER = 100

_Statuses = dict[SlurmId, GlideinStatus]


class SlurmBatchSystem:
    """Runs glideins as batch jobs of one user; `name` is what the settings call the cluster.

    Its commands run at `place`, which has the glideins' folders where the nodes see them. A job that has left Slurm's
    queue has ended when its accounting says so, or its controller knows no such job.
    """

    def __init__(self, name: str, settings: SlurmBatchSystemSettings, place: Place) -> None:
        self._name = name
        self._settings = settings
        self._place = place
        self._user_id: int | None = None
        self._asked_last = ""

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit one job each; after one that is not answered no other is tried. See BatchSystem."""
        try:
            await self._place.bring([request.folder for request in requests if request.alone is None])
        except WorldError as error:
            return tuple(NotSubmitted(f"{self._name}: {error}") for _ in requests)
        answers: list[Submission] = []
        for request in requests:
            if answers and isinstance(answers[-1], Unanswered):
                left = len(requests) - len(answers)
                return (*answers, *[NotSubmitted(f"as before: {answers[-1].reason}", was_tried=False)] * left)
            answers.append(await self._submit(request))
        return tuple(answers)

    async def find_again(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the jobs that have these stamps and have not ended; see BatchSystem."""
        return living_by_stamp(await self._queue(), stamps) if stamps else {}

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return what the queue says of the jobs, and the accounting or the controller of others; see BatchSystem."""
        jobs = {job: each for each in glidein_ids if (job := SlurmId.of(each))}
        statuses = dict.fromkeys(glidein_ids, GlideinStatus(GlideinState.UNKNOWN, "it is no job of Slurm's"))
        return statuses | {jobs[job]: status for job, status in (await self._statuses(jobs)).items()}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Tell the pilots alone to end, so that they see to their jobs, and have late ones killed; see BatchSystem."""
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
        """Bring the file to where Slurm is, but for nodes that see no folder; see BatchSystem."""
        if not self._settings.node_folder:
            await self._place.bring(folders, name)

    async def collect(self, folders: Sequence[Path]) -> None:
        """Fetch what the pilots printed from where Slurm is; see BatchSystem."""
        await self._place.collect(folders)

    async def _submit(self, request: GlideinRequest) -> Submission:
        options = submission(request, self._log_of(request), self._settings.account, self._settings.sbatch_options)
        try:
            answer = await self._ask("sbatch", *options, stdin=script(request))
        except WorldError as error:
            return Unanswered(str(error)) if error.transient else NotSubmitted(str(error))
        if answer.exit_code != 0:
            reason = f"{self._name}: {answer.complaint}"
            return Unanswered(reason) if heard_nothing(reason) else NotSubmitted(reason)
        job = submitted_job(answer.stdout)
        if job is None:
            return Unanswered(f"{self._name}: sbatch: its answer holds no job id: {answer.complaint}")
        if job[1] and job[1] != self._settings.cluster:
            return await self._called_back(*job)
        return Submitted(str(SlurmId(job[0], request.stamp)))

    def _log_of(self, request: GlideinRequest) -> PurePath:
        if request.alone is None:
            return self._place.path_of(request.folder) / LOG_NAME
        return PurePosixPath(self._settings.node_folder, f"pilotage-{request.stamp}.log")

    async def _called_back(self, job: str, cluster: str) -> NotSubmitted:
        """Cancel a job that went to a cluster which no later command would ask for it."""
        reason = f'{self._name}: sbatch has sent it to the cluster {cluster}: say cluster = "{cluster}" for that one'
        try:
            await self._ask_cluster(cluster, "scancel", job)
        except WorldError as error:
            log.warning("job could not be cancelled", batch_system=self._name, job=job, reason=str(error))
        return NotSubmitted(reason)

    async def _statuses(self, jobs: Collection[SlurmId]) -> _Statuses:
        """Return what Slurm says of each of the jobs."""
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
        """Return what becomes known of jobs that are not in the queue."""
        accounts = await self._accounts(jobs) if jobs else {}
        ended = {job: accounts[job] for job in jobs if job in accounts and _has_ended(accounts[job])}
        return ended | await self._words_of_controller([job for job in jobs if job not in ended])

    async def _words_of_controller(self, jobs: Sequence[SlurmId]) -> _Statuses:
        """Return what the controller says of the jobs; one that gives no answer is asked no more.

        It is asked for them one by one, so for no more than some in a look: for the others in the looks that follow.
        """
        later = GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: scontrol is asked for it in a later look")
        statuses = dict.fromkeys(jobs, later)
        for job in self._in_turn(jobs)[:_MOST_OF_CONTROLLER]:
            self._asked_last = str(job)
            try:
                statuses[job] = await self._word_of_controller(job)
            except WorldError as error:
                unknown = GlideinStatus(GlideinState.UNKNOWN, str(error))
                return {each: unknown if status is later else status for each, status in statuses.items()}
        return statuses

    def _in_turn(self, jobs: Sequence[SlurmId]) -> list[SlurmId]:
        """Return the jobs in the order of their ids, from the one that follows the last that was asked for."""
        ordered = sorted(jobs, key=str)
        start = bisect_right(ordered, self._asked_last, key=str)
        return [*ordered[start:], *ordered[:start]]

    async def _accounts(self, jobs: Sequence[SlurmId]) -> _Statuses:
        """Return what the accounting says of jobs; nothing where there is none, or it gives no answer."""
        accounts: _Statuses = {}
        for start in range(0, len(jobs), _MOST_IN_A_COMMAND):
            some = ",".join(numbers(jobs[start : start + _MOST_IN_A_COMMAND]))
            try:
                answer = await self._ask("sacct", *ACCOUNTS, f"--jobs={some}")
            except WorldError:
                return accounts
            accounts |= accounts_of(answer.stdout) if answer.exit_code == 0 else {}
        return accounts

    async def _word_of_controller(self, job: SlurmId) -> GlideinStatus:
        """Return the status of a job that is not in the queue: it has ended where the controller knows no such job."""
        answer = await self._ask("scontrol", "--oneliner", "show", "job", job.job)
        if answer.exit_code != 0 and denies_job(answer.complaint):
            return GlideinStatus(GlideinState.ENDED, f"{self._name} knows no job {job.job} any more")
        if answer.exit_code != 0:
            return GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: scontrol: {answer.complaint}")
        return GlideinStatus(
            GlideinState.UNKNOWN, f"{self._name}: squeue has left out job {job.job}, or it is another's"
        )

    async def _living(self, wanted: Collection[SlurmId], state: GlideinState) -> list[SlurmId]:
        return [job for job, status in (await self._queue()).items() if job in wanted and status.state is state]

    async def _late(self, told: Sequence[SlurmId]) -> list[SlurmId]:
        """Return those that have not ended in the time they have for it; waits no longer than that."""
        late = list(told)
        try:
            async with asyncio.timeout(self._settings.kill_after_s):
                while late:
                    late = await self._living(late, GlideinState.RUNNING)
                    await asyncio.sleep(_LOOK_AGAIN_S if late else 0)
        except TimeoutError:
            return late
        return []

    async def _cancel(self, jobs: Sequence[SlurmId], *options: str) -> None:
        for start in range(0, len(jobs), _MOST_IN_A_COMMAND):
            await self._ask("scancel", "--quiet", *options, *numbers(jobs[start : start + _MOST_IN_A_COMMAND]))

    async def _queue(self) -> _Statuses:
        """Return our jobs in Slurm's queue; raises WorldError when it gives no whole answer."""
        answer = await self._ask(*_SQUEUE)
        if answer.exit_code != 0:
            raise WorldError(f"{self._name}: squeue: {answer.complaint}", transient=True)
        user_id = await self._user()
        try:
            # A whole cluster's queue is megabytes of JSON.
            return await asyncio.to_thread(queue_of, answer.stdout, user_id)
        except WorldError as error:
            raise WorldError(f"{self._name}: squeue: {error}", transient=True) from error

    async def _user(self) -> int | None:
        """Return the id of the user that our jobs are of; None = it cannot be told."""
        if self._user_id is None:
            answer = await self._ask_cluster("", "id", "-u")
            said = answer.stdout.strip()
            self._user_id = int(said) if answer.exit_code == 0 and said.isdecimal() else None
        return self._user_id

    async def _ask(self, program: str, *arguments: str, stdin: str = "") -> Answer:
        """Ask one of Slurm's commands."""
        return await self._ask_cluster(self._settings.cluster, program, *arguments, stdin=stdin)

    async def _ask_cluster(self, cluster: str, program: str, *arguments: str, stdin: str = "") -> Answer:
        chosen = (f"--clusters={cluster}",) if cluster else ()
        command = (*self._settings.command_prefix, program, *chosen, *arguments)
        try:
            return await self._place.ask(command, timeout_s=self._settings.timeout_s, stdin=stdin.encode())
        except WorldError as error:
            raise WorldError(f"{self._name}: {program}: {error}", transient=error.transient) from error


def _has_ended(status: GlideinStatus) -> bool:
    return status.state is GlideinState.ENDED
