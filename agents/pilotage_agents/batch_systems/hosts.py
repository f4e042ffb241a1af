"""The hosts that run a batch system's commands and hold the folders of its glideins: this machine, or one over ssh.

Rules
-----
- A command has a deadline, and its whole process group is killed at its end.
- A missing answer proves nothing: after a failure of ssh itself the command may have run.
- ssh never prompts, and never accepts an unknown host key. These options come first, as ssh uses the first value.
- Every word of a command is quoted for the remote shell.
- Every host passes the conformance suite of hosts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import os
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Protocol

from pilotage.errors import WorldError
from pilotage.processes import file_text, kill_group, memory_file
from pilotage_agents.batch_systems.base import LOG_NAME
from pilotage_agents.batch_systems.settings import SshSettings

_FIXED_OPTIONS = ("-T", "-a", "-x", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes")
_CHECK_OWNER = """umask 077
mkdir -p "$0" || exit 1
[ -O "$0" ] || { echo "$0 belongs to another user" >&2; exit 1; }
"""
_UNPACK = """exec tar -xof - -C "$0"
"""
_REPLACE = """find "$0" -maxdepth 1 -name '.new.*' -mmin +60 -exec rm -rf {} +
new=$(mktemp -d "$0/.new.XXXXXX") || exit 1
trap 'rm -rf "$new"' EXIT
tar -xof - -C "$new" || exit 1
name=$1; shift
for each in "$@"; do
    mkdir -p "$0/$each" && mv -f "$new/$each/$name" "$0/$each/$name" || exit 1
done
"""
_PRINT_LOGS = """cd "$0" 2>/dev/null || exit 0
command -v base64 >/dev/null || { echo "there is no base64" >&2; exit 1; }
size=$1; name=$2; shift 2
for each in "$@"; do
    [ -f "$each/$name" ] || continue
    printf '%s ' "$each"
    tail -c "$size" "$each/$name" | base64 | tr -d '\\n'
    echo
done
"""


def ssh_command(settings: SshSettings, command: Sequence[str]) -> tuple[str, ...]:
    """Return the ssh command that runs `command` on the other host."""
    port = () if settings.port is None else (f"-p{settings.port}",)
    identity = ("-oIdentitiesOnly=yes", "-i", settings.identity_file) if settings.identity_file else ()
    connect_timeout = f"-oConnectTimeout={settings.connect_timeout_s}"
    return (
        "ssh",
        *_FIXED_OPTIONS,
        connect_timeout,
        *port,
        *identity,
        *settings.options,
        "--",
        settings.host,
        shlex.join(command),
    )


def unpack_command(folder: PurePosixPath) -> tuple[str, ...]:
    """Return the command that unpacks an archive from its input into a folder, which must belong to this user."""
    return ("sh", "-c", _CHECK_OWNER + _UNPACK, str(folder))


def replace_command(folder: PurePosixPath, name: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return the command that unpacks the files `name` from its input and moves them into folders in `folder`.

    They are unpacked into a temporary folder and moved when all are complete: a reader finds the old or the new file.
    """
    return ("sh", "-c", _CHECK_OWNER + _REPLACE, str(folder), name, *folders)


def print_logs_command(folder: PurePosixPath, names: Iterable[str], most_bytes: int) -> tuple[str, ...]:
    """Return the command that prints the last `most_bytes` of glideins' logs, for `parse_logs`."""
    return ("sh", "-c", _PRINT_LOGS, str(folder), str(most_bytes), LOG_NAME, *names)


def remove_command(folder: PurePosixPath, names: Iterable[str]) -> tuple[str, ...]:
    """Return the command that removes the folders of glideins."""
    return ("rm", "-rf", "--", *(str(folder / name) for name in names))


def parse_logs(stdout: str, names: Iterable[str]) -> dict[str, bytes]:
    """Return the logs in the output of `print_logs_command`, by name; raises WorldError for any other output."""
    try:
        lines = stdout.removesuffix("\n").split("\n") if stdout else []
        logs = {name: base64.b64decode(text, validate=True) for name, text in (line.split(" ") for line in lines)}
    except (ValueError, binascii.Error) as error:
        raise WorldError(f"the output there cannot be read: {error}", transient=True) from error
    if strangers := logs.keys() - set(names):
        raise WorldError(f"the output there cannot be read: {min(strangers)} was not requested", transient=True)
    return logs


_OUR_PREFIX = "PILOTAGE_"
"""The prefix of variables that may hold our tokens, which must not reach a batch system and its jobs."""

_LAST_PLAIN_EXIT_CODE = 128
"""Higher exit codes do not come from the command itself: 128 + n = ended by signal n, 255 = ssh could not connect."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error_text(self) -> str:
        """The command's own error message, in one line."""
        message = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        return message or f"exit code {self.exit_code}, without any output"


