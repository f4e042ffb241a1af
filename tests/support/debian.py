"""Programs from Debian packages, which root installs if they are missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

Found = TypeVar("Found")


class MissingComponentError(Exception):
    """A program is missing and cannot be installed."""


def find_or_install(find: Callable[[], Found | None], package: str) -> Found:
    """Return the result of `find`; if that is None, install the Debian package first.

    If the program stays missing, the test is skipped, and fails in CI.
    """
    try:
        with installation_lock():
            found = find()
            if found is None:
                _install(package)
                found = find()
        if found is None:
            raise MissingComponentError(f"the Debian package {package} does not contain the expected program")
    except MissingComponentError as error:
        skip_or_fail(str(error))
    return found


def skip_or_fail(why: str) -> NoReturn:
    """Skip the test because of a missing component; in CI it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@contextmanager
def installation_lock(what: str = "packages") -> Iterator[None]:
    """Exclude other test processes from searches and installations of the same kind.

    apt-get fails if another one runs, and a package that is being installed has files before it is configured.
    """
    with Path(tempfile.gettempdir(), f"pilotage-tests-install-{what}-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingComponentError(f"install the Debian package {package}")
    # At run level 1 a package does not start its server.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "-o", "Acquire::Retries=3", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise MissingComponentError(f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}")
