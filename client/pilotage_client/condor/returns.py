"""Brings back what HTCondor's schedd brings back: the output of jobs to the submitter's folders, and their user logs.

condor_submit leaves a file for each cluster in a folder of its own on this machine. One process of the user, the
*returner*, follows these jobs and ends when none is left. Each command starts it if jobs are left and it does not run,
so it may be killed at any time: what it has done already is done again without harm.

Rules
-----
- The output of a job is back before its log says that it has ended.
- A job has left the queue when its output is back; until then condor_q shows that it transfers output.
- As in HTCondor, a removed job returns nothing.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError, PilotageError, Violation, WorldError
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage.values.selections import JobSelection
from pilotage_client.api import Client
from pilotage_client.connection import ServerOptions, resolve_server
from pilotage_client.job_calls import STANDARD_ERROR, STANDARD_OUTPUT
from pilotage_client.models import FINAL_STATES, JobEvent, JobStatus
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget
from pilotage_client.user_log.follower import LogWriter, endless_pages, find_user_logs, first_position, present_pages

REMAPS = "TransferOutputRemaps"
"""HTCondor's attribute: where output files go that do not go to the initial folder by their own names."""

IWD = "Iwd"
"""HTCondor's attribute: the initial folder of the job, on the submitter's machine."""

PYTHON = (sys.executable, "-E", "-P")
"""This Python without PYTHONPATH and the present folder: both are those of the tool that calls a command."""

PROGRAM = "condor_returner"
_ATTRIBUTES = ("PilotageJobId", "ProcId", IWD, REMAPS, "Out", "Err")
_CLUSTER = re.compile(r"(?P<cluster>\d+)-(?P<jobs>\d+)", re.ASCII)
_LOCK, _LOG = "lock", "log"


def returns_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with the clusters whose output is awaited; None = nothing is returned, or no server is known.

    Each server and each user of it have a folder, as a token shows its owner's jobs only.
    """
    # Some login nodes forbid processes that stay.
    if environment.get("PILOTAGE_CONDOR_RETURN", "").lower() in ("no", "false", "0"):
        return None
    try:
        address = resolve_server(ServerOptions(), environment)
    except InvalidInputError:
        return None
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    name = hashlib.sha256(f"{address.server} {_holder_of(address.token)}".encode()).hexdigest()[:16]
    return Path(state).expanduser() / "pilotage" / "condor" / name


def _holder_of(token: str) -> str:
    """Return what stays the same in the tokens of one user; "" = the token is of another kind."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return " ".join(str(claims.get(name, "")) for name in ("iss", "sub", "vo"))
    except (IndexError, ValueError, AttributeError):
        return ""


def prepare_returns() -> None:
    """Make the folder; raises InvalidInputError if there can be none, before jobs are submitted."""
    folder = returns_folder()
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"{(error.strerror or str(error)).lower()}; set XDG_STATE_HOME, or PILOTAGE_CONDOR_RETURN=no"
            raise InvalidInputError(Violation(str(folder), why)) from error


def register_cluster(cluster: int, jobs: int) -> None:
    """Have the output of a new cluster returned."""
    folder = returns_folder()
    if folder is not None:
        (folder / f"{cluster}-{jobs}").touch()


def ensure_returner() -> None:
    """Start the returner if it has work and does not run."""
    folder = returns_folder()
    if folder is None or not _clusters(folder):
        return
    with (folder / _LOCK).open("a") as lock, (folder / _LOG).open("ab") as log:
        if _take(lock.fileno()):
            # The returner inherits the lock, so no second one can start. The shell ends at once, and needs no waiting.
            command = [*PYTHON, "-m", "pilotage_client.condor.main", PROGRAM, str(lock.fileno())]
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
                check=False,
            )


