"""Starts the process of a payload: its program, its streams, its nice value and its environment.

The environment holds what the job's owner set and what Pilotage sets, and nothing of the pilot's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pilotage.condor.quoting import split_arguments
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import DEFAULT_PATH, PASSED_VARIABLES, JobIdentity, JobRunContext, job_environment
from pilotage.jobs.files import NULL, UNPLACEABLE_ERRNOS, JobFaultError, inside
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.base import NodeFaultError
from pilotage_pilot.supervise.folders import Folders

_NICEST = 19
_JOB_FAULTS = {
    errno.ENOENT: "its interpreter (first line) or loader is not on this node",
    errno.EACCES: "it may not be executed",
    errno.E2BIG: "its arguments and environment are too long",
    errno.ELOOP: "its links go round in a circle",
    errno.EISDIR: "it is a folder",
    errno.ENOEXEC: "it is no program that this node can run",
    errno.EINVAL: "it is no program that this node can run",
    errno.ELIBBAD: "its loader or a library of it is damaged",
}
_FAULTS_OF_ITS_FILES = {errno.EIO: "it is damaged"}
"""Faults of the job only if the program is one of its files; else faults of the node."""


@dataclass(frozen=True, slots=True)
class PayloadCommand:
    """What to run: `arguments` with the program first; streams as paths (None = /dev/null).

    `nice` is relative to the pilot. `wrapped` = the program is the node's job wrapper, which runs the job's program.
    """

    program: str
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    stdin: Path | None
    stdout: Path | None
    stderr: Path | None
    nice: int = 0
    wrapped: bool = False


def command_of(
    description: JobDescription,
    folder: Path,
    environment: Mapping[str, str],
    *,
    nice: int = 0,
    wrapper: Path | None = None,
) -> PayloadCommand:
    """Return the command of a job; raises JobFaultError if its description cannot be run.

    A `wrapper` gets the job's program and arguments as its own arguments.
    """
    try:
        arguments = split_arguments(description.arguments) if description.arguments else ()
    except ValueError as error:
        raise JobFaultError(f"its arguments cannot be taken apart: {error}") from error
    program = find_program(description.executable, folder, environment.get("PATH", ""))
    own = (program if wrapper is not None else description.executable, *arguments)
    return PayloadCommand(
        program if wrapper is None else str(wrapper),
        own if wrapper is None else (str(wrapper), *own),
        folder,
        environment,
        _input(folder, description.stdin),
        output_path(folder, description.stdout or "stdout"),
        output_path(folder, description.stderr or "stderr"),
        nice,
        wrapper is not None,
    )


def find_program(name: str, folder: Path, path: str) -> str:
    """Return the program's path: in the job's folder, as an absolute path, or on `path`, in this order."""
    if not name:
        raise JobFaultError("it names no program")
    if name.startswith("/"):
        if not os.path.isfile(name):
            raise JobFaultError(f"there is no program {name} on this node")
        if not os.access(name, os.X_OK):
            raise JobFaultError(f"the program {name} may not be executed on this node")
        return name
    here = inside(folder, name.removeprefix("./"))
    if here.is_file():
        here.chmod(here.stat().st_mode | 0o700)
        return str(here)
    found = shutil.which(name, path=path) if "/" not in name else None
    if found is None:
        raise JobFaultError(f"there is no program {name}, neither among the job's files nor on PATH of this node")
    return found


def _input(folder: Path, name: str | None) -> Path | None:
    if not name or name == NULL:
        return None
    path = inside(folder, name)
    if not path.is_file():
        raise JobFaultError(f"its standard input {name} is not among its files")
    return path


def output_path(folder: Path, name: str) -> Path | None:
    """Return the path of a stream; None = /dev/null."""
    return None if name == NULL else inside(folder, name)


def spawn(command: PayloadCommand) -> subprocess.Popen[bytes]:
    """Start the process of a payload in a new session; raises JobFaultError or NodeFaultError."""
    opened: list[int] = []
    try:
        stdin = _open(command.stdin, os.O_RDONLY, command.folder, opened)
        stdout = _open(command.stdout, os.O_WRONLY, command.folder, opened)
        same = command.stderr is not None and command.stderr == command.stdout
        stderr = stdout if same else _open(command.stderr, os.O_WRONLY, command.folder, opened)
        return _execute(command, (stdin, stdout, stderr))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open(path: Path | None, mode: int, folder: Path, opened: list[int]) -> int:
    # Append mode lets the pilot truncate a file while the payload goes on writing to it.
    flags = mode | os.O_CLOEXEC | (os.O_CREAT | os.O_APPEND if mode == os.O_WRONLY else 0)
    try:
        if path is not None and mode == os.O_WRONLY and path.parent != folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path if path is not None else NULL, flags, 0o600)
    except OSError as error:
        kind = JobFaultError if error.errno in UNPLACEABLE_ERRNOS else NodeFaultError
        raise kind(f"the file {path} cannot be opened: {error.strerror}") from error
    opened.append(descriptor)
    return descriptor


def _execute(command: PayloadCommand, streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    try:
        return _popen(command, command.program, command.arguments, streams)
    except OSError as error:
        if error.errno == errno.ENOEXEC and not _is_binary(command.program):
            # A script without a #! line is run by the shell, as in execvp(3).
            return _popen(command, "/bin/sh", ("sh", command.program, *command.arguments[1:]), streams)
        raise _fault(command, error) from error
    except ValueError as error:
        raise JobFaultError(f"its arguments or environment cannot be passed to a process: {error}") from error


def _fault(command: PayloadCommand, error: OSError) -> JobFaultError | NodeFaultError:
    faults = _JOB_FAULTS
    if Path(command.program).is_relative_to(command.folder):
        faults = faults | _FAULTS_OF_ITS_FILES
    why = faults.get(error.errno or 0)
    if command.wrapped and error.errno != errno.E2BIG:
        return NodeFaultError(f"the job wrapper {command.program} cannot be run: {why or error.strerror}")
    if why is not None:
        return JobFaultError(f"the program {command.arguments[0]} cannot be run: {why}")
    return NodeFaultError(f"its process cannot be started: {error.strerror}")


def _popen(
    command: PayloadCommand, program: str, arguments: tuple[str, ...], streams: tuple[int, int, int]
) -> subprocess.Popen[bytes]:
    def make() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            executable=program,
            cwd=command.folder,
            env=command.environment,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
        )

    return _nicely(make, command.nice) if command.nice else make()


def _nicely(make: Callable[[], subprocess.Popen[bytes]], nice: int) -> subprocess.Popen[bytes]:
    """Start a process with a higher nice value than the pilot's, from its first instruction on.

    On Linux each thread has its own nice value, which its children inherit and which cannot be lowered again. So a
    thread is used that ends with this call.
    """
    value = min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + nice)

    def start_nicely() -> subprocess.Popen[bytes]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)
        return make()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="nice") as thread:
        try:
            future = thread.submit(start_nicely)
        except RuntimeError as error:
            raise NodeFaultError(f"its process cannot be started: {error}") from error
        process = future.result()
    with contextlib.suppress(OSError):
        # With autogroup scheduling only the nice value of the session counts.
        Path(f"/proc/{process.pid}/autogroup").write_text(str(value))
    return process


def _is_binary(program: str) -> bool:
    with Path(program).open("rb") as file:
        return b"\0" in file.read(256)


_NEVER_PASSED = ("PILOTAGE_PILOT_", "PILOTAGE_TOKEN")


@dataclass(frozen=True, slots=True)
class PayloadSite:
    """What a payload's environment says of its place; `passed` names variables of the pilot that payloads get too."""

    marker: str
    path: str = DEFAULT_PATH
    queue: str = ""
    node: str = ""
    passed: tuple[str, ...] = PASSED_VARIABLES

    def marker_of(self, job: GrantedJob) -> str:
        """Return the marker's value for a job."""
        return f"{self.marker}/{job.key}"


