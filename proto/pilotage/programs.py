"""The entry points of the programs, and their exit codes.

A program whose packages are not installed names the command that installs them.
"""

from __future__ import annotations

import re
import sys
from enum import IntEnum
from importlib import import_module

_DISTRIBUTION = "pilotage"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*;.*\bextra == ['\"]([a-z0-9]+)['\"]")


class ProgramExit(IntEnum):
    """The exit codes of `pilotage`, `pilotage-server` and `pilotage-agents`."""

    DONE = 0
    """The program has done what was asked, also if the result is empty."""
    FAILED = 1
    """The operation failed, or its result is negative: a job did not end as DONE, a disk is full."""
    INVALID_REQUEST = 2
    """The request was wrong: an unknown option, job or queue, a file or setting with errors, a missing permission."""
    UNREACHABLE = 3
    """The server could not be reached."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the number of SIGINT, as shells have it."""


def server() -> int:
    """Run the command `pilotage-server` and return its exit code."""
    return _run("server")


def pilot() -> int:
    """Run the command `pilotage-pilot` and return its exit code."""
    return _run("pilot")


def agents() -> int:
    """Run the command `pilotage-agents` and return its exit code."""
    return _run("agents")


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra of Pilotage that are not installed."""
    from importlib.metadata import requires  # it is slow to load, and needed if something is missing

    found = map(_REQUIREMENT.match, requires(_DISTRIBUTION) or ())
    names = {each[1] for each in found if each is not None and each[2] == extra}
    return sorted(name for name in names if not _is_installed(name))


def install_advice(extra: str, missing: list[str]) -> str:
    """Return a sentence about missing packages, with the command that installs them."""
    what = f"package{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    return f"it needs the {what}: pip install '{_DISTRIBUTION}[{extra}]'"


def _run(part: str) -> int:
    try:
        main = import_module(f"pilotage_{part}.main").main
    except ModuleNotFoundError:
        missing = missing_packages(part)
        if not missing:
            raise
        sys.stderr.write(f"pilotage-{part}: {install_advice(part, missing)}\n")
        return ProgramExit.FAILED
    return main() or ProgramExit.DONE


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
