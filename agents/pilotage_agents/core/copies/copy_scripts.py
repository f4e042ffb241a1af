"""What runs a copy at a node of a batch system, where there may be nothing but a shell, and what it leaves behind.

Rules
-----
Two scripts: the wrapper, the same for all copies, starts the job's own script, hands signals on to it and writes down
how it ended; the job's own script holds what its owner wrote, each word quoted, and becomes the job. Paths are found
where they run, so that no script names one of the machine that wrote it. A program that was ended by signal n has
exit code 128 + n, as shells have it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotage.arguments import split_arguments
from pilotage.job_description import JobDescription
from pilotage.job_environment import DEFAULT_PATH, PASSED, JobIdentity, JobPlace, job_environment

WRAPPER_NAME, JOB_NAME, STARTED_NAME, ENDED_NAME = "wrapper.sh", "job.sh", "started", "ended"
WORK_NAME, TEMPORARY_NAME, AD_NAME, PROXY_NAME = "work", "tmp", "job.ad", "proxy"
_WARNING_NAME = "job-ends"

# No text of a job can hold a zero character.
_HERE, _USER, _NODE = "\0here\0", "\0user\0", "\0node\0"
_FOUND_THERE = re.compile("\0(here|user|node)\0")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TAKEN = frozenset(
    (
        "_",
        "BASHOPTS",
        "BASH_VERSINFO",
        "EUID",
        "IFS",
        "LINENO",
        "OPTIND",
        "PPID",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "UID",
    )
) | {"here", "user", "node"}
"""Names of variables that mean something to a shell, or in the script."""

_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}

_WRAPPER = """#!/bin/sh
# Runs the job in this folder and writes down how it ended.
here=$(pwd -P) || exit 1
child= told= heard= code=
tell() {{
    told=x$told
    : > told
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}}
trap tell TERM INT HUP
echo "$(date +%s) $(uname -n)" > {started}.new && mv {started}.new {started} || exit 1
# A shell has what it starts in the background ignore these; not every env can undo that.
as_ever=--default-signal=INT,QUIT
env "$as_ever" true 2>/dev/null || as_ever=
env $as_ever -i {passed} /bin/sh ./{job} "$here" &
child=$!
while :; do
    wait "$child"
    now=$?
    # A signal ends the waiting, not the job; a job that was waited for already is no longer known (127).
    [ "$now" = 127 ] && [ -n "$code" ] || code=$now
    [ "$heard" != "$told" ] || break
    heard=$told
done
{{
    echo "code $code"
    echo "time $(date +%s)"
    [ -z "$told" ] || echo "told"
    times
    echo "whole"
}} > {ended}.new && mv {ended}.new {ended} || exit 1
exit 0
"""
_JOB = """here=$1
PATH={path}
export PATH
user=$(id -un 2>/dev/null || id -u)
node=$(uname -n)
cd "$here"/{work} || exit 126
exec {streams} || exit 126
{exports}
# A signal that came while this shell was not yet there was heard by nobody.
[ ! -e "$here"/told ] || kill -TERM $$
exec {command}
"""


def wrapper_script() -> str:
    """Return the script that runs every copy, in its folder."""
    passed = " ".join(f'${{{name}+"{name}=${name}"}}' for name in (*PASSED, *_DEVICES))
    return _WRAPPER.format(started=STARTED_NAME, ended=ENDED_NAME, job=JOB_NAME, passed=passed)


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where a copy runs: the queue as "SITE/CE/QUEUE", and the route as its slot.

    `has_program` = the job's program lies in its folder. `proxy` is the path of the route's credential in the
    copy's folder, "" = the route gives none.
    """

    queue: str
    route: str
    has_program: bool
    proxy: str = ""


def job_script(description: JobDescription, identity: JobIdentity, place: CopyPlace) -> str:
    """Return the script that becomes the job; raises ValueError for arguments that cannot be taken apart."""
    environment = _environment(description, identity, place)
    plain = {name: value for name, value in environment.items() if _is_for_shells(name)}
    others = [f"{name}={value}" for name, value in environment.items() if name not in plain]
    program = description.executable
    path = f"{_HERE}/{WORK_NAME}/{program.removeprefix('./')}" if place.has_program else program
    command = [*(["/usr/bin/env", *others] if others else []), path, *split_arguments(description.arguments)]
    return _JOB.format(
        path=DEFAULT_PATH,
        work=WORK_NAME,
        streams=_streams(description),
        exports="\n".join(f"export {name}={_word(value)}" for name, value in plain.items()),
        command=" ".join(map(_word, command)),
    )