class AwaitedOutput:
    """The jobs whose output is still to come, as far as the returner has noted."""

    def __init__(self) -> None:
        self._awaited: dict[int, set[int]] = {}
        folder = returns_folder()
        for path, ids in _clusters(folder).items() if folder is not None else ():
            self._awaited[ids.start] = set(range(len(ids))) - _noted(path)

    def __bool__(self) -> bool:
        return any(self._awaited.values())

    def others(self, seen: Container[tuple[object, object]]) -> Iterator[JobSelection]:
        """Yield the jobs among them that are not in `seen` by cluster and process, as ranges."""
        for cluster, processes in sorted(self._awaited.items()):
            left = [process for process in sorted(processes) if (cluster, process) not in seen]
            for _, run in groupby(enumerate(left), key=lambda pair: pair[1] - pair[0]):
                found = [process for _, process in run]
                yield JobSelection(cluster, (found[0], found[-1]))

    def is_awaited(self, cluster: int, process: int) -> bool:
        """Whether the output of a job is still to come."""
        return process in self._awaited.get(cluster, ())


def condor_returner(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Return the output of all awaited clusters, and end when there is none; its word is the descriptor of the lock."""
    folder = returns_folder()
    if folder is None:
        return 0
    lock = int(words[0])
    with Client.located() as client:
        while _clusters(folder) and _take(lock):
            _Returner(client, folder, RetryBudget(DEFAULT_RETRY_S, note), note).run()
            # The next look is without the lock: a command that adds a cluster after it starts another returner.
            fcntl.flock(lock, fcntl.LOCK_UN)
    return 0


def _take(lock: int) -> bool:
    """Take a lock if it is free, or is held by this descriptor."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _clusters(folder: Path) -> dict[Path, range]:
    """Return the files of the awaited clusters, with the ids of their jobs."""
    found: dict[Path, range] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            if name := _CLUSTER.fullmatch(path.name):
                first = int(name["cluster"])
                found[path] = range(first, first + int(name["jobs"]))
    return found


def _noted(path: Path) -> set[int]:
    """Return the processes that are noted in the file of a cluster."""
    try:
        return {int(line) for line in path.read_text().splitlines() if line.isdigit()}
    except FileNotFoundError:  # all of its jobs are done
        return set()


@dataclass(frozen=True, slots=True)
class _JobReturn:
    """Where the output of a job goes: `remaps` by the names of files, all others to `folder`."""

    path: Path
    process: int
    folder: Path
    remaps: Mapping[str, str]
    has_output: bool
    has_error: bool

    def place_of(self, name: str) -> Path | None:
        """Return where a file goes; None = nowhere, as it is a standard stream that the job does not name."""
        if (name == STANDARD_OUTPUT and not self.has_output) or (name == STANDARD_ERROR and not self.has_error):
            return None
        place = self.remaps.get(name, name)
        return None if place == os.devnull else self.folder / place


class _Returner:
    """Follows the jobs of a folder."""

    def __init__(self, client: Client, folder: Path, retry: RetryBudget, note: Callable[[str], None]) -> None:
        self._client = client
        self._folder = folder
        self._retry = retry
        self._note = note
        self._left: dict[Path, int] = {}
        self._jobs: dict[int, JobStatus] = {}
        self._logs: dict[int, Path] = {}
        self._returns: dict[int, _JobReturn] = {}
        self._positions: dict[int, int] = {}
        self._writer = LogWriter(client, self._jobs, self._logs, retry)

    def run(self) -> None:
        """Follow the jobs until all have ended, and those that are added meanwhile."""
        self._add_clusters()
        if not self._returns:
            return
        position = first_position(self._client, [*self._jobs.values()], self._retry)
        for page in endless_pages(self._client, (), position, self._retry):
            self._handle(page)
            self._add_clusters()
            if not self._returns:
                return

    def _add_clusters(self) -> None:
        for path, ids in _clusters(self._folder).items():
            if path in self._left:
                continue
            noted = _noted(path)
            added = {job: each for job, each in self._read(path, ids).items() if each.process not in noted}
            if not added:
                path.unlink(missing_ok=True)
                continue
            jobs = self._retry(partial(self._client.jobs, [*added]))
            self._returns |= added
            self._jobs |= {job.id: job for job in jobs}
            self._logs |= self._retry(partial(find_user_logs, self._client, jobs))
            self._left[path] = len(added)
            # Their first events may lie before the position of the stream.
            after = first_position(self._client, jobs, self._retry)
            for page in present_pages(self._client, [*added], after, self._retry):
                self._handle(page)

    def _read(self, path: Path, ids: range) -> dict[int, _JobReturn]:
        """Return where the output of the jobs of a cluster goes, by job id; unknown jobs are left out."""
        selection = JobSelection(ids.start, (0, len(ids) - 1))
        condition = JobCondition(owner=ALL_OWNERS, selections=(selection,))
        ads = self._retry(lambda: [*self._client.list_ads(condition, attributes=_ATTRIBUTES)])
        found: dict[int, _JobReturn] = {}
        for ad in map(Ad.read, ads):
            values = [ad.value(name) for name in _ATTRIBUTES]
            job, process, folder, remaps, out, err = values
            found[int(str(job))] = _JobReturn(
                path,
                int(str(process)),
                Path(folder) if isinstance(folder, str) else Path.home(),
                read_remaps(remaps if isinstance(remaps, str) else ""),
                isinstance(out, str),
                isinstance(err, str),
            )
        return found

    def _handle(self, page: Sequence[JobEvent]) -> None:
        # Those of an added cluster come twice: a log counts the events that it has, so each is written once.
        events = [
            event
            for event in page
            if event.job_id in self._returns and event.position > self._positions.get(event.job_id, 0)
        ]
        self._positions |= {event.job_id: event.position for event in events}
        ended = [event.job_id for event in events if event.after in FINAL_STATES]
        if ended:
            self._jobs |= {job.id: job for job in self._retry(lambda: self._client.jobs(ended))}
        for event in events:
            if event.after in {"DONE", "FAILED"} and self._writer.is_last(event):
                self._fetch(event.job_id, self._returns[event.job_id])
        self._write(events)
        for event in events:
            if event.job_id in self._returns and self._writer.is_last(event):
                self._finish(event.job_id)

    def _fetch(self, job_id: int, to: _JobReturn) -> None:
        """Bring back the output of a job; what cannot be written is noted, and stays on the server."""
        for file in self._retry(lambda: self._client.output_files(job_id)):
            place = to.place_of(file.name)
            if place is None:
                continue
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".returned-", dir=place.parent) as scratch:
                    (written,) = self._retry(partial(self._client.fetch_files, job_id, [file], Path(scratch)))
                    written.replace(place)
            except (OSError, PilotageError) as error:
                self._note(f"the file {file.name} of job {job_id} is not returned to {place}: {error}")

    def _write(self, events: Sequence[JobEvent]) -> None:
        """Write the logs; one that cannot be written is noted and given up, so that the others go on."""
        by_log: defaultdict[Path, list[JobEvent]] = defaultdict(list)
        for event in events:
            if event.job_id in self._logs:
                by_log[self._logs[event.job_id]].append(event)
        for path, some in by_log.items():
            try:
                self._writer.write(some)
            except WorldError as error:
                if error.transient:
                    raise
                self._note(str(error))
                for job_id in [job_id for job_id, log in self._logs.items() if log == path]:
                    del self._logs[job_id]

    def _finish(self, job_id: int) -> None:
        done = self._returns.pop(job_id)
        self._logs.pop(job_id, None)
        self._positions.pop(job_id, None)
        self._left[done.path] -= 1
        if self._left[done.path]:
            with done.path.open("a") as file:
                file.write(f"{done.process}\n")
        else:
            done.path.unlink(missing_ok=True)


def read_remaps(text: str) -> dict[str, str]:
    r"""Return the pairs of `name = path ; name = path`; a backslash precedes `=` and `;` in names."""
    found: dict[str, str] = {}
    for pair in re.split(r"(?<!\\);", text):
        name, is_pair, path = (
            re.split(r"(?<!\\)(=)", pair, maxsplit=1) if re.search(r"(?<!\\)=", pair) else (pair, "", "")
        )
        if is_pair:
            found[_unescaped(name)] = _unescaped(path)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([=;])", r"\1", text.strip())