async def run_command(command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> CommandResult:
    """Run a command to its end.

    Raises WorldError when it cannot be started, and a transient one when its effect is not known: it timed out, or it
    was ended by a signal, or a shell or ssh reports so.
    """
    with memory_file() as input_file, memory_file() as output, memory_file() as errors:
        input_file.write(stdin)
        input_file.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=input_file,
                stdout=output,
                stderr=errors,
                env=without_our_variables(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise WorldError(f"{command[0]}: {error.strerror}", transient=False) from error
        try:
            async with asyncio.timeout(timeout_s):
                exit_code = await process.wait()
        except TimeoutError as error:
            raise WorldError(f"no answer within {timeout_s:g} s", transient=True) from error
        finally:
            await kill_group(process)
        answer = CommandResult(exit_code, file_text(output), file_text(errors))
        if not 0 <= exit_code <= _LAST_PLAIN_EXIT_CODE:
            raise WorldError(answer.error_text, transient=True)
        return answer


def without_our_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that may hold our tokens."""
    return {name: value for name, value in variables.items() if not name.startswith(_OUR_PREFIX)}


_MAX_LOG_BYTES = 1 << 20
_MAX_FOLDERS_PER_COMMAND = 20


class SshHost:
    """The host of `settings`; glideins' folders are below its `folder`, if one is set."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        # A subfolder: if both hosts see the same files, this must not be the director's folder, as it is cleaned up.
        self._folder = PurePosixPath(settings.folder, "glideins") if settings.folder else None

    async def run(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a command on the host; see Host."""
        try:
            return await run_command(ssh_command(self._settings, command), timeout_s=timeout_s, stdin=stdin)
        except WorldError as error:
            raise WorldError(f"{self._settings.host}: {error}", transient=error.transient) from error

    def path_of(self, folder: Path) -> PurePath:
        """Return the path of a glidein's folder on the host; see Host."""
        return self._folder / folder.name if self._folder else folder

    async def upload(self, folders: Sequence[Path], name: str = "") -> None:
        """Send the folders, or the files, in one archive; see Host."""
        if self._folder and folders:
            archive = await asyncio.to_thread(_packed, folders, name)
            into = self._folder
            command = replace_command(into, name, [each.name for each in folders]) if name else unpack_command(into)
            await self._succeed(command, archive)

    async def fetch_output(self, folders: Sequence[Path]) -> None:
        """Fetch the ends of the logs, then remove the folders; see Host."""
        if not self._folder:
            return
        for start in range(0, len(folders), _MAX_FOLDERS_PER_COMMAND):
            some = {folder.name: folder for folder in folders[start : start + _MAX_FOLDERS_PER_COMMAND]}
            printed = await self._succeed(print_logs_command(self._folder, some, _MAX_LOG_BYTES))
            await asyncio.to_thread(_write_logs, some, parse_logs(printed, some))
            await self._succeed(remove_command(self._folder, some))

    async def _succeed(self, command: Sequence[str], stdin: bytes = b"") -> str:
        """Run a command; returns its output, or raises WorldError when it fails."""
        answer = await self.run(command, timeout_s=self._settings.transfer_timeout_s, stdin=stdin)
        if answer.exit_code != 0:
            raise WorldError(f"{self._settings.host}: {answer.error_text}", transient=True)
        return answer.stdout


def _packed(folders: Sequence[Path], name: str) -> bytes:
    """Return an archive of the folders, or of one file of each."""
    memory = io.BytesIO()
    try:
        with tarfile.open(fileobj=memory, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in folders:
                archive.add(folder / name, arcname=str(PurePath(folder.name, name)))
    except OSError as error:
        raise WorldError(f"{error.filename}: {error.strerror}", transient=True) from error
    return memory.getvalue()


def _write_logs(folders: Mapping[str, Path], logs: Mapping[str, bytes]) -> None:
    for name, log in logs.items():
        path = folders[name] / LOG_NAME
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(log)
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error


class Host(Protocol):
    """A host with a batch system's commands and with files that its nodes see."""

    async def run(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a command to its end.

        Raises WorldError when it cannot be started, times out, or the host is not reached; if that error is transient,
        the command may have run.
        """

    def path_of(self, folder: Path) -> PurePath:
        """Return the path of a glidein's folder on the host."""

    async def upload(self, folders: Sequence[Path], name: str = "") -> None:
        """Copy the folders, or only the file `name` of each, to the host.

        A reader of a replaced file finds the old or the new one, complete. Raises WorldError when part of it may be
        missing.
        """

    async def fetch_output(self, folders: Sequence[Path]) -> None:
        """Fetch the output of glideins, and remove their folders on the host.

        Folders that do not exist are no error. Raises WorldError when it must be tried again.
        """


class LocalHost:
    """The director's own machine, or one that sees its folders under the same paths."""

    async def run(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> CommandResult:
        """Run a command; see Host."""
        return await run_command(command, timeout_s=timeout_s, stdin=stdin)

    def path_of(self, folder: Path) -> PurePath:
        """Return the folder itself; see Host."""
        return folder

    async def upload(self, folders: Sequence[Path], name: str = "") -> None:
        """Do nothing: the folders are on this machine."""

    async def fetch_output(self, folders: Sequence[Path]) -> None:
        """Do nothing: the output is on this machine."""
