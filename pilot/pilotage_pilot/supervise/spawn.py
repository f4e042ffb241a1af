"""Starting a payload's process: which program it is, with which files, as fast as the kernel can."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pilotage.arguments import split_arguments
from pilotage.job_description import JobDescription
from pilotage.job_folders import NO_PLACE, NULL, JobAtFaultError, inside
from pilotage_pilot.supervise.base import NodeAtFaultError

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
_FAULTS_OF_ITS_FILES = {errno.EIO: "it is not whole"}
"""Of a program of the node's own they are the node's."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: `arguments` with the program first, files by path (None = /dev/null).

    `nice` = how much nicer than the pilot it is; `wrapped` = the program is the node's job wrapper, which runs the
    job's own program.
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
) -> Command:
    """Return what to run for a job; raises JobAtFaultError where the description leads nowhere.

    A `wrapper` is run in place of the job's program, with that program and its arguments as its own arguments.
    """
    try:
        arguments = split_arguments(description.arguments) if description.arguments else ()
    except ValueError as error:
        raise JobAtFaultError(f"its arguments cannot be taken apart: {error}") from error
    program = find_program(description.executable, folder, environment.get("PATH", ""))
    own = (program if wrapper is not None else description.executable, *arguments)
    return Command(
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
        raise JobAtFaultError("it names no program")
    if name.startswith("/"):
        return _on_this_node(name)
    here = inside(folder, name.removeprefix("./"))
    if here.is_file():
        here.chmod(here.stat().st_mode | 0o700)
        return str(here)
    found = shutil.which(name, path=path) if "/" not in name else None
    if found is None:
        raise JobAtFaultError(f"there is no program {name}, neither among the job's files nor on PATH of this node")
    return found


def _on_this_node(name: str) -> str:
    if not os.path.isfile(name):
        raise JobAtFaultError(f"there is no program {name} on this node")
    if not os.access(name, os.X_OK):
        raise JobAtFaultError(f"the program {name} may not be executed on this node")
    return name


def _input(folder: Path, name: str | None) -> Path | None:
    if not name or name == NULL:
        return None
    path = inside(folder, name)
    if not path.is_file():
        raise JobAtFaultError(f"its standard input {name} is not among its files")
    return path


def output_path(folder: Path, name: str) -> Path | None:
    """Return where a stream goes; None = nowhere."""
    return None if name == NULL else inside(folder, name)


def spawn(command: Command) -> subprocess.Popen[bytes]:
    """Return the process of a payload, in a session of its own; raises JobAtFaultError or NodeAtFaultError."""
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
    # Appending lets the pilot cut a file that grows too long while the payload goes on writing to it.
    flags = mode | os.O_CLOEXEC | (os.O_CREAT | os.O_APPEND if mode == os.O_WRONLY else 0)
    try:
        if path is not None and mode == os.O_WRONLY and path.parent != folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path if path is not None else NULL, flags, 0o600)
    except OSError as error:
        kind = JobAtFaultError if error.errno in NO_PLACE else NodeAtFaultError
        raise kind(f"the file {path} cannot be opened: {error.strerror}") from error
    opened.append(descriptor)
    return descriptor


def _execute(command: Command, streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    try:
        return _popen(command, command.program, command.arguments, streams)
    except OSError as error:
        if error.errno == errno.ENOEXEC and not _is_binary(command.program):
            # A script without a first line that names its interpreter is the shell's, as execvp(3) has it.
            return _popen(command, "/bin/sh", ("sh", command.program, *command.arguments[1:]), streams)
        raise _fault(command, error) from error
    except ValueError as error:
        raise JobAtFaultError(f"its arguments or environment hold what no process can take: {error}") from error


def _fault(command: Command, error: OSError) -> JobAtFaultError | NodeAtFaultError:
    faults = _JOB_FAULTS
    if Path(command.program).is_relative_to(command.folder):
        faults = faults | _FAULTS_OF_ITS_FILES
    why = faults.get(error.errno or 0)
    if command.wrapped and error.errno != errno.E2BIG:
        return NodeAtFaultError(f"the job wrapper {command.program} cannot be run: {why or error.strerror}")
    if why is not None:
        return JobAtFaultError(f"the program {command.arguments[0]} cannot be run: {why}")
    return NodeAtFaultError(f"no process could be made: {error.strerror}")


def _popen(
    command: Command, program: str, arguments: tuple[str, ...], streams: tuple[int, int, int]
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
    """Return the process that is made so much nicer than the pilot, before its first instruction.

    A thread of Linux has a nice value of its own, which its children inherit: so it is a thread's that lives no
    longer than this, for nobody may lower it again.
    """
    value = min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + nice)

    def make_nicely() -> subprocess.Popen[bytes]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)
        return make()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="nice") as thread:
        try:
            making = thread.submit(make_nicely)
        except RuntimeError as error:
            raise NodeAtFaultError(f"no process could be made: {error}") from error
        process = making.result()
    with contextlib.suppress(OSError):
        # Where the kernel shares the cores out by session, only the session's nice value counts.
        Path(f"/proc/{process.pid}/autogroup").write_text(str(value))
    return process


def _is_binary(program: str) -> bool:
    with Path(program).open("rb") as file:
        return b"\0" in file.read(256)
