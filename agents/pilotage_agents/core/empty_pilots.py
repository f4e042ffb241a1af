"""How many pilots a queue is trusted with whose pilots come back empty: ever fewer, then one at a time, ever rarer.

Rules
-----
A pilot comes back empty when it never ran a job and ends for want of work or of time, or is ended by its batch
system: what was demanded did not go to it, whatever the reason. Each sending in a row that came back so halves what is
sent; when nothing is left one pilot goes on trial, after a pause that doubles. One that runs a job restores everything.
The evidence is the server's, so that a director remembers nothing and every copy of it sees the same.
Source: what operators of pilots complain of, DIRAC#778 ("pilots find no match and die: want back-off and a throttle
driven by no-match reports"), DIRAC#131, HyperQueue#248 and #937.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pilotage_agents.core.backoff import backoff

FIRST_PAUSE = timedelta(minutes=1)
"""So long after the last empty pilot the first one on trial goes."""

LONGEST_PAUSE = timedelta(minutes=20)
"""The longest pause between a pilot that came back and the next on trial: new work waits for it at most so long."""


@dataclass(frozen=True, slots=True)
class EmptyReturns:
    """Pilots of a queue that came back empty, none that was sent after them having run a job.

    `sendings` is in how many sendings in a row, `last_ago` how long ago the last of them ended.
    """

    pilots: int = 0
    sendings: int = 0
    last_ago: timedelta = timedelta(0)


NONE_EMPTY = EmptyReturns()
"""No pilot came back empty, or one that was sent after them has run a job."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How many pilots without work a queue may have, and in words why not more."""

    pilots: int
    words: str


def trust(pilots: int, empty: EmptyReturns) -> Trust:
    """Return what is left of the trust in a queue that would be let have so many `pilots` without work."""
    if empty.sendings == 0:
        return Trust(pilots, f"no more than {pilots} may be without work until more are at work")
    left = pilots >> empty.sendings
    if left:
        return Trust(left, f"no more than {left} may be without work, as {_empty(empty)}")
    trials = empty.sendings - pilots.bit_length() + 1
    pause = backoff(trials, FIRST_PAUSE, LONGEST_PAUSE) - empty.last_ago
    if pause <= timedelta(0):
        return Trust(1, f"one pilot on trial, as {_empty(empty)}")
    return Trust(0, f"{_empty(empty)}; the next one on trial goes in {pause.total_seconds():.0f} s")


def _empty(empty: EmptyReturns) -> str:
    if empty.pilots == 1:
        return "the last pilot came back without having run a job"
    return f"the last {empty.pilots} pilots came back without having run a job"
