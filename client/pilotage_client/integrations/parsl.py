"""`PilotageProvider`: the blocks of Parsl's executors are jobs."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.providers.base import ExecutionProvider
from parsl.providers.errors import SubmitException

from pilotage.errors import PilotageError, WorldError
from pilotage.job_description import InputFile
from pilotage_client import models
from pilotage_client.api import Client
from pilotage_client.connection import new_request_id
from pilotage_client.readers.files import resolve_local_files
from pilotage_client.readers.values import check_user_keys, job
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget

_LOGGER = logging.getLogger(__name__)
_STATES = {
    "RUNNING": JobState.RUNNING,
    "HELD": JobState.HELD,
    "DONE": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "REMOVED": JobState.CANCELLED,
}
_POLL_S = 2
_WITH_FILES = ("DONE", "FAILED")


class PilotageProvider(ExecutionProvider):  # type: ignore[misc] # its package has no types
    """Runs each block, on one node, as a job; use it for `HighThroughputExecutor`.

    `client` = the server to use, None = the one that the command line would use. `worker_init` are lines of a shell
    before the workers, such as the activation of their environment. `keys` are those of `job`: `cpus`, `memory`,
    `wall_time`, `require`, `image`, and so on. The other parameters are those of Parsl's own providers.

    Raises
    ------
    InvalidInputError
        With every key at fault, or if no server is set.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        worker_init: str = "",
        group: str = "",
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        parallelism: float = 1,
        **keys: Any,
    ) -> None:
        check_user_keys(keys.keys())
        asked = job("/bin/bash", **keys)
        self._keys = keys
        self._group = group
        self._worker_init = worker_init
        self._client = Client.located() if client is None else client
        self._numbers = count()
        self._last: dict[int, JobStatus] = {}
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.parallelism = parallelism
        self.nodes_per_block = 1
        self.cores_per_node = asked.request_cpus
        self.mem_per_node = None if asked.request_memory_mib is None else asked.request_memory_mib / 1024
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}

    @property
    def label(self) -> str:
        """The name of the provider."""
        return "pilotage"

    @property
    def status_polling_interval(self) -> int:
        """The seconds between two calls of `status`."""
        return _POLL_S

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl") -> int:
        """Submit the job of a block and return its id; raises SubmitException."""
        if tasks_per_node != 1:
            raise SubmitException(job_name, f"a block runs its command once on its node, not {tasks_per_node} times")
        script = self._folder() / f"{job_name}.{next(self._numbers)}.sh"
        sizes = {"PARSL_CORES": self.cores_per_node, "PARSL_MEMORY_GB": self.mem_per_node}
        exports = [f"export {name}={value}" for name, value in sizes.items() if value is not None]
        script.write_text("\n".join([*exports, self._worker_init, command, ""]))
        try:
            block = job("/bin/bash", script.name, **{"name": job_name, **self._keys})
            files = (*block.input_files, InputFile(script.name, source=str(script)))
            description = resolve_local_files(replace(block, input_files=files), script.parent)
            submit = partial(self._client.submit, description, group=self._group, request_id=new_request_id())
            submitted = RetryBudget(DEFAULT_RETRY_S, _LOGGER.warning)(submit)
        except PilotageError as error:
            raise SubmitException(job_name, str(error)) from error
        for warning in submitted.warnings:
            _LOGGER.warning("job %s: %s", submitted.job_ids[0], warning)
        return submitted.job_ids[0]

    def status(self, job_ids: Sequence[Any]) -> list[JobStatus]:
        """Return the states of jobs; the last known ones while no server answers."""
        open_ids = [each for each in job_ids if each not in self._last or not self._last[each].terminal]
        try:
            statuses = self._client.jobs(open_ids) if open_ids else []
        except WorldError as error:
            if not error.transient:
                raise
            _LOGGER.warning("the states of blocks are not known: %s", error)
            return [self._last.get(each, JobStatus(JobState.UNKNOWN)) for each in job_ids]
        self._last.update((status.id, self._block_status(status)) for status in statuses)
        return [self._last[each] for each in job_ids]

    def cancel(self, job_ids: Sequence[Any]) -> list[bool]:
        """Remove jobs; returns for each whether it was removed."""
        return [not result.refusal for result in self._client.remove(job_ids, "Parsl has cancelled the block")]

    def _folder(self) -> Path:
        folder = Path(self.script_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        return folder.absolute()

    def _block_status(self, status: models.JobStatus) -> JobStatus:
        state = _STATES.get(status.state, JobState.PENDING)
        message = f"job {status.id} is {status.state}: {status.reason} (see `pilotage why {status.id}`)"
        paths = self._fetched(status.id) if status.state in _WITH_FILES else (None, None)
        return JobStatus(state, message if status.reason else None, status.exit_code, *paths)

    def _fetched(self, job_id: int) -> tuple[str | None, str | None]:
        """Write the standard output and error of an ended block into the folder of scripts; returns their paths."""
        folder = self._folder() / str(job_id)
        try:
            self._client.fetch_output(job_id, folder)
            out, err = self._client.standard_files(job_id)
        except PilotageError as error:
            _LOGGER.warning("the output of job %s cannot be fetched: %s", job_id, error)
            return None, None
        return str(folder / out), str(folder / err)