def environment_of(order: PrepareJob, site: PayloadSite, folders: Folders) -> dict[str, str]:
    """Return the environment of a payload; the owner's values win, except for those that the slot decides."""
    job = order.job
    identity = JobIdentity(
        site.marker_of(job), job.key.job_id, job.key.attempt, job.cluster, job.process, job.owner, job.vo
    )
    machine = {**_passed(site.passed), "PATH": site.path, **_USER}
    gpus = ",".join(order.slot.gpu_ids)
    # A payload without a GPU must not see those of the node.
    devices = {"CUDA_VISIBLE_DEVICES": gpus, "NVIDIA_VISIBLE_DEVICES": gpus or "void"}
    return job_environment(job.description, identity, _place(order, site, folders), machine) | devices


def _place(order: PrepareJob, site: PayloadSite, folders: Folders) -> JobRunContext:
    amounts = order.slot.amounts
    return JobRunContext(
        work=str(folders.work),
        temporary=str(folders.temporary),
        warning=str(folders.warning),
        queue=site.queue,
        node=site.node,
        slot=order.slot.name,
        cpus=amounts.cpus,
        memory_mib=amounts.memory_mib,
        job_ad=str(folders.job_ad) if order.job_ad else "",
        machine_ad=str(folders.machine_ad) if order.machine_ad else "",
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the pilot's secrets, such as its token."""
    return {name: value for name, value in environment.items() if not name.startswith(_NEVER_PASSED)}


@lru_cache(maxsize=1)
def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return without_secrets({name: os.environ[name] for name in names if name in os.environ})


def _user() -> dict[str, str]:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {"USER": name, "LOGNAME": name}


_USER = _user()
