"""What a schedd is told of a glidein, and what its job ads mean.

Rules
-----
No I/O. A job is ours when its attribute PilotageStamp holds a pilot's stamp. A glidein is started once: one that was
evicted or is held is no pilot any more, and removes itself (periodic_remove); until the schedd has it out of its queue
it has not ended. A status that is not known here concludes nothing. The numbers are those of HTCondor's JobStatus.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pilotage.errors import InvalidInputError, Violation
from pilotage_agents.batch_systems.base import LOG_NAME, GlideinRequest, GlideinState, GlideinStatus
from pilotage_agents.core.pilot_shape import Shape

STAMP = "PilotageStamp"
OURS = f"{STAMP} =!= undefined"
"""The constraint that all glideins meet."""

ATTRIBUTES = (
    "ClusterId",
    STAMP,
    "JobStatus",
    "ExitBySignal",
    "ExitSignal",
    "ExitCode",
    "HoldReason",
    "LastHoldReason",
    "RemoveReason",
    "NumJobStarts",
)
"""What is asked of a job."""

Ad = Mapping[str, object]
"""What a schedd says of a job, by attribute; one that has no value is missing."""

_IDLE, _RUNNING, _REMOVED, _COMPLETED, _HELD, _TRANSFERRING, _SUSPENDED = range(1, 8)
_WORDS = {_RUNNING: "running", _REMOVED: "being removed", _TRANSFERRING: "output on its way", _SUSPENDED: "suspended"}
_NO_LIST = frozenset(",$\r\n")
_NEVER_STARTED = "ifThenElse(isUndefined(MY.NumJobStarts), 0, MY.NumJobStarts) == 0"
_NO_PILOT_ANY_MORE = f"(JobStatus == {_HELD}) || (JobStatus == {_IDLE} && !({_NEVER_STARTED}))"


@dataclass(frozen=True, slots=True)
class HtcondorId:
    """The id of a glidein: the cluster of its one job, which may be given out again one day, and the pilot's stamp."""

    cluster: int
    stamp: str

    def __str__(self) -> str:
        return f"{self.cluster}.0.{self.stamp}"

    @classmethod
    def of(cls, glidein_id: str) -> Self | None:
        """Return what an id says; None = it is none of HTCondor's."""
        cluster, _, rest = glidein_id.partition(".")
        zero, _, stamp = rest.partition(".")
        return cls(int(cluster), stamp) if cluster.isdecimal() and zero == "0" and stamp else None

    @classmethod
    def of_ad(cls, ad: Ad) -> Self | None:
        """Return the id of the glidein that an ad is of; None = it is of none."""
        cluster, stamp = ad.get("ClusterId"), ad.get(STAMP)
        return cls(cluster, stamp) if isinstance(cluster, int) and isinstance(stamp, str) else None


def description(
    request: GlideinRequest, files: Collection[str], told: Mapping[str, str], vacate_s: float
) -> dict[str, str]:
    """Return the submit description of a glidein.

    `files` of its folder go with it. What is `told` by the settings wins over sizes, and adds to the requirements;
    nothing wins over what finds the glidein again. Raises InvalidInputError for what no submit description can say: a
    command of more than one line, or a file that its list of files would take apart.
    """
    if any("\n" in word for word in request.command):
        raise InvalidInputError(Violation("command", "HTCondor takes no arguments of more than one line"))
    if misread := [name for name in files if not _NO_LIST.isdisjoint(name)]:
        raise InvalidInputError(Violation("transfer_input_files", f"HTCondor takes no file of the name {misread[0]!r}"))
    said = {name.strip().lower(): value for name, value in told.items()}
    theirs = said.pop("requirements", "")
    ours = {
        "universe": "vanilla",
        # By a shell, so that the pilot's command may be one that the node's PATH finds.
        "executable": "/bin/sh",
        "transfer_executable": "false",
        "arguments": submit_arguments(("-c", 'exec "$0" "$@"', *request.command)),
        "initialdir": _plain(str(request.folder)),
        "output": LOG_NAME,
        "error": LOG_NAME,
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT",
        "transfer_input_files": ",".join(files),
        "transfer_output_files": '""',
        "requirements": f"({theirs}) && ({_NEVER_STARTED})" if theirs else _NEVER_STARTED,
        "periodic_remove": _NO_PILOT_ANY_MORE,
        "job_max_vacate_time": str(round(vacate_s)),
        f"+{STAMP}": _plain(json.dumps(request.stamp)),
        "+PilotageQueue": _plain(json.dumps(request.queue, ensure_ascii=False)),
    }
    return {**_sizes(request.shape, request.wall_time_s), **said, **ours}


def _sizes(shape: Shape, wall_time_s: int | None) -> dict[str, str]:
    sizes = {
        "request_cpus": shape.cpus,
        "request_memory": shape.memory_mib,
        "request_disk": shape.disk_mib and shape.disk_mib * 1024,  # in KiB
        "request_gpus": shape.gpus,
        # What takes longer is held, and so removes itself.
        "allowed_execute_duration": wall_time_s,
    }
    return {name: str(size) for name, size in sizes.items() if size}


def submit_arguments(words: Sequence[str]) -> str:
    """Return the value of `arguments` that a job gets as these words (HTCondor manual: new syntax of arguments)."""
    quoted = " ".join("'" + word.replace("'", "''") + "'" for word in words)
    return '"' + _plain(quoted.replace('"', '""')) + '"'


def _plain(text: str) -> str:
    # A dollar sign would begin a macro.
    return text.replace("$", "$(DOLLAR)")


def status_in_queue(ad: Ad) -> GlideinStatus:
    """Return the status of a job in a schedd's queue."""
    match ad.get("JobStatus"):
        case 1:
            evicted = "" if ad.get("NumJobStarts", 0) == 0 else ", evicted"
            return GlideinStatus(GlideinState.WAITING, f"idle{evicted}")
        case 5:
            return GlideinStatus(GlideinState.WAITING, f"held: {ad.get('HoldReason', 'no reason given')}")
        case 4:
            return _completed(ad)
        case int(number) if number in _WORDS:
            return GlideinStatus(GlideinState.RUNNING, _WORDS[number])
        case other:
            return GlideinStatus(GlideinState.UNKNOWN, f"its JobStatus is {other!r}")


def status_in_history(ad: Ad) -> GlideinStatus:
    """Return the status of a job that has left its schedd's queue, which it only does when it has ended."""
    if ad.get("JobStatus") == _COMPLETED:
        return _completed(ad)
    held = ad.get("HoldReason", ad.get("LastHoldReason"))
    if held is not None:
        return GlideinStatus(GlideinState.ENDED, f"held and removed: {held}", has_failed=True)
    return GlideinStatus(GlideinState.ENDED, f"removed: {ad.get('RemoveReason', 'no reason given')}")


def _completed(ad: Ad) -> GlideinStatus:
    by_signal = ad.get("ExitBySignal") is True
    said = ad.get("ExitSignal" if by_signal else "ExitCode")
    if not isinstance(said, int):
        return GlideinStatus(GlideinState.ENDED, "completed")
    code = 128 + said if by_signal else said
    return GlideinStatus(GlideinState.ENDED, f"completed, exit code {code}", code)


def any_of(glideins: Iterable[HtcondorId]) -> str:
    """Return the constraint that these glideins meet, and no other job that has one of their ids."""
    return " || ".join(f'(ClusterId == {each.cluster} && {STAMP} =?= "{each.stamp}")' for each in glideins)
