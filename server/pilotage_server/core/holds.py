"""Why jobs are held: HTCondor's codes, and what a job remembers of its holds.

Rules
-----
The numbers are those that HTCondor publishes (its manual, job ClassAd attributes, HoldReasonCode), so that
expressions written for it mean the same here. A hold counts when it begins; it is remembered as the last one
when it is lifted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum


class HoldCode(IntEnum):
    """HTCondor's HoldReasonCode, as far as jobs are held here."""

    USER_REQUEST = 1
    """Somebody who may do so held it."""
    JOB_POLICY = 3
    """Its own periodic_hold became true; the subcode is its owner's."""
    SUBMITTED_ON_HOLD = 15
    """It came in to be held."""
    STARTD_HELD_JOB = 21
    """The policy of the slot that evicted it wants it held; the subcode is the policy's."""
    SYSTEM_POLICY = 26
    """The operators' periodic_hold became true; the subcode is theirs."""
    JOB_DURATION_EXCEEDED = 46
    """It ran longer than its AllowedJobDuration."""


def hold_name(code: int) -> str:
    """Return the name that HTCondor has for a code, as in NumHoldsByReason."""
    try:
        words = HoldCode(code).name.split("_")
    except ValueError:
        return f"Code{code}"
    return "".join(word.capitalize() for word in words)


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold: HTCondor's code, what its cause adds to it, and why, for people."""

    code: int
    subcode: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldHistory:
    """What a job remembers of its holds: how often by code, the present one included, and the last that was lifted."""

    counts: tuple[tuple[int, int], ...] = ()
    last: Hold | None = None

    @property
    def count(self) -> int:
        """How often the job was held (NumHolds)."""
        return sum(count for _, count in self.counts)

    def by_reason(self) -> Mapping[str, int]:
        """Return how often for each reason (NumHoldsByReason)."""
        return {hold_name(code): count for code, count in self.counts}

    def begun(self, code: int) -> HoldHistory:
        """Return the history once the job is held for this code."""
        counts = dict(self.counts)
        counts[code] = counts.get(code, 0) + 1
        return replace(self, counts=tuple(sorted(counts.items())))

    def lifted(self, hold: Hold) -> HoldHistory:
        """Return the history once that hold is over."""
        return replace(self, last=hold)


NEVER_HELD = HoldHistory()


def history_to_json(history: HoldHistory) -> str:
    """Return the text in which a history is kept; "" = never held."""
    if history == NEVER_HELD:
        return ""
    last = history.last and [history.last.code, history.last.subcode, history.last.reason]
    return json.dumps({"counts": history.counts, "last": last}, separators=(",", ":"), ensure_ascii=False)


def history_from_json(text: str) -> HoldHistory:
    """Return the history that `history_to_json` wrote."""
    if not text:
        return NEVER_HELD
    kept = json.loads(text)
    counts = tuple((code, count) for code, count in kept["counts"])
    return HoldHistory(counts, Hold(*kept["last"]) if kept["last"] else None)
