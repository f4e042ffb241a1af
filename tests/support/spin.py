"""Spin, the checker of Promela models: it searches all states of a model for a violated assertion."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.debian import find_or_install

SEARCH_TIMEOUT_S = 300
_VIOLATED = re.compile(r"assertion violated\s+(.*) \(at depth")
_STATES = re.compile(r"(\d+) states, stored")
_COMPLETE = "errors: 0"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The number of states, and the assertion that one of them violates, without blanks; "" = all states are right."""

    states: int
    violated: str


@pytest.fixture(scope="session")
def spin() -> Path:
    return find_or_install(lambda: Path(found) if (found := shutil.which("spin")) else None, "spin")


def search(spin: Path, model: Path, folder: Path, *macros: str) -> SearchResult:
    """Search the states of a model with these macros; fails if the search is not complete and finds nothing."""
    source = folder / "model.pml"
    _run(folder, "cpp", "-P", *(f"-D{macro}" for macro in macros), model, source)
    _run(folder, spin, "-a", source)
    # One process: there is no order to reduce. States are stored as 128 bits of hash, which fit in memory.
    _run(folder, "gcc", "-O2", "-DSAFETY", "-DNOREDUCE", "-DHC4", "-DMEMLIM=3000", "-o", "pan", "pan.c")
    output = _run(folder, folder / "pan", "-m1000000", "-w24")
    violated, states = _VIOLATED.search(output), _STATES.search(output)
    assert states is not None, output
    assert violated is not None or (_COMPLETE in output and "max search depth too small" not in output), output
    return SearchResult(int(states[1]), "".join(violated[1].split()) if violated else "")


def _run(folder: Path, *command: object) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=SEARCH_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
