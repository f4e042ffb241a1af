"""A batch system by commands of the operator, for systems that have no driver of ours.

Rules
-----
- A submit command that fails has submitted nothing. One that times out, or prints no id, may have submitted the pilot.
- An id that the status command does not print, or prints with an unknown state, has the state UNKNOWN.
- The commands deliver what a pilot needs: all files of its folder, of which the script `start.sh` is started.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.hosts import CommandResult, run_command
from pilotage_agents.batch_systems.settings import CommandBatchSystemSettings

log = structlog.get_logger()

SCRIPT_NAME = "start.sh"
"""The file in a glidein's folder that becomes its pilot; it works in any copy of the folder."""

_MAX_IDS_PER_COMMAND = 500
_STATES = {state.value: state for state in GlideinState if state.is_known}


def submit_words(template: Sequence[str], request: GlideinRequest) -> tuple[str, ...]:
    """Return the submit command of a pilot; a size that is not known is an empty word."""
    shape = request.shape
    values = {
        "folder": request.folder,
        "script": request.folder / SCRIPT_NAME,
        "stamp": request.stamp,
        "queue": request.queue,
        "cpus": shape.cpus,
        "memory_mib": shape.memory_mib,
        "disk_mib": shape.disk_mib,
        "gpus": shape.gpus,
        "wall_time_s": request.wall_time_s,
    }
    texts = {name: "" if value is None else str(value) for name, value in values.items()}
    return tuple(re.sub(r"\{(\w+)\}", lambda found: texts[found[1]], word) for word in template)


def parse_statuses(text: str) -> dict[str, GlideinStatus]:
    """Return the statuses in the output of a status command; lines of another form state nothing."""
    found = {}
    for line in text.splitlines():
        match line.split():
            case [glidein_id, state] if state in _STATES:
                found[glidein_id] = GlideinStatus(_STATES[state], state)
            case [glidein_id, "ended", code] if code.isdecimal():
                found[glidein_id] = GlideinStatus(GlideinState.ENDED, f"exit code {code}", int(code))
            case _:
                pass
    return found


class CommandBatchSystem:
    """Runs glideins by the commands of the settings; `name` is that of the batch system in the settings."""

    def __init__(self, name: str, settings: CommandBatchSystemSettings) -> None:
        self._name = name
        self._settings = settings

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit one pilot after the other; after an unanswered one no other is tried. See BatchSystem."""
        answers: list[Submission] = []
        for request in requests:
            if answers and isinstance(answers[-1], Unanswered):
                left = len(requests) - len(answers)
                return (*answers, *[NotSubmitted(f"as before: {answers[-1].reason}", was_tried=False)] * left)
            answers.append(await self._submit(request))
        return tuple(answers)

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return what the find command prints for these stamps; see BatchSystem."""
        if not (stamps and self._settings.find_command):
            return {}
        answer = await self._succeed(self._settings.find_command, stamps)
        pairs = (line.split() for line in answer.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in stamps}

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return what the status command prints for these ids; see BatchSystem."""
        statuses: dict[str, GlideinStatus] = {}
        for start in range(0, len(glidein_ids), _MAX_IDS_PER_COMMAND):
            some = glidein_ids[start : start + _MAX_IDS_PER_COMMAND]
            try:
                printed, why = parse_statuses(await self._succeed(self._settings.status_command, some)), "not printed"
            except WorldError as error:
                printed, why = {}, str(error)
            statuses |= {each: printed.get(each, GlideinStatus(GlideinState.UNKNOWN, why)) for each in some}
        return statuses

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Remove pilots by the remove command; see BatchSystem."""
        for start in range(0, len(glidein_ids), _MAX_IDS_PER_COMMAND):
            try:
                await self._succeed(self._settings.remove_command, glidein_ids[start : start + _MAX_IDS_PER_COMMAND])
            except WorldError as error:
                log.warning("pilots could not be cancelled", reason=str(error))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Do nothing: the commands have delivered the folders; see BatchSystem."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: the commands bring output back, if any; see BatchSystem."""

    async def _submit(self, request: GlideinRequest) -> Submission:
        try:
            await asyncio.to_thread(_write_script, request)
        except OSError as error:
            return NotSubmitted(f"{error.filename or request.folder}: {error.strerror}")
        words = submit_words(self._settings.submit_command, request)
        try:
            answer = await self._run(words)
        except WorldError as error:
            return Unanswered(str(error)) if error.transient else NotSubmitted(str(error))
        if answer.exit_code != 0:
            return NotSubmitted(f"{self._name}: {answer.error_text}")
        lines = answer.stdout.split("\n")
        glidein_id = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if len(glidein_id.split()) != 1:
            return Unanswered(f"{self._name}: {words[0]}: the last line is no id: {glidein_id!r}")
        return Submitted(glidein_id)

    async def _succeed(self, command: Sequence[str], things: Sequence[str]) -> str:
        """Return the output of a command with `things` appended; raises WorldError when it fails."""
        answer = await self._run((*command, *things))
        if answer.exit_code != 0:
            raise WorldError(f"{self._name}: {command[0]}: {answer.error_text}", transient=True)
        return answer.stdout

    async def _run(self, words: Sequence[str]) -> CommandResult:
        try:
            return await run_command(words, timeout_s=self._settings.timeout_s)
        except WorldError as error:
            raise WorldError(f"{self._name}: {words[0]}: {error}", transient=error.transient) from error


def _write_script(request: GlideinRequest) -> None:
    path = request.folder / SCRIPT_NAME
    path.write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && exec {shlex.join(request.command)} >{LOG_NAME} 2>&1\n')
    path.chmod(0o700)
