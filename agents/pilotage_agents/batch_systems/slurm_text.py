"""The input of Slurm's commands and the parsing of their output. No I/O.

A job is ours when its comment, or else its name, holds a pilot's stamp; other jobs are ignored. An unknown state
concludes nothing. Releases of Slurm differ in squeue's JSON, which came with 21.08: a state is a word or a list of
words; an exit code is a wait status, an object with "set" and "number", or an object with its parts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus

_COMMENT, _NAME = "pilotage:", "pilotage-"
_WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "POWER_UP_NODE",
    }
)
_RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_ENDED = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
        "LAUNCH_FAILED",
    }
)
_ENDED_BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""Ends by the job itself; in all other ends the exit code belongs to another process."""

_FAILED_STATES = frozenset({"FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL"})
"""Ends that count against the queue, also when the job never started and so has no exit code."""

_NO_ANSWER_TEXTS = (
    "timed out",
    "zero bytes",
    "unable to contact",
    "not responding",
    "receive failure",
    "send failure",
    "shutdown failure",
)
"""Parts of error messages, in lower case, of a command whose request the controller did not answer."""

_NOT_REACHED = re.compile(
    r"unable to contact slurm controller \(connect failure\)|ssh: connect to host \S+ port \d+: connection refused",
    re.IGNORECASE,
)
"""Error messages of a command whose request never arrived: nothing listens there."""

_END = "END OF WHAT THE PILOT IS GIVEN"
_CHECK = """\
[ "$(sha256sum < {program} | cut -d ' ' -f 1)" = {sha256} ] || {{
    echo {program}: is not the pilot bundle that the site director has >&2
    exit 2
}}
"""

_NO_SUCH_JOB = "invalid job id specified"


@dataclass(frozen=True, slots=True)
class SlurmId:
    """The id of a glidein: Slurm's job id, which may be reused one day, and the pilot's stamp."""

    job: str
    stamp: str

    def __str__(self) -> str:
        return f"{self.job}.{self.stamp}"

    @classmethod
    def of(cls, glidein_id: str) -> Self | None:
        """Return the id from its text; None = it is none of Slurm's."""
        job, _, stamp = glidein_id.partition(".")
        return cls(job, stamp) if job.isdecimal() and stamp else None


