"""One moment, on the two clocks that a pilot lives by.

Rules
-----
What people read carries `utc`, which may jump; what is counted (leases, limits, time-outs) is counted on
`boot_s`, which does not, and which goes on while the machine sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as the wall clock (aware, UTC) and as seconds since the machine's boot."""

    utc: datetime
    boot_s: float
