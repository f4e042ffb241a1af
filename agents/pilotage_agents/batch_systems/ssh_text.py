"""What ssh is told, and what goes over it as text.

Rules
-----
No I/O. Every word of a command is quoted for the shell at the other end. ssh never asks anybody, and never takes a
host's key for good that it does not know: these options come first, and with ssh the first word counts.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import LOG_NAME
from pilotage_agents.settings import SshSettings

_FIXED = ("-T", "-a", "-x", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes")
_OURS = """umask 077
mkdir -p "$0" || exit 1
[ -O "$0" ] || { echo "$0 belongs to somebody else" >&2; exit 1; }
"""
_HERE = """exec tar -xof - -C "$0"
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
_PRINT = """cd "$0" 2>/dev/null || exit 0
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
    """Return the command that has `command` run on the other host."""
    port = () if settings.port is None else (f"-p{settings.port}",)
    identity = ("-oIdentitiesOnly=yes", "-i", settings.identity_file) if settings.identity_file else ()
    patience = f"-oConnectTimeout={settings.connect_timeout_s}"
    return ("ssh", *_FIXED, patience, *port, *identity, *settings.options, "--", settings.host, shlex.join(command))


def unpack(folder: PurePosixPath) -> tuple[str, ...]:
    """Return the command that unpacks the archive that it reads into a folder, which must be ours."""
    return ("sh", "-c", _OURS + _HERE, str(folder))


def replace(folder: PurePosixPath, name: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return the command that unpacks the files that come for `name` into folders in `folder`, and puts them there.

    They come into a folder of their own, and take the places of the old ones when all are whole: who reads one of
    these meanwhile finds the old or the new one.
    """
    return ("sh", "-c", _OURS + _REPLACE, str(folder), name, *folders)


def print_logs(folder: PurePosixPath, names: Iterable[str], most_bytes: int) -> tuple[str, ...]:
    """Return the command that prints the ends of the logs of glideins, for `logs_in`."""
    return ("sh", "-c", _PRINT, str(folder), str(most_bytes), LOG_NAME, *names)


def remove(folder: PurePosixPath, names: Iterable[str]) -> tuple[str, ...]:
    """Return the command that removes the folders of glideins."""
    return ("rm", "-rf", "--", *(str(folder / name) for name in names))


def logs_in(stdout: str, names: Iterable[str]) -> dict[str, bytes]:
    """Return the logs in an answer to `print_logs`, by the names asked for; raises WorldError when it is not one."""
    try:
        logs = {
            name: base64.b64decode(text, validate=True) for name, text in (line.split(" ") for line in _lines(stdout))
        }
    except (ValueError, binascii.Error) as error:
        raise WorldError(f"what was printed there cannot be read: {error}", transient=True) from error
    if strangers := logs.keys() - set(names):
        raise WorldError(f"what was printed there cannot be read: nobody asked for {min(strangers)}", transient=True)
    return logs


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []
