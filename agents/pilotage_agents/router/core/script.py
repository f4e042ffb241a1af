"""The shell scripts that run a job at a node of a batch system, and the files that they leave.

Rules
-----
- The wrapper starts the job script, forwards signals to it and writes how it ended. After a fast failure it keeps its
  place until the plug is over (black holes: J. Phys.: Conf. Ser. 219 062035). A signal ends that.
- The job script holds the owner's texts, each word quoted, and becomes the job by exec.
- Paths are found at run time, so that a script has no path of the machine that wrote it.
- A program that signal n ended has exit code 128 + n, as in shells.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotage.condor.quoting import split_arguments
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import DEFAULT_PATH, PASSED_VARIABLES, JobIdentity, JobRunContext, job_environment
from pilotage.jobs.exit_codes import PayloadExit
from pilotage.resources.tree import QueueId

WRAPPER_NAME, JOB_NAME, STARTED_NAME, ENDED_NAME = "wrapper.sh", "job.sh", "started", "ended"
WORK_NAME, TEMPORARY_NAME, AD_NAME, PROXY_NAME = "work", "tmp", "job.ad", "proxy"
_WARNING_NAME = "job-ends"

# No text of a job can hold a zero character.
_HERE, _USER, _NODE = "\0here\0", "\0user\0", "\0node\0"
_PLACEHOLDER = re.compile("\0(here|user|node)\0")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RESERVED_NAMES = frozenset(
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
"""Names of variables that a shell or the script uses itself."""

_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

_WRAPPER = """#!/bin/sh
# Runs the job in this folder and writes down how it ended.
here=$(pwd -P) || exit 1
began=$(date +%s)
child= signals= handled= code=
forward() {{
    signals=x$signals
    : > told
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}}
trap forward TERM INT HUP
echo "$began $(uname -n)" > {started}.new && mv {started}.new {started} || exit 1
# A shell lets its background jobs ignore these signals; not every env can undo that.
as_ever=--default-signal=INT,QUIT
env "$as_ever" true 2>/dev/null || as_ever=
env $as_ever -i {passed} /bin/sh ./{job} "$here" &
child=$!
while :; do
    wait "$child"
    now=$?
    # A signal ends the wait, not the job; a job that was waited for already is unknown.
    [ "$now" = {not_found} ] && [ -n "$code" ] || code=$now
    [ "$handled" != "$signals" ] || break
    handled=$signals
done
child= plug=0
if [ -z "$signals" ] && [ "$code" != {success} ]; then
    ran=$(($(date +%s) - began))
    # The clock may have been set back.
    [ "$ran" -lt 0 ] || plug=$(({plug_s} - ran))
fi
{{
    echo "code $code"
    echo "time $(date +%s)"
    [ -z "$signals" ] || echo "told"
    [ "$plug" -le 0 ] || echo "plugged"
    times
    echo "whole"
}} > {ended}.new && mv {ended}.new {ended} || exit 1
if [ "$plug" -gt 0 ]; then
    sleep "$plug" &
    child=$!
    # A signal ends the wait. A new child may lose any other signal than KILL.
    [ -n "$signals" ] || wait "$child"
    kill -KILL "$child" 2>/dev/null
