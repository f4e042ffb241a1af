"""The plug: a payload that fails too fast keeps its slot until it would have run for a while.

Rules
-----
A node on which every job fails at once would be free for the next one at once (the "plug script" of J. Phys.: Conf.
Ser. 219 062035). Only what a payload did by itself is plugged: nothing that was ordered, nothing that a limit ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage_pilot.core.events import PayloadExited
from pilotage_pilot.core.moment import Moment


@dataclass(frozen=True, slots=True)
class Plug:
    """How a payload has failed, and until when, on the boot clock, that is kept back with its slot."""

    exited: PayloadExited
    until_boot_s: float


def plug_of(exited: PayloadExited, started: Moment | None, plug_s: float) -> Plug | None:
    """Return the plug of a payload that has come to its end by itself; None = it has not failed."""
    has_failed = exited.exit_code != 0 or exited.signal is not None
    if started is None or not has_failed or exited.limit:
        return None
    return Plug(exited, started.boot_s + plug_s)
