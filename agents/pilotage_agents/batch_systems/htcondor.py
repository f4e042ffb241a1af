"""HTCondor as a batch system, by its Python library. Tested with recorded answers, not with a live pool.

Rules
-----
- A job is ours when its attribute PilotageStamp holds a pilot's stamp.
- A glidein is started once: an evicted or held one is no pilot any more and removes itself (periodic_remove). It has
  ended when the schedd has removed it from its queue.
- An unknown JobStatus concludes nothing.
- HTCondor's file transfer sends the glidein's folder and returns its output: the schedd's host must see the folders,
  nodes need not. A job that runs in place, such as a routed one, needs nodes of the schedd's FileSystemDomain.
- Every call of the library runs in a child process with a deadline. The library blocks if a schedd does not answer,
  may end its process, and reads HTCondor's configuration, which this process has disabled for its ClassAds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import structlog

from pilotage.errors import InvalidInputError, Violation, WorldError
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
from pilotage_agents.batch_systems.hosts import run_command
from pilotage_agents.batch_systems.schedd_child import NO_LIBRARY
from pilotage_agents.batch_systems.settings import HtcondorBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape

STAMP = "PilotageStamp"
OURS = f"{STAMP} =!= undefined"
"""The constraint that selects all glideins."""

ATTRIBUTES = (
    "ClusterId",
    STAMP,
    "JobStatus",
    "ExitBySignal",
    "ExitSignal",
    "ExitCode",
    "HoldReason",
    "LastHoldReason",
    "RemoveReason",
    "NumJobStarts",
)
"""The attributes to read of a job."""

Ad = Mapping[str, object]
"""A job's attributes; those without a value are missing."""

_IDLE, _RUNNING, _REMOVED, _COMPLETED, _HELD, _TRANSFERRING, _SUSPENDED = range(1, 8)
_STATE_NAMES = {
    _RUNNING: "running",
    _REMOVED: "being removed",
    _TRANSFERRING: "output on its way",
    _SUSPENDED: "suspended",
}
_LIST_SEPARATORS = frozenset(",$\r\n")
_NEVER_STARTED = "ifThenElse(isUndefined(MY.NumJobStarts), 0, MY.NumJobStarts) == 0"
_REMOVE_CONDITION = f"(JobStatus == {_HELD}) || (JobStatus == {_IDLE} && !({_NEVER_STARTED}))"


@dataclass(frozen=True, slots=True)
class HtcondorId:
    """The id of a glidein: the cluster of its one job, which may be reused one day, and the pilot's stamp."""

    cluster: int
    stamp: str

    def __str__(self) -> str:
        return f"{self.cluster}.0.{self.stamp}"

    @classmethod
    def of(cls, glidein_id: str) -> Self | None:
        """Return the id from its text; None = it is none of HTCondor's."""
        cluster, _, rest = glidein_id.partition(".")
        zero, _, stamp = rest.partition(".")
        return cls(int(cluster), stamp) if cluster.isdecimal() and zero == "0" and stamp else None

    @classmethod
    def of_ad(cls, ad: Ad) -> Self | None:
        """Return the id of the glidein of an ad; None = it is no glidein."""
        cluster, stamp = ad.get("ClusterId"), ad.get(STAMP)
        return cls(cluster, stamp) if isinstance(cluster, int) and isinstance(stamp, str) else None


