"""A peer: another project's program from PyPI in its own virtual environment, installed on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from harness.figures import progress

_CHECKOUT = Path(__file__).parents[2]
ENVIRONMENTS = _CHECKOUT / ".bench-peers"
"""The folder of the environments, kept between benches."""

TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer by its name on PyPI; `also` are further packages that its program needs."""

    name: str
    also: tuple[str, ...] = ()

    @property
    def _folder(self) -> Path:
        return ENVIRONMENTS / self.name

    def seconds(self, work: str, jobs: int, *arguments: str) -> float:
        """Run `jobs` jobs of the kind "noop" or "true"; returns the seconds that the peer reports."""
        if not self._folder.exists():
            self._install()
        program = _CHECKOUT / "bench" / "peers" / f"{self.name}_peer.py"
        command = [str(self._folder / "bin" / "python"), str(program), work, str(jobs), *arguments]
        environment = {**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            sys.exit(f"{self.name} failed:\n{done.stderr[-3000:]}")
        return float(done.stdout.splitlines()[-1])

    def version(self) -> str:
        """Return the installed release."""
        show = "import sys, importlib.metadata as metadata; print(metadata.version(sys.argv[1]))"
        command = [str(self._folder / "bin" / "python"), "-c", show, self.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def _install(self) -> None:
        progress(f"installing {self.name}")
        venv.create(self._folder, with_pip=True)
        try:
            pip = [str(self._folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, self.name, *self.also], check=True)
        except subprocess.CalledProcessError as error:
            shutil.rmtree(self._folder)
            sys.exit(f"{self.name} cannot be installed: {error}")
