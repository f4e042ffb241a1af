"""The commands by their names, and the folder of scripts that puts them on PATH."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import click

from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage_client.condor.arguments import CondorOption
from pilotage_client.condor.changes import CHANGE_OPTIONS, REMOVE_OPTIONS, condor_hold, condor_release, condor_rm
from pilotage_client.condor.queue import HISTORY_OPTIONS, QUEUE_OPTIONS, condor_history, condor_q
from pilotage_client.condor.returns import PROGRAM, PYTHON, condor_returner
from pilotage_client.condor.slots import STATUS_OPTIONS, condor_status
from pilotage_client.condor.submit import SUBMIT_OPTIONS, condor_submit
from pilotage_client.condor.wait import WAIT_OPTIONS, condor_wait

Note = Callable[[str], None]
Run = Callable[[Sequence[str], Note], int]

HTCONDOR_VERSION = "25.0.0 2025-09-25"
"""The version of HTCondor whose options and texts the commands have."""


def condor_version(words: Sequence[str], note: Note) -> int:
    """Show the version of HTCondor that the commands follow."""
    sys.stdout.write(f"$CondorVersion: {HTCONDOR_VERSION} BuildID: Pilotage-{version('pilotage')} $\n")
    sys.stdout.write(f"$CondorPlatform: {os.uname().machine}-{os.uname().sysname} $\n")
    return 0


COMMANDS: Mapping[str, Run] = MappingProxyType(
    {
        "condor_submit": condor_submit,
        "condor_q": condor_q,
        "condor_rm": condor_rm,
        "condor_hold": condor_hold,
        "condor_release": condor_release,
        "condor_history": condor_history,
        "condor_status": condor_status,
        "condor_wait": condor_wait,
        "condor_version": condor_version,
    }
)
"""The commands that users call."""

OPTIONS: Mapping[str, Sequence[CondorOption]] = MappingProxyType(
    {
        "condor_submit": SUBMIT_OPTIONS,
        "condor_q": QUEUE_OPTIONS,
        "condor_history": HISTORY_OPTIONS,
        "condor_rm": REMOVE_OPTIONS,
        "condor_hold": CHANGE_OPTIONS,
        "condor_release": CHANGE_OPTIONS,
        "condor_status": STATUS_OPTIONS,
        "condor_wait": WAIT_OPTIONS,
    }
)
"""The options of each command."""


def write_scripts(folder: Path) -> list[Path]:
    """Write a script for each command into a folder, and return them.

    Raises
    ------
    InvalidInputError
        The folder has a command of another program.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {folder / name: _script(name) for name in COMMANDS}
    foreign = [path for path in scripts if os.path.lexists(path) and _MARK not in _beginning(path)]
    if foreign:
        raise InvalidInputError(*(Violation(str(path), "is another program; name another folder") for path in foreign))
    for path, text in scripts.items():
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return [*scripts]


_MARK = "pilotage_client.condor.main"


def _script(name: str) -> str:
    return f'#!/bin/sh\nexec {shlex.join(PYTHON)} -m {_MARK} {name} "$@"\n'


def _beginning(path: Path) -> str:
    return path.read_bytes()[:1000].decode(errors="replace") if path.is_file() else ""


def main(words: Sequence[str]) -> int:
    """Run a command by its name; returns its exit code."""
    command, *rest = words
    run = COMMANDS.get(command) or (condor_returner if command == PROGRAM else None)
    if run is None:
        sys.stderr.write(f"{command} is no command; known are {', '.join(COMMANDS)}\n")
        return 1
    if rest[:1] in (["-version"], ["--version"]):
        run = condor_version
    try:
        code = run(rest, lambda line: click.echo(f"{command}: {line}", err=True))
        sys.stdout.flush()
    except InvalidInputError as error:
        for violation in error.violations:
            click.echo(f"ERROR: {violation}", err=True)
        return 1
    except PilotageError as error:
        click.echo(f"ERROR: {error}", err=True)
        return 1
    except BrokenPipeError:  # the reader of the pipe has ended (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"ERROR: {(error.strerror or str(error)).lower()}", err=True)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