def submit_description(
    request: GlideinRequest, files: Collection[str], extra: Mapping[str, str], vacate_s: float
) -> dict[str, str]:
    """Return the submit description of a glidein.

    `files` of its folder are transferred, unless it runs in place. The values in `extra`, from the settings, override
    sizes and extend the requirements, but cannot change what finds the glidein again. Raises InvalidInputError for what
    a submit description cannot hold: a command of several lines, or a file name that breaks its list of files.
    """
    if any("\n" in word for word in request.command):
        raise InvalidInputError(Violation("command", "HTCondor takes no arguments of more than one line"))
    if misread := [name for name in files if not _LIST_SEPARATORS.isdisjoint(name)]:
        raise InvalidInputError(Violation("transfer_input_files", f"HTCondor takes no file of the name {misread[0]!r}"))
    values = {name.strip().lower(): value for name, value in extra.items()}
    theirs = values.pop("requirements", "")
    ours = {
        "universe": "vanilla",
        # A shell, so that the pilot's command is found in the node's PATH.
        "executable": "/bin/sh",
        "transfer_executable": "false",
        "arguments": submit_arguments(("-c", 'exec "$0" "$@"', *request.command)),
        "initialdir": _plain(str(request.folder)),
        "output": LOG_NAME,
        "error": LOG_NAME,
        **(_IN_PLACE if request.in_place else _transfer(files)),
        "requirements": f"({theirs}) && ({_NEVER_STARTED})" if theirs else _NEVER_STARTED,
        "periodic_remove": _REMOVE_CONDITION,
        "job_max_vacate_time": str(round(vacate_s)),
        f"+{STAMP}": _plain(json.dumps(request.stamp)),
        "+PilotageQueue": _plain(json.dumps(request.queue, ensure_ascii=False)),
    }
    return {**_sizes(request.shape, request.wall_time_s), **values, **ours}


_IN_PLACE = {"should_transfer_files": "NO"}
"""HTCondor itself then requires that node and schedd have the same FileSystemDomain."""


def _transfer(files: Collection[str]) -> dict[str, str]:
    return {
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT",
        "transfer_input_files": ",".join(files),
        "transfer_output_files": '""',
    }


def _sizes(shape: Shape, wall_time_s: int | None) -> dict[str, str]:
    sizes = {
        "request_cpus": shape.cpus,
        "request_memory": shape.memory_mib,
        "request_disk": shape.disk_mib and shape.disk_mib * 1024,  # in KiB
        "request_gpus": shape.gpus,
        # A job that takes longer is held, and so removes itself.
        "allowed_execute_duration": wall_time_s,
    }
    return {name: str(size) for name, size in sizes.items() if size}


def submit_arguments(words: Sequence[str]) -> str:
    """Return the value of `arguments` for these words (HTCondor manual: new syntax of arguments)."""
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
    return '"' + _plain(quoted.replace('"', '""')) + '"'


def _plain(text: str) -> str:
    # A dollar sign would start a macro.
    return text.replace("$", "$(DOLLAR)")


def status_in_queue(ad: Ad) -> GlideinStatus:
    """Return the status of a job in a schedd's queue."""
    match ad.get("JobStatus"):
        case 1:
            evicted = "" if ad.get("NumJobStarts", 0) == 0 else ", evicted"
            return GlideinStatus(GlideinState.WAITING, f"idle{evicted}")
        case 5:
            return GlideinStatus(GlideinState.WAITING, f"held: {ad.get('HoldReason', 'no reason given')}")
        case 4:
            return _completed(ad)
        case int(number) if number in _STATE_NAMES:
            return GlideinStatus(GlideinState.RUNNING, _STATE_NAMES[number])
        case other:
            return GlideinStatus(GlideinState.UNKNOWN, f"its JobStatus is {other!r}")


def status_in_history(ad: Ad) -> GlideinStatus:
    """Return the status of a job that has left its schedd's queue, and so has ended."""
    if ad.get("JobStatus") == _COMPLETED:
        return _completed(ad)
    held = ad.get("HoldReason", ad.get("LastHoldReason"))
    if held is not None:
        return GlideinStatus(GlideinState.ENDED, f"held and removed: {held}", has_failed=True)
    return GlideinStatus(GlideinState.ENDED, f"removed: {ad.get('RemoveReason', 'no reason given')}")


def _completed(ad: Ad) -> GlideinStatus:
    by_signal = ad.get("ExitBySignal") is True
    number = ad.get("ExitSignal" if by_signal else "ExitCode")
    if not isinstance(number, int):
        return GlideinStatus(GlideinState.ENDED, "completed")
    code = 128 + number if by_signal else number
    return GlideinStatus(GlideinState.ENDED, f"completed, exit code {code}", code)


def constraint_of(glideins: Iterable[HtcondorId]) -> str:
    """Return the constraint that selects these glideins, and no other job with a reused id."""
    return " || ".join(f'(ClusterId == {each.cluster} && {STAMP} =?= "{each.stamp}")' for each in glideins)


