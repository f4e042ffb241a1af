"""Starts the process of a payload by the launcher: its program, its streams, its limits and its environment.

The environment holds what the job's owner set and what Pilotage sets, and nothing of the pilot's own.
"""

from __future__ import annotations

import errno
import marshal
import os
import pwd
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pilotage.condor.quoting import split_arguments
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import DEFAULT_PATH, PASSED_VARIABLES, JobIdentity, JobRunContext, job_environment
from pilotage.jobs.files import NULL, UNPLACEABLE_ERRNOS, JobFaultError, inside
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import GrantedJob, Usage
from pilotage_pilot.supervise import launcher
from pilotage_pilot.supervise.accounts import PayloadUser
from pilotage_pilot.supervise.base import NodeFaultError
from pilotage_pilot.supervise.folders import Folders, give_to
from pilotage_pilot.supervise.launcher import ERROR, EXECUTE, IMAGE, INVALID, LENGTH, STARTED, STATUS

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
    `user` None = the pilot's. `mounts` None = no namespaces. `limits` are limits by the names of Python's `resource`,
    `groups` the files through which the process joins its control group. `in_image` = the program is in an image, in
    which a name without a slash is searched.
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
    user: PayloadUser | None = None
    mounts: Mapping[str, Any] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Path, ...] = ()
    in_image: bool = False


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
    return replace(
        streams_of(description, folder, environment, nice=nice),
        program=program if wrapper is None else str(wrapper),
        arguments=own if wrapper is None else (str(wrapper), *own),
        wrapped=wrapper is not None,
    )


