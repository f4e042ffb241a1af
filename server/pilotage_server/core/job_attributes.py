"""What a job's description and its past say as attributes of a ClassAd, in HTCondor's names and units.

Rules
-----
Three kinds are told apart, for they are dealt with differently when jobs are told apart: what the description says is
the same for all jobs of an array; what a job has behind it (`Past`) changes each time it comes back to wait; what
is each job's own (`INDIVIDUAL`) never tells task queues apart. Which names the server keeps for itself is said in
`owned_attributes`. Source of names and units: HTCondor manual, job ClassAd attributes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pilotage.classad_references import References, references
from pilotage.classads import AdValue, Expression
from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription, Value
from pilotage.job_macros import render_text
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.owned_attributes import RESERVED

DEFAULT_UNIVERSE = 5
"""Vanilla."""

_UNIVERSES = {"standard": 1, "vanilla": 5, "scheduler": 7, "grid": 9, "java": 10, "parallel": 11, "local": 12, "vm": 13}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
_LONGEST_NUMBER = 3
"""Digits of a universe; a longer number is none, and Python reads no number of thousands of digits."""

INDIVIDUAL = folded_set(
    (
        "ClusterId",
        "ProcId",
        "GlobalJobId",
        "PilotageJobId",
        "QDate",
        "EnteredCurrentStatus",
        "JobStartDate",
        "JobCurrentStartDate",
        "CompletionDate",
        "ExitCode",
        "ExitBySignal",
        "ExitSignal",
        "HoldReason",
        "HoldReasonCode",
        "HoldReasonSubCode",
        "LastHoldReason",
        "LastHoldReasonCode",
        "LastHoldReasonSubCode",
        "NumHoldsByReason",
        "RemoveReason",
        "RemoteHost",
        "NumJobMatches",
        "NumShadowStarts",
        "JobRunCount",
        "ServerTime",
        "MyCurrentTime",
    )
)
"""Folded names of attributes that are each job's own: who refers to them has to ask job by job."""

DEFAULTS: Mapping[str, AdValue] = MappingProxyType(
    {
        "JobStatus": 1,
        "JobUniverse": DEFAULT_UNIVERSE,
        "JobPrio": 0,
        "NumJobStarts": 0,
        "NumHolds": 0,
        "RemoteWallClockTime": 0.0,
        "CumulativeSuspensionTime": 0,
    }
)
"""What a job's ad says where nothing else is known: a job that waits and has nothing behind it."""

_FOLDED_DEFAULTS = {fold(name): value for name, value in DEFAULTS.items()}


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has behind it that expressions may look at when it waits again.

    Times are in seconds; `last_remote_host` "" = it has not been anywhere.
    """

    starts: int = 0
    holds: int = 0
    wall_clock_s: float = 0.0
    suspended_s: float = 0.0
    last_remote_host: str = ""

    def attributes(self) -> dict[str, AdValue]:
        """Return it as attributes."""
        told: dict[str, AdValue] = {
            "NumJobStarts": self.starts,
            "NumHolds": self.holds,
            "RemoteWallClockTime": self.wall_clock_s,
            "CumulativeSuspensionTime": int(self.suspended_s),
        }
        return told | ({"LastRemoteHost": self.last_remote_host} if self.last_remote_host else {})


NO_PAST = Past()
PAST = folded_set(Past(last_remote_host="slot1@node").attributes())
"""Folded names of the attributes that a `Past` tells."""


def past_of(job: JobRecord) -> Past:
    """Return what a job has behind it; while an attempt holds its lease, what was before that."""
    return Past(
        starts=job.starts,
        holds=job.holds,
        wall_clock_s=job.wall_clock.total_seconds(),
        suspended_s=job.suspended.total_seconds(),
        last_remote_host="" if job.is_leased or not job.node else host_text(job),
    )


def host_text(job: JobRecord) -> str:
    """Return the slot and the node of a job as HTCondor writes them, slot1@node."""
    return f"{job.slot}@{job.node}" if job.slot else job.node


def described(description: JobDescription) -> dict[str, AdValue]:
    """Return what a description says of its jobs, as spelled, without what every task queue tells anyway.

    Macros of an array stand as they were written.
    """
    own = _own_attributes(description)
    said: dict[str, AdValue] = {name: value for folded, (name, value) in own.items() if folded != "jobuniverse"}
    said |= {"Cmd": description.executable, "JobUniverse": _universe(own), "JobPrio": description.priority}
    texts = {
        "Arguments": description.arguments or None,
        "In": description.stdin,
        "Out": description.stdout,
        "Err": description.stderr,
        "JobBatchName": description.name or None,
    }
    said |= {name: text for name, text in texts.items() if text is not None}
    policy = description.policy
    policies = {
        "PeriodicHold": policy.periodic_hold,
        "PeriodicHoldReason": policy.periodic_hold_reason,
        "PeriodicHoldSubCode": policy.periodic_hold_subcode,
        "PeriodicRelease": policy.periodic_release,
        "PeriodicRemove": policy.periodic_remove,
    }
    return said | {name: Expression(text) for name, text in policies.items() if text is not None}


def _own_attributes(description: JobDescription) -> dict[str, tuple[str, Value]]:
    """Return those of the owner's attributes that an ad can hold, by folded name; of equal names the last counts."""
    return {
        folded: (name, value)
        for name, value in description.attributes.items()
        if (folded := fold(name)) not in RESERVED and _NAME.fullmatch(name)
    }


def _universe(own: Mapping[str, tuple[str, Value]]) -> Value:
    """Return the universe: the job's own JobUniverse, else what the submit file's command says."""
    _, said = own.get("jobuniverse") or own.get("universe") or ("", DEFAULT_UNIVERSE)
    if not isinstance(said, str) or has_macro(said):
        return said
    if universe_fault(said):
        return DEFAULT_UNIVERSE
    return int(said) if _NUMBER.fullmatch(said) else _UNIVERSES.get(fold(said), DEFAULT_UNIVERSE)


def universe_fault(said: str) -> str:
    """Return why a text can be no universe, with its macros filled in; "" = it may be one."""
    number = render_text(said, 0, 0)
    is_long = len(number) > _LONGEST_NUMBER and _NUMBER.fullmatch(number) is not None
    return f"a universe is a name or a number of at most {_LONGEST_NUMBER} digits" if is_long else ""


def expression_references(*texts: str) -> References:
    """Return what the expressions refer to together; an empty one says nothing."""
    found = References()
    for text in texts:
        if text:
            found |= references(text)
    return found


def has_macro(value: AdValue) -> bool:
    """Whether a value differs between the jobs of one array."""
    return isinstance(value, str) and render_text(value, 0, 0) != value


def is_default(folded: str, value: AdValue) -> bool:
    """Whether an ad says so much of its own accord; 5.0 and true are not 5 and 1."""
    default = _FOLDED_DEFAULTS.get(folded)
    return default is not None and type(value) is type(default) and value == default


def plain_values(attributes: Mapping[str, AdValue]) -> dict[str, Value]:
    """Return the literals among the attributes."""
    found: dict[str, Value] = {}
    for name, value in attributes.items():
        if isinstance(value, bool | int | float | str):
            found[name] = value
        elif isinstance(value, tuple):
            scalars = tuple(each for each in value if isinstance(each, bool | int | float | str))
            if len(scalars) == len(value):
                found[name] = scalars
    return found
