"""The plug: a payload that fails too fast keeps its slot until it would have run for a while.

Rules
-----
A node on which every job fails at once would be free for the next one at once (the "plug script" of J. Phys.: Conf.
Ser. 219 062035). Only what a payload did by itself is plugged: nothing that was ordered, nothing that a limit ended.
The server is told at once that it has failed; its end comes later.
"""

from __future__ import annotations

from pilotage_pilot.core.events import PayloadExited
from pilotage_pilot.core.moment import Moment


def plug_end_boot_s(exited: PayloadExited, started: Moment | None, plug_s: float) -> float | None:
    """Return until when a payload that has come to its end by itself keeps its slot; None = it has not failed."""
    has_failed = exited.exit_code != 0 or exited.signal is not None
    if started is None or not has_failed or exited.limit:
        return None
    return started.boot_s + plug_s