def streams_of(
    description: JobDescription, folder: Path, environment: Mapping[str, str], *, nice: int = 0
) -> PayloadCommand:
    """Return the command of a job without its program; raises JobFaultError if its streams cannot be."""
    return PayloadCommand(
        "",
        (),
        folder,
        environment,
        _input(folder, description.stdin),
        output_path(folder, description.stdout or "stdout"),
        output_path(folder, description.stderr or "stderr"),
        nice,
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


class LaunchedProcess:
    """A payload's process as a child of the pilot: the payload itself, or the init process of its namespaces.

    It is reaped by `wait`, after its end. A process whose program cannot be executed says why, and ends.
    """

    def __init__(
        self, command: PayloadCommand, pid: int, status: int | None, errors: int, launcher_peak_kib: int
    ) -> None:
        self.command = command
        self.pid = pid
        self.has_init = status is not None
        """Whether `pid` is an init process, with which all processes of the payload end."""
        self._status = status
        self._errors = errors
        self._failure: bytes | None = None
        self._least_peak_kib = launcher_peak_kib + _PEAK_SLACK_KIB

    def has_begun(self) -> bool:
        """Whether its program is executed; if it cannot be, the process ends."""
        poll = select.poll()
        poll.register(self._errors, select.POLLIN)
        if self._failure is None and poll.poll(0):
            self._failure = os.read(self._errors, _LONGEST_FAILURE)
        return self._failure == b""

    def wait(self) -> tuple[int, Usage]:
        """Return exit code (negative = the number of a signal), and the use of it and the descendants it has reaped.

        Raises OSError if its program could not be executed, else JobFaultError or NodeFaultError if it was not started.
        """
        _, status, used = os.wait4(self.pid, 0)
        failure = os.read(self._errors, _LONGEST_FAILURE) if self._failure is None else self._failure
        os.close(self._errors)
        if self._status is not None:
            # Without a status the kernel has ended init, and so the payload, by a signal.
            reported = os.read(self._status, STATUS.size)
            os.close(self._status)
            status = STATUS.unpack(reported)[0] if reported else status
        _raise_failure(failure)
        # Before its exec a child counts the memory of the launcher.
        peak_kib = used.ru_maxrss if used.ru_maxrss > self._least_peak_kib else 0
        usage = Usage(used.ru_utime + used.ru_stime, -(-peak_kib // 1024), used.ru_stime)
        return os.waitstatus_to_exitcode(status), usage


_PEAK_SLACK_KIB = 2048
_LONGEST_FAILURE = 4096
LAUNCH_TIMEOUT_S = 60.0


class Launcher:
    """The pilot's side of the launcher, which has to be closed; see `launcher`. Raises OSError.

    A launcher that does not answer an order within `timeout_s` is killed.
    """

    def __init__(self, timeout_s: float = LAUNCH_TIMEOUT_S) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout_s)
        with theirs:
            program = (sys.executable, "-I", "-S", "-X", "utf8", launcher.__file__)
            self._process = subprocess.Popen(program, stdin=theirs.fileno(), env={})

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return its socket, which an event loop finds readable once the launcher has ended."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the launcher; a second call does nothing."""
        self._socket.close()
        self._process.wait()

    def start(self, command: PayloadCommand) -> LaunchedProcess:
        """Start a payload in `work` of an attempt's folder; raises JobFaultError or NodeFaultError.

        Whether its program could be executed turns out later: see `LaunchedProcess.wait`.
        """
        opened: list[int] = []
        try:
            stdin = _open(command.stdin, os.O_RDONLY, command, opened)
            stdout = _open(command.stdout, os.O_WRONLY, command, opened)
            same = command.stderr is not None and command.stderr == command.stdout
            stderr = stdout if same else _open(command.stderr, os.O_WRONLY, command, opened)
            if command.user is not None:
                _give_folder(command, command.user)
            return self._launch(command, (stdin, stdout, stderr))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _launch(self, command: PayloadCommand, streams: tuple[int, int, int]) -> LaunchedProcess:
        errors, errors_end = os.pipe()
        status, status_end = os.pipe()
        has_init = False
        try:
            pid, peak_kib = self._order(command, (*streams, errors_end, status_end))
            has_init = command.mounts is not None
        except BaseException:
            os.close(errors)
            raise
        finally:
            os.close(errors_end)
            os.close(status_end)
            if not has_init:
                os.close(status)
        return LaunchedProcess(command, pid, status if has_init else None, errors, peak_kib)

    def _order(self, command: PayloadCommand, descriptors: tuple[int, ...]) -> tuple[int, int]:
        """Send an order; returns the id of the new child and the launcher's peak memory. Raises NodeFaultError."""
        user = command.user
        order = marshal.dumps(
            {
                "program": command.program,
                "arguments": command.arguments,
                "environment": dict(command.environment),
                "folder": str(command.folder),
                "nice": command.nice,
                "limits": dict(command.limits),
                "groups": [str(path) for path in command.groups],
                "user": None if user is None else (user.uid, user.gid, user.groups),
                "mounts": command.mounts,
            }
        )
        try:
            socket.send_fds(self._socket, [LENGTH.pack(len(order))], descriptors)
            self._socket.sendall(order)
            answer = self._socket.recv(STARTED.size, socket.MSG_WAITALL)
        except OSError as error:
            # It must neither start this payload later, when the job may run elsewhere, nor answer the next order so.
            self._process.kill()
            raise NodeFaultError(f"its process cannot be started: the launcher does not answer: {error}") from error
        if not answer:
            raise NodeFaultError("its process cannot be started: the launcher of the pilot has ended")
        pid, peak_kib = STARTED.unpack(answer)
        if pid < 0:
            what = "its namespaces cannot be made" if command.mounts is not None else "its process cannot be started"
            raise NodeFaultError(f"{what}: {os.strerror(-pid)}")
        return pid, peak_kib


def in_shell(command: PayloadCommand) -> PayloadCommand:
    """Return the command of a script without a #! line, which the shell runs as in execvp(3)."""
    return replace(command, program="/bin/sh", arguments=("sh", command.program, *command.arguments[1:]))


def start_fault(command: PayloadCommand, error: OSError) -> JobFaultError | NodeFaultError | None:
    """Return what is at fault if a program cannot be executed; None = it is a script for `in_shell`."""
    try:
        if error.errno == errno.ENOEXEC and not command.in_image and not _is_binary(command.program):
            return None
    except OSError as unreadable:
        return _fault(command, unreadable)
    return _fault(command, error)


def _raise_failure(failure: bytes) -> None:
    if not failure:
        return
    (number,), step = ERROR.unpack_from(failure), failure[ERROR.size :].decode(errors="replace")
    if step == EXECUTE:
        raise OSError(number, os.strerror(number))
    if step.startswith(IMAGE):
        raise JobFaultError(f"its image {step[len(IMAGE) + 1 :]} cannot be used: {os.strerror(number)}")
    if step.startswith(INVALID):
        raise JobFaultError(f"its arguments or environment cannot be passed to a process: {step[len(INVALID) + 1 :]}")
    raise NodeFaultError(
        f"its process cannot be started: {step}: {os.strerror(number) if number else 'internal error'}"
    )


def _open(path: Path | None, mode: int, command: PayloadCommand, opened: list[int]) -> int:
    # Append mode lets the pilot truncate a file while the payload goes on writing to it.
    flags = mode | os.O_CLOEXEC | (os.O_CREAT | os.O_APPEND if mode == os.O_WRONLY else 0)
    try:
        if path is not None and mode == os.O_WRONLY and path.parent != command.folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path if path is not None else NULL, flags, 0o600)
    except OSError as error:
        kind = JobFaultError if error.errno in UNPLACEABLE_ERRNOS else NodeFaultError
        raise kind(f"the file {path} cannot be opened: {error.strerror}") from error
    opened.append(descriptor)
    return descriptor


def _give_folder(command: PayloadCommand, user: PayloadUser) -> None:
    try:
        give_to(user.uid, user.gid, command.folder.parent)
    except OSError as error:
        whom = f"the account {user.name}" if user.is_shared else f"uid {user.uid} (payload_uids)"
        raise NodeFaultError(f"its folder cannot be given to {whom}: {error.strerror}") from error


def _fault(command: PayloadCommand, error: OSError) -> JobFaultError | NodeFaultError:
    faults = _JOB_FAULTS
    if Path(command.program).is_relative_to(command.folder):
        faults = faults | _FAULTS_OF_ITS_FILES
    why = faults.get(error.errno or 0)
    if command.in_image and why is not None:
        return JobFaultError(f"the program {command.program} cannot be run in its image: {_in_image(why)}")
    if command.wrapped and error.errno != errno.E2BIG:
        return NodeFaultError(f"the job wrapper {command.program} cannot be run: {why or error.strerror}")
    if why is not None:
        return JobFaultError(f"the program {command.arguments[0]} cannot be run: {why}")
    return NodeFaultError(f"its process cannot be started: {error.strerror}")


def _in_image(why: str) -> str:
    return why.replace("is not on this node", "is not in it").replace("this node", "it")


def _is_binary(program: str) -> bool:
    with Path(program).open("rb") as file:
        return b"\0" in file.read(256)


_NEVER_PASSED = ("PILOTAGE_PILOT_", "PILOTAGE_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


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


def environment_of(
    order: PrepareJob, site: PayloadSite, folders: Folders, user: PayloadUser | None = None
) -> dict[str, str]:
    """Return the environment of a payload; the owner's values win, except for those that the slot decides."""
    job = order.job
    identity = JobIdentity(
        site.marker_of(job), job.key.job_id, job.key.attempt, job.cluster, job.process, job.owner, job.vo
    )
    context = _place(order, site, folders, _USER if user is None else user.name)
    return job_environment(job.description, identity, context, _passed(site.passed))


def _place(order: PrepareJob, site: PayloadSite, folders: Folders, user: str) -> JobRunContext:
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
        gpu_ids=order.slot.gpu_ids,  # a payload without a GPU must not see those of the node
        user=user,
        path=site.path,
        job_ad=str(folders.job_ad) if order.job_ad else "",
        machine_ad=str(folders.machine_ad) if order.machine_ad else "",
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the pilot's secrets, such as its token."""
    return {name: value for name, value in environment.items() if not name.startswith(_NEVER_PASSED)}


@lru_cache(maxsize=1)
def _passed(names: tuple[str, ...]) -> dict[str, str]:
    return without_secrets({name: os.environ[name] for name in names if name in os.environ})


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


_USER = _user()