_CHILD = "pilotage_agents.batch_systems.schedd_child"


class Schedd(Protocol):
    """The queue and the history of a schedd; every method raises WorldError when it does not answer."""

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        """Submit one job each; returns the cluster of each, or why there is none."""

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        """Return the ads of all glideins in the queue."""

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        """Return the ads of at most `most` jobs that have left the queue, the latest first."""

    async def remove(self, constraint: str, reason: str) -> None:
        """Remove jobs; it is no error if none meets the constraint."""


class LibrarySchedd:
    """The schedd `name` of the pool of `collector`; empty = as in this host's HTCondor configuration."""

    def __init__(self, name: str, collector: str, *, timeout_s: float) -> None:
        self._where = {"schedd": name, "collector": collector}
        self._timeout_s = timeout_s

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        """Submit jobs; after one that was not accepted no other is tried. See Schedd."""
        answer = await self._call("submit", descriptions=[dict(each) for each in descriptions])
        clusters: list[int] = answer["clusters"]
        left = len(descriptions) - len(clusters)
        if not left:
            return clusters
        first = NotSubmitted(answer["error"]) if answer["refused"] else Unanswered(answer["error"])
        return [*clusters, first, *[NotSubmitted(f"as before: {answer['error']}", was_tried=False)] * (left - 1)]

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        """Return the ads of all glideins in the queue; see Schedd."""
        answer = await self._call("queue", constraint=OURS, attributes=ATTRIBUTES, of_this_user=of_this_user)
        return _ads(answer)

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        """Return the ads of jobs that have left the queue; see Schedd."""
        return _ads(await self._call("history", constraint=constraint, attributes=ATTRIBUTES, most=most))

    async def remove(self, constraint: str, reason: str) -> None:
        """Ask jobs to end; see Schedd."""
        await self._call("remove", constraint=constraint, reason=reason)

    async def _call(self, what: str, **request: object) -> dict[str, Any]:
        text = json.dumps({"do": what, **self._where, **request})
        answer = await run_command((sys.executable, "-P", "-m", _CHILD), timeout_s=self._timeout_s, stdin=text.encode())
        if answer.exit_code != 0:
            raise WorldError(answer.error_text, transient=NO_LIBRARY not in answer.stderr)
        try:
            reply = json.loads(answer.stdout.rstrip().rpartition("\n")[2])
        except ValueError as error:
            raise WorldError(f"its answer cannot be read: {error}", transient=True) from error
        assert isinstance(reply, dict), "schedd_child answers with an object"
        return reply


def _ads(answer: dict[str, Any]) -> list[Ad]:
    ads: list[Ad] = answer["ads"]
    return ads


log = structlog.get_logger()

_POLL_INTERVAL_S = 1.0
_MAX_JOBS_PER_CONSTRAINT = 100

_Statuses = dict[HtcondorId, GlideinStatus]


