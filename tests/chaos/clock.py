"""A wall clock that can be set, for processes of a run: the library is preloaded, the boot clock stays as it is."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.debian import find_or_install

_SOURCE = Path(__file__).with_name("jumping_clock.c")


class JumpingClock:
    """The clock of processes with the variables `environment`; all users of this machine can read `folder`."""

    def __init__(self, folder: Path) -> None:
        library, jump = folder / "jumping_clock.so", folder / "jump"
        compiler = find_or_install(_compiler, "gcc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
        jump.write_bytes(bytes(mmap.PAGESIZE))
        with jump.open("r+b") as file:
            self._jump = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        for path, mode in ((folder, 0o755), (library, 0o755), (jump, 0o644)):
            path.chmod(mode)
        self.jumped_s = 0.0
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(jump)}

    def close(self) -> None:
        """Leave the clock as it is."""
        self._jump.close()

    def jump(self, amount_s: float) -> None:
        """Set the clock by this amount of seconds, at once."""
        self.jumped_s += amount_s
        struct.pack_into("d", self._jump, 0, self.jumped_s)


def _compiler() -> str | None:
    return shutil.which("gcc")
