"""Components from Debian packages: found where they are installed, installed where root may."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Found = TypeVar("Found")


class MissingComponentError(Exception):
    """This machine has not got a component and cannot get it."""


def found_or_installed(find: Callable[[], Found | None], package: str) -> Found:
    """Return what `find` finds, after an installation of the Debian package where it finds nothing.

    Where there is no way to it, the test is skipped, but fails in CI.
    """
    try:
        with _one_at_a_time():
            found = find()
            if found is None:
                _install(package)
                found = find()
        if found is None:
            raise MissingComponentError(f"the Debian package {package} has not brought what was looked for")
    except MissingComponentError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    return found


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let no other process of the tests look for something, or install it, meanwhile.

    apt-get would refuse the second one, and a package of which some files are there may not be set up yet.
    """
    with Path(tempfile.gettempdir(), f"pilotage-tests-install-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingComponentError(f"install the Debian package {package}")
    # Run level 1 keeps a package from starting a server of its own.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", package]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MissingComponentError(f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}")