class HtcondorBatchSystem:
    """Runs glideins as vanilla jobs of this user; `name` is the schedd's name in the settings.

    A job that has left the queue has ended; the schedd's history has its exit code.
    """

    def __init__(self, name: str, settings: HtcondorBatchSystemSettings, schedd: Schedd) -> None:
        self._name = name
        self._settings = settings
        self._schedd = schedd
        self._is_used = False

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit one job each; see BatchSystem."""
        if not self._is_used:
            log.warning("HTCondor was never tested with a live pool: watch its first jobs", batch_system=self._name)
            self._is_used = True
        descriptions = [await asyncio.to_thread(self._description_of, request) for request in requests]
        answers = iter(await self._answers([each for each in descriptions if not isinstance(each, NotSubmitted)]))
        return tuple(
            self._submission(request, each if isinstance(each, NotSubmitted) else next(answers))
            for request, each in zip(requests, descriptions, strict=True)
        )

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the jobs that have these stamps and have not ended; see BatchSystem."""
        return live_ids_by_stamp(await self._queue(of_this_user=True), stamps) if stamps else {}

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return the statuses in the queue, and for other jobs in the history; see BatchSystem."""
        jobs = {job: each for each in glidein_ids if (job := HtcondorId.of(each))}
        statuses = dict.fromkeys(glidein_ids, GlideinStatus(GlideinState.UNKNOWN, "it is no job of HTCondor's"))
        return statuses | {jobs[job]: status for job, status in (await self._statuses(jobs)).items()}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Remove the jobs: HTCondor asks their pilots to end, and kills late ones. See BatchSystem."""
        wanted = [job for each in glidein_ids if (job := HtcondorId.of(each))]
        try:
            for start in range(0, len(wanted), _MAX_JOBS_PER_CONSTRAINT):
                some = constraint_of(wanted[start : start + _MAX_JOBS_PER_CONSTRAINT])
                await self._schedd.remove(some, "cancelled by Pilotage")
            jobs = set(wanted)
            try:
                async with asyncio.timeout(self._settings.kill_after_s):
                    while jobs:
                        jobs &= (await self._queue()).keys()
                        await asyncio.sleep(_POLL_INTERVAL_S if jobs else 0)
            except TimeoutError:
                log.warning("glideins are late to end", batch_system=self._name)
        except WorldError as error:
            log.warning("glideins could not be cancelled", batch_system=self._name, reason=str(error))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Do nothing: the folder is transferred when the pilot starts; see BatchSystem."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: HTCondor returns the output into the folders; see BatchSystem."""

    def _description_of(self, request: GlideinRequest) -> dict[str, str] | NotSubmitted:
        """Return the submit description of a glidein, with all files of its folder."""
        try:
            files = sorted(path.name for path in request.folder.iterdir() if path.is_file() and path.name != LOG_NAME)
            return submit_description(request, files, self._settings.submit, self._settings.kill_after_s)
        except OSError as error:
            return NotSubmitted(f"{request.folder}: {error.strerror}")
        except InvalidInputError as error:
            return NotSubmitted(str(error))

    async def _answers(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        try:
            return await self._schedd.submit(descriptions) if descriptions else ()
        except WorldError as error:
            return [Unanswered(str(error)) if error.transient else NotSubmitted(str(error))] * len(descriptions)

    def _submission(self, request: GlideinRequest, answer: int | NotSubmitted | Unanswered) -> Submission:
        match answer:
            case int(cluster):
                return Submitted(str(HtcondorId(cluster, request.stamp)))
            case NotSubmitted(reason, was_tried):
                return NotSubmitted(f"{self._name}: {reason}", was_tried)
            case Unanswered(reason):
                return Unanswered(f"{self._name}: {reason}")

    async def _statuses(self, jobs: Collection[HtcondorId]) -> _Statuses:
        if not jobs:
            return {}
        try:
            queue = await self._queue()
        except WorldError as error:
            return self._unknown(jobs, error)
        found = {job: queue[job] for job in jobs if job in queue}
        gone = [job for job in jobs if job not in queue]
        for start in range(0, len(gone), _MAX_JOBS_PER_CONSTRAINT):
            some = gone[start : start + _MAX_JOBS_PER_CONSTRAINT]
            try:
                found |= await self._statuses_of_gone(some)
            except WorldError as error:
                return self._unknown(gone[start:], error) | found
        return found

    async def _statuses_of_gone(self, jobs: Sequence[HtcondorId]) -> _Statuses:
        """Return how jobs that are not in the queue ended; not known for jobs that the history has dropped."""
        ads = await self._schedd.history(constraint_of(jobs), len(jobs))
        forgotten = GlideinStatus(GlideinState.ENDED, f"{self._name} has it in neither its queue nor its history")
        known = {job: status_in_history(ad) for ad in ads if (job := HtcondorId.of_ad(ad))}
        return {job: known.get(job, forgotten) for job in jobs}

    async def _queue(self, *, of_this_user: bool = False) -> _Statuses:
        ads = await self._schedd.queue(of_this_user=of_this_user)
        return {job: status_in_queue(ad) for ad in ads if (job := HtcondorId.of_ad(ad))}

    def _unknown(self, jobs: Collection[HtcondorId], error: WorldError) -> _Statuses:
        log.warning("batch system gives no answer", batch_system=self._name, reason=str(error), glideins=len(jobs))
        return dict.fromkeys(jobs, GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: {error}"))