fi
exit 0
"""
_JOB = """here=$1
PATH={path}
export PATH
user=$(id -un 2>/dev/null || id -u)
node=$(uname -n)
cd "$here"/{work} || exit {cannot_run}
exec {streams} || exit {cannot_run}
{exports}
# Act on a signal that the wrapper received before this shell existed.
[ ! -e "$here"/told ] || kill -TERM $$
exec {command}
"""


def wrapper_script(plug_s: int, success_exit_code: int) -> str:
    """Return the wrapper script; `plug_s` is the least time from the start of a job that fails to its end, 0 = none."""
    passed = " ".join(f'${{{name}+"{name}=${name}"}}' for name in (*PASSED_VARIABLES, *_DEVICES))
    names = {"started": STARTED_NAME, "ended": ENDED_NAME, "job": JOB_NAME}
    return _WRAPPER.format(
        **names, passed=passed, plug_s=plug_s, success=success_exit_code, not_found=PayloadExit.NOT_FOUND.value
    )


def job_script(
    description: JobDescription, identity: JobIdentity, queue: QueueId, route: str, *, has_program: bool, proxy: str
) -> str:
    """Return the job script; raises ValueError for arguments that cannot be split.

    `has_program`: the job's program is in its folder. `proxy` is the path of the route's credential in the job's
    folder, "" = none. The route is shown to the job as its slot.
    """
    environment = _environment(description, identity, queue, route, proxy)
    plain = {
        name: value
        for name, value in environment.items()
        if _NAME.fullmatch(name) is not None and name not in _RESERVED_NAMES
    }
    others = [f"{name}={value}" for name, value in environment.items() if name not in plain]
    program = description.executable
    path = f"{_HERE}/{WORK_NAME}/{program.removeprefix('./')}" if has_program else program
    command = [*(["/usr/bin/env", *others] if others else []), path, *split_arguments(description.arguments)]
    stdin = description.stdin or "/dev/null"
    return _JOB.format(
        path=DEFAULT_PATH,
        work=WORK_NAME,
        cannot_run=PayloadExit.CANNOT_RUN.value,
        streams=" ".join(
            (
                f"<{_path(stdin)}",
                f">>{_path(description.stdout or 'stdout')}",
                f"2>>{_path(description.stderr or 'stderr')}",
            )
        ),
        exports="\n".join(f"export {name}={_quoted(value)}" for name, value in plain.items()),
        command=" ".join(map(_quoted, command)),
    )


def _environment(
    description: JobDescription, identity: JobIdentity, queue: QueueId, route: str, proxy: str
) -> Mapping[str, str]:
    job_place = JobRunContext(
        work=f"{_HERE}/{WORK_NAME}",
        temporary=f"{_HERE}/{TEMPORARY_NAME}",
        warning=f"{_HERE}/{_WARNING_NAME}",
        queue=str(queue),
        node=_NODE,
        slot=route,
        cpus=description.request_cpus or 1,
        memory_mib=description.request_memory_mib,
        # The batch system assigns devices to a job that requests some.
        gpu_ids=None if description.request_gpus else (),
        user=_USER,
        job_ad=f"{_HERE}/{AD_NAME}",
    )
    credential = {"X509_USER_PROXY": f"{_HERE}/{proxy}"} if proxy else {}
    return {**job_environment(description, identity, job_place, {}), **credential}


def _path(name: str) -> str:
    # With a folder before it, no name has another meaning to a shell.
    return shlex.quote(name if name.startswith("/") else f"./{name}")


def _quoted(text: str) -> str:
    """Return a text as one quoted word of a script; placeholders become variables."""
    parts = _PLACEHOLDER.split(text)
    quoted = (shlex.quote(part) if position % 2 == 0 else f'"${part}"' for position, part in enumerate(parts) if part)
    return "".join(quoted) or "''"


@dataclass(frozen=True, slots=True)
class WrapperStart:
    """The start of a job, by its node's clock, and the node's name."""

    time: datetime
    node: str


@dataclass(frozen=True, slots=True)
class WrapperEnd:
    """The end of a job, by its node's clock; `was_signalled` = the batch system asked it to. `cpu_s` None = unknown.

    `is_plugged`: the job has failed, and its batch job may go on until the plug is over.
    """

    exit_code: int
    time: datetime
    was_signalled: bool
    cpu_s: float | None
    is_plugged: bool = False


_CODE = re.compile(r"\d{1,3}", re.ASCII)
_MAX_CODE = 255
_MAX_NODE = 255
"""The longest name of a host (POSIX, HOST_NAME_MAX)."""
_MAX_CPU_S = 1e12


def parse_start(text: str) -> WrapperStart | None:
    """Return the content of the wrapper's start file; None = it is not valid.

    The payload can write the file too, so the node's name is reduced to printable characters.
    """
    time, _, node = text.strip().partition(" ")
    at = _time(time)
    plain = "".join(each for each in node if each.isprintable())
    return None if at is None else WrapperStart(at, plain[:_MAX_NODE])


def parse_end(text: str) -> WrapperEnd | None:
    """Return the content of the wrapper's end file; None = it is incomplete or not valid.

    The payload can write the file too, so an exit code that no process can have is not valid.
    """
    lines = text.splitlines()
    fields = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    time, code = _time(fields.get("time", "")), fields.get("code", "")
    if lines[-1:] != ["whole"] or time is None or not _CODE.fullmatch(code) or int(code) > _MAX_CODE:
        return None
    return WrapperEnd(int(code), time, "told" in fields, _cpu_s(lines), "plugged" in fields)


def _time(text: str) -> datetime | None:
    if not text.isdecimal():
        return None
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (OverflowError, ValueError, OSError):
        return None


_USED = re.compile(r"(\d+)m(\d+(?:[.,]\d+)?)s (\d+)m(\d+(?:[.,]\d+)?)s")


def _cpu_s(lines: Sequence[str]) -> float | None:
    """Return the CPU time of all children of the shell: the second line of its `times`."""
    used = [found for line in lines if (found := _USED.fullmatch(line))]
    if len(used) != 2:
        return None
    minutes, seconds, more_minutes, more_seconds = (float(part.replace(",", ".")) for part in used[1].groups())
    cpu_s = 60 * (minutes + more_minutes) + seconds + more_seconds
    return round(cpu_s, 3) if cpu_s <= _MAX_CPU_S else None