def _environment(description: JobDescription, identity: JobIdentity, place: CopyPlace) -> Mapping[str, str]:
    told = JobPlace(
        work=f"{_HERE}/{WORK_NAME}",
        temporary=f"{_HERE}/{TEMPORARY_NAME}",
        warning=f"{_HERE}/{_WARNING_NAME}",
        queue=place.queue,
        node=_NODE,
        slot=place.route,
        cpus=description.request_cpus or 1,
        memory_mib=description.request_memory_mib,
        job_ad=f"{_HERE}/{AD_NAME}",
    )
    machine = {"PATH": DEFAULT_PATH, "USER": _USER, "LOGNAME": _USER}
    proxy = {"X509_USER_PROXY": f"{_HERE}/{place.proxy}"} if place.proxy else {}
    # What the batch system says of devices counts for a job that asked for some.
    devices = {} if description.request_gpus else _NO_DEVICES
    return {**job_environment(description, identity, told, machine), **proxy, **devices}


def _is_for_shells(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in _TAKEN


def _streams(description: JobDescription) -> str:
    stdin = description.stdin or "/dev/null"
    return " ".join(
        (
            f"<{_path(stdin)}",
            f">>{_path(description.stdout or 'stdout')}",
            f"2>>{_path(description.stderr or 'stderr')}",
        )
    )


def _path(name: str) -> str:
    # With a folder before it, no name is anything else to a shell.
    return shlex.quote(name if name.startswith("/") else f"./{name}")


def _word(text: str) -> str:
    """Return a text as one word of a script, with what is only known where it runs filled in there."""
    parts = _FOUND_THERE.split(text)
    quoted = (shlex.quote(part) if place % 2 == 0 else f'"${part}"' for place, part in enumerate(parts) if part)
    return "".join(quoted) or "''"


@dataclass(frozen=True, slots=True)
class CopyStart:
    """When a copy began, by its node's clock, and the node's name."""

    time: datetime
    node: str


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """How a copy ended, by its node's clock; `was_told` = its batch system had asked it to. `cpu_s` None = unknown."""

    exit_code: int
    time: datetime
    was_told: bool
    cpu_s: float | None


_CODE = re.compile(r"\d{1,3}", re.ASCII)
_MOST_CODE = 255
_MOST_NODE = 255
"""So long a name of a host may be (POSIX, HOST_NAME_MAX)."""
_MOST_CPU_S = 1e12


def start_in(text: str) -> CopyStart | None:
    """Return what the file of a copy's start says; None = nothing that can be read.

    The payload can write the file too: of a node's name nothing stays but what one can have.
    """
    time, _, node = text.strip().partition(" ")
    at = _time(time)
    plain = "".join(each for each in node if each.isprintable())
    return None if at is None else CopyStart(at, plain[:_MOST_NODE])


def end_in(text: str) -> CopyEnd | None:
    """Return what the file of a copy's end says; None = it is not whole, or says nothing that can be read.

    The payload can write the file too: an exit code that no process can have is nothing that can be read.
    """
    lines = text.splitlines()
    said = dict(_parted(line) for line in lines)
    time, code = _time(said.get("time", "")), said.get("code", "")
    if lines[-1:] != ["whole"] or time is None or not _CODE.fullmatch(code) or int(code) > _MOST_CODE:
        return None
    return CopyEnd(int(code), time, "told" in said, _cpu_s(lines))


def _parted(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value


def _time(text: str) -> datetime | None:
    if not text.isdecimal():
        return None
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (OverflowError, ValueError, OSError):
        return None


_USED = re.compile(r"(\d+)m(\d+(?:[.,]\d+)?)s (\d+)m(\d+(?:[.,]\d+)?)s")


def _cpu_s(lines: Sequence[str]) -> float | None:
    """Return what a shell's `times` says that all it has waited for took: that is in its second line."""
    used = [found for line in lines if (found := _USED.fullmatch(line))]
    if len(used) != 2:
        return None
    minutes, seconds, more_minutes, more_seconds = (float(part.replace(",", ".")) for part in used[1].groups())
    cpu_s = 60 * (minutes + more_minutes) + seconds + more_seconds
    return round(cpu_s, 3) if cpu_s <= _MOST_CPU_S else None
