"""A workload manager by commands, as an operator's scripts reach it: submit, status, remove, find.

It runs each submitted script on this machine, in an environment of the next of its places: COMMAND STATE ARGUMENT...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_RUN = 'sh "$0"; echo $? > "$1.new" && mv "$1.new" "$1"'


def commands(state: Path, *places: str) -> dict[str, list[str]]:
    """Return the settings of the batch system with this state; its jobs land on `places` in turn."""
    state.mkdir()
    (state / "places").write_text("\n".join(places))
    return {
        f"{name}_command": [sys.executable, __file__, name, str(state), *arguments]
        for name, arguments in (
            ("submit", ["{stamp}", "{script}"]),
            ("status", []),
            ("remove", []),
            ("find", []),
        )
    }


def _submit(state: Path, stamp: str, script: str) -> Iterator[str]:
    glidein_id = f"job-{len(list(state.glob('*.pid')))}"
    places = (state / "places").read_text().splitlines()
    place = {"PILOTAGE_PILOT_QUEUE_NAME": places[len(list(state.glob("*.pid"))) % len(places)]} if places else {}
    process = subprocess.Popen(
        ["sh", "-c", _RUN, script, str(state / f"{glidein_id}.exit")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **place},
        start_new_session=True,
    )
    (state / f"{glidein_id}.pid").write_text(str(process.pid))
    (state / f"{stamp}.stamp").write_text(glidein_id)
    yield "submitted:"
    yield glidein_id


def _state(state: Path, glidein_id: str) -> str:
    """Return what the status command prints of a job; "" = it does not know it."""
    pid, exit_file = state / f"{glidein_id}.pid", state / f"{glidein_id}.exit"
    if not pid.exists():
        return ""
    if exit_file.exists():
        return f"ended {exit_file.read_text().strip()}"
    try:
        has_ended = Path(f"/proc/{pid.read_text()}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        has_ended = True
    return "ended" if has_ended else "running"


def _status(state: Path, *ids: str) -> Iterator[str]:
    for glidein_id in ids:
        if found := _state(state, glidein_id):
            yield f"{glidein_id} {found}"


def _remove(state: Path, *ids: str) -> Iterator[str]:
    for glidein_id in ids:
        if _state(state, glidein_id) == "running":
            os.killpg(int((state / f"{glidein_id}.pid").read_text()), signal.SIGTERM)
            yield f"removed {glidein_id}"


def _find(state: Path, *stamps: str) -> Iterator[str]:
    for stamp in stamps:
        path = state / f"{stamp}.stamp"
        if path.exists() and _state(state, path.read_text()) == "running":
            yield f"{stamp} {path.read_text()}"


def _main(name: str, state: Path, arguments: Sequence[str]) -> None:
    match name:
        case "submit":
            lines = _submit(state, *arguments)
        case "status":
            lines = _status(state, *arguments)
        case "remove":
            lines = _remove(state, *arguments)
        case _:
            lines = _find(state, *arguments)
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