def submission(request: GlideinRequest, log: PurePath, account: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the options of sbatch; `log` takes the pilot's output, and its folder is the working directory.

    `options` override sizes, but not what finds the glidein again.
    """
    shape = request.shape
    sizes = {
        "partition": request.queue,
        "account": account,
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": shape.cpus,
        "mem": f"{shape.memory_mib}M" if shape.memory_mib else None,
        "gres": f"gpu:{shape.gpus}" if shape.gpus else None,
        # A partition's limit is in whole minutes, so rounding up cannot exceed it.
        "time": -(-request.wall_time_s // 60) if request.wall_time_s else None,
    }
    ours = {
        "comment": _COMMENT + request.stamp,
        "job-name": _NAME + request.stamp,
        "chdir": str(log.parent),
        "output": str(log).replace("%", "%%"),
        "open-mode": "append",
    }
    # No requeue: the server counts a pilot that Slurm would restart as lost.
    return ("--parsable", *_long(sizes), *options, *_long(ours), "--no-requeue")


def _long(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value]


def script(request: GlideinRequest) -> str:
    """Return the batch script of a glidein: its pilot replaces the shell, and so gets the signals.

    A pilot that does not see its folder gets its input on standard input. Slurm keeps the script; for input larger than
    a pipe some shells create a file in TMPDIR, readable by its owner only, and unlink it at once.
    """
    alone = request.self_contained
    if alone is None:
        return f"#!/bin/sh\nexec {shlex.join(request.command)}\n"
    check = _CHECK.format(program=shlex.quote(alone.program), sha256=alone.sha256) if alone.program else ""
    return f"#!/bin/sh\n{check}exec {shlex.join(alone.command)} <<'{_END}'\n{alone.input_text}\n{_END}\n"


def submitted_job(stdout: str) -> tuple[str, str] | None:
    """Return job id and cluster in the output of sbatch, "ID" or "ID;CLUSTER"; None = there is none.

    The cluster is empty if it is the default one of all commands.
    """
    lines = stdout.split()
    job, _, cluster = lines[-1].partition(";") if lines else ("", "", "")
    return (job, cluster) if job.isdecimal() else None


def is_not_reached(complaint: str) -> bool:
    """Return whether a command could not connect, so that its request is surely not carried out."""
    return _NOT_REACHED.search(complaint) is not None


def is_no_answer(complaint: str) -> bool:
    """Return whether the controller did not answer a command, so that its request may yet be carried out."""
    return not is_not_reached(complaint) and any(words in complaint.lower() for words in _NO_ANSWER_TEXTS)


def is_unknown_job(complaint: str) -> bool:
    """Return whether scontrol does not know the job; Slurm forgets no job before its end."""
    return _NO_SUCH_JOB in complaint.lower()


def parse_queue(stdout: str, user_id: int | None = None) -> dict[SlurmId, GlideinStatus]:
    """Return our jobs in the output of `squeue --json`, which may list all jobs: 22.05 ignores --me.

    Jobs of users other than `user_id` are left out, whatever their names; None = not known. A job that cannot be read
    is UNKNOWN, and its reason names the field. Raises WorldError for an incomplete answer: no JSON, no jobs, or errors.
    """
    try:
        answer: Any = json.loads(stdout)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"it is no JSON: {error}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("jobs"), list):
        raise _unreadable("it has no list of jobs")
    if answer.get("errors"):
        raise _unreadable(f"it has errors: {json.dumps(answer['errors'])[:500]}")
    jobs = (job for job in answer["jobs"] if isinstance(job, dict) and _is_of(user_id, job))
    found = ((_our_id(job), job) for job in jobs)
    return {slurm_id: _status(job) for slurm_id, job in found if slurm_id is not None}


def _unreadable(why: str) -> WorldError:
    return WorldError(f"its answer cannot be read: {why}", transient=True)


def _is_of(user_id: int | None, job: dict[str, Any]) -> bool:
    return user_id is None or _number(job.get("user_id")) in (None, user_id)


def _our_id(job: dict[str, Any]) -> SlurmId | None:
    for name, mark in (("comment", _COMMENT), ("name", _NAME)):
        text = job.get(name)
        if isinstance(text, str) and text.startswith(mark):
            return SlurmId(str(job.get("job_id")), text.removeprefix(mark))
    return None


def _status(job: dict[str, Any]) -> GlideinStatus:
    state = job.get("job_state")
    words = [state] if isinstance(state, str) else state
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return GlideinStatus(GlideinState.UNKNOWN, f"job {job.get('job_id')}: its job_state is {state!r}")
    why = job.get("state_reason")
    return status_of(words, _exit_code(job.get("exit_code")), why if isinstance(why, str) else "")


def status_of(words: Sequence[str], exit_code: int | None, why: str = "") -> GlideinStatus:
    """Return the status of a job's state, which is one word or several; `why` is Slurm's reason.

    An empty state concludes nothing.
    """
    text = ", ".join(words) + (f" ({why})" if why not in ("", "None") else "")
    if not _WAITING.isdisjoint(words):
        return GlideinStatus(GlideinState.WAITING, text)
    if not _RUNNING.isdisjoint(words):
        return GlideinStatus(GlideinState.RUNNING, text)
    if not words or not _ENDED.issuperset(words):
        return GlideinStatus(GlideinState.UNKNOWN, f"{text or 'an empty one'} is no known state")
    code = exit_code if not _ENDED_BY_ITSELF.isdisjoint(words) else None
    # A job that could not be started has failed, and has no exit code.
    if code is None or (code == 0 and "COMPLETED" not in words):
        return GlideinStatus(GlideinState.ENDED, text, has_failed=not _FAILED_STATES.isdisjoint(words))
    return GlideinStatus(GlideinState.ENDED, f"{text}, exit code {code}", code)


def _exit_code(value: Any) -> int | None:
    """Return an exit code (128 + n = ended by signal n); None = not known."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal") or {}
        number = _number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else None
        return 128 + number if number else _number(value["return_code"])
    status = _number(value)
    return None if status is None else _code_of_wait_status(status)


def _code_of_wait_status(status: int) -> int | None:
    signal = status & 0x7F
    if not 0 <= status <= 0xFFFF or signal == 0x7F:
        return None
    return 128 + signal if signal else status >> 8


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


SACCT_OPTIONS = ("--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State,ExitCode,JobName")
"""The options of sacct whose output `accounting_statuses` reads."""


def accounting_statuses(stdout: str) -> dict[SlurmId, GlideinStatus]:
    """Return our jobs in the output of sacct; other lines are skipped."""
    parts = (line.split("|", maxsplit=3) for line in stdout.splitlines())
    return dict(_account(*each) for each in parts if len(each) == 4 and each[3].startswith(_NAME))


def _account(job: str, state: str, exit_code: str, name: str) -> tuple[SlurmId, GlideinStatus]:
    code, _, signal = exit_code.partition(":")
    known = code.isdecimal() and signal.isdecimal()
    # The state may name a user: "CANCELLED by 1000".
    status = status_of(state.split()[:1], (128 + int(signal) if int(signal) else int(code)) if known else None)
    return SlurmId(job, name.removeprefix(_NAME)), status


def numbers(ids: Iterable[SlurmId]) -> list[str]:
    """Return Slurm's job ids."""
    return [slurm_id.job for slurm_id in ids]
