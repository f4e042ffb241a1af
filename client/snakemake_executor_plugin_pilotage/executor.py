"""The executor of Snakemake: submits in batches, follows the event feed, and reports what has ended."""

# Without `from __future__ import annotations`: Snakemake calls the types of the settings.

import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase, SharedFSUsage

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.connection import ServerOptions, new_request_id
from pilotage_client.models import FINAL_STATES, JobEvent, JobStatus
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget, event_pages_since
from snakemake_executor_plugin_pilotage.descriptions import LOG, describe, keys_of_resources

LOGS = Path(".snakemake", "pilotage_logs")
_CHECK_S = 0.5
_LONGEST_NAME = 100

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=True,
    can_transfer_local_files=True,
)


def _option(text: str) -> Any:
    return field(default="", metadata={"help": text, "env_var": False, "required": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc] # its package has no types
    """Options of the command line, such as `--pilotage-group`; without them the server is that of `pilotage`."""

    server: str = _option("Address of the server, HOST:PORT; several with commas.")
    token_file: str = _option("File with the token.")
    ca_file: str = _option("File with the trusted authorities of the server's certificate (PEM).")
    data: str = _option("Data folder of `pilotage up`.")
    group: str = _option("Accounting group of the jobs.")


class Executor(RemoteExecutor):  # type: ignore[misc] # its package has no types
    """Runs jobs of Snakemake as jobs of Pilotage.

    A thread follows the feed of events; the checks of Snakemake, in another thread, read what it has seen.
    """

    def __post_init__(self) -> None:
        """Connect to the server; raises WorkflowError."""
        settings = self.workflow.executor_settings or ExecutorSettings()
        storage = self.workflow.storage_settings
        # Snakemake's cache of sources is in the home folder, which jobs do not see: each has its own.
        storage.shared_fs_usage = usage = frozenset(storage.shared_fs_usage) - {SharedFSUsage.SOURCE_CACHE}
        self._folder = Path.cwd() if SharedFSUsage.INPUT_OUTPUT in usage else None
        self._sources_travel = self._folder is None and SharedFSUsage.SOURCES not in usage
        self._sources: list[str] | None = None
        self._group = settings.group
        self._new_retry = partial(RetryBudget, DEFAULT_RETRY_S, self._warn)
        self._live: set[int] = set()
        self._ended: set[int] = set()
        self._submission = threading.Lock()  # held from a submission until its jobs are in `_live`
        self._changed = threading.Lock()  # of `_live` and `_ended`; not held during calls of the server
        self._is_over = False
        self._follower: threading.Thread | None = None
        self.next_seconds_between_status_checks = _CHECK_S  # a check reads memory
        token_file, ca_file, data = (
            Path(text).expanduser() if text else None for text in (settings.token_file, settings.ca_file, settings.data)
        )
        options = ServerOptions(settings.server or None, token_file, data, ca_file=ca_file)
        try:
            self._client = Client.located(options)
        except PilotageError as error:
            raise WorkflowError(f"Pilotage: {error}") from error

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job."""
        self.run_jobs([job])

    def run_jobs(self, jobs: Sequence[JobExecutorInterface]) -> None:
        """Submit jobs in one call; raises WorkflowError."""
        for job in jobs:
            self.run_job_pre(job)
        try:
            descriptions = [self._description(job) for job in jobs]
            submit = partial(self._client.submit, descriptions, group=self._group, request_id=new_request_id())
            with self._submission:
                try:
                    submitted = self._new_retry()(submit)
                except KeyboardInterrupt:
                    # The server may have taken the jobs: the same request id returns their ids, for `cancel_jobs`.
                    self._live.update(submit().job_ids)
                    raise
                with self._changed:
                    self._live.update(submitted.job_ids)
        except PilotageError as error:
            names = ", ".join(dict.fromkeys(str(job.name) for job in jobs))
            raise WorkflowError(f"Pilotage does not take jobs of {names}: {error}") from error
        for warning in submitted.warnings:
            self._warn(f"Pilotage: {warning}")
        for job, job_id in zip(jobs, submitted.job_ids, strict=True):
            self.report_job_submission(SubmittedJobInfo(job, external_jobid=str(job_id)))
        if self._follower is None:
            first = submitted.job_ids[0]
            self._follower = threading.Thread(target=self._follow, args=(first,), name="pilotage-events", daemon=True)
            self._follower.start()

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Report the jobs that have ended; yield the others."""
        if not active_jobs:  # the first check may come before `__post_init__`
            return
        active = {int(info.external_jobid) for info in active_jobs}
        with self._changed:
            ended = sorted(self._ended & active)  # the events of others came before they are active
            self._ended.difference_update(ended)
        try:
            statuses = self._new_retry()(partial(self._client.jobs, ended)) if ended else []
        except PilotageError as error:
            raise _end_of(error) from error
        # A job that has ended may have been rescheduled since.
        final = {str(status.id): status for status in statuses if status.is_final}
        for info in active_jobs:
            status = final.get(info.external_jobid)
            if status is None:
                yield info
            else:
                self._report(info, status)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Remove all jobs that have not ended: Snakemake's list lacks those that it is checking just now."""
        with self._changed:
            jobs = sorted(self._live)
        try:
            self._client.remove(jobs, "Snakemake was interrupted")
        except PilotageError as error:
            self._warn(f"Jobs of Pilotage are left, remove them with `pilotage remove`: {error}")

    def shutdown(self) -> None:
        """Stop to follow the jobs and close the connection."""
        super().shutdown()
        self._is_over = True
        self._client.close()

    def _description(self, job: JobExecutorInterface) -> JobDescription:
        script = Path(self.get_jobscript(job))
        self.write_jobscript(job, script)
        keys = keys_of_resources(job.threads, job.resources)
        name = job.name[:_LONGEST_NAME]
        if self._folder is not None:
            return describe(name, script, keys, folder=self._folder)
        if self._sources is None:
            self._sources = sorted(self.workflow.dag.get_sources()) if self._sources_travel else []
        inputs = [*self._sources, *_local(job.input)]
        members = job.jobs if job.is_group() else [job]
        outputs = _local(chain.from_iterable(member.products() for member in members))
        return describe(name, script, keys, inputs=inputs, outputs=outputs)

    def _follow(self, first_job: int) -> None:
        try:
            for page in event_pages_since(self._client, first_job, self._new_retry, is_over=lambda: self._is_over):
                for event in page:
                    self._note(event)
        except Exception as error:  # the edge of the thread
            self.workflow.scheduler.executor_error_callback(_end_of(error))

    def _note(self, event: JobEvent) -> None:
        with self._submission, self._changed:  # events of jobs may come before the answer to their submission
            if event.job_id not in self._live:
                return
            if event.after in FINAL_STATES:
                self._ended.add(event.job_id)
        if event.after == "HELD":
            self._warn(
                f"Job {event.job_id} of Pilotage is held: {event.reason}. It goes on after `pilotage release "
                f"{event.job_id}`, and has failed after `pilotage remove {event.job_id}`."
            )

    def _warn(self, text: str) -> None:
        self.logger.warning(text)  # one text: Snakemake shows the message without its arguments

    def _report(self, info: SubmittedJobInfo, status: JobStatus) -> None:
        with self._changed:
            self._live.discard(status.id)
        log = LOGS / info.job.name / f"{status.id}.log"
        try:
            log_found = self._fetch(status, log)
        except (PilotageError, OSError) as error:
            self.report_job_error(info, msg=f"The files of job {status.id} of Pilotage cannot be fetched: {error}. ")
            return
        if status.state == "DONE":
            self.report_job_success(info)
            return
        why = f"Job {status.id} of Pilotage is {status.state}: {status.reason}. See `pilotage why {status.id}`. "
        self.report_job_error(info, msg=why, aux_logs=[str(log)] if log_found else [])

    def _fetch(self, status: JobStatus, log: Path) -> bool:
        """Write the log of a job that has failed, and the files that have travelled; returns whether it has a log."""
        if status.state == "DONE" and self._folder is not None:
            return False
        files = self._new_retry()(partial(self._client.output_files, status.id))
        if self._folder is None:
            self._client.fetch_files(status.id, [file for file in files if file.name != LOG], Path())
        logs = [file for file in files if file.name == LOG]
        if status.state == "DONE" or not logs:
            return False
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(self._new_retry()(partial(self._client.read_output, status.id, logs[0])))
        return True


def _end_of(error: Exception) -> WorkflowError:
    return WorkflowError(f"Pilotage: {error}. Submitted jobs go on: see `pilotage status`.")


def _local(files: Iterable[Any]) -> list[str]:
    """Return the paths of the files that no storage plugin handles."""
    return [str(file) for file in files if not getattr(file, "is_storage", False)]
