"""What a batch system's word on a copy, and what the copy itself has written down, come to.

Rules
-----
A copy that wrote down its end has completed, unless its batch system had ended it. One whose batch system says that it
ended, and that wrote down no end, is gone. What its batch system does not know, and nothing is written of, is unknown:
nothing may be concluded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.core.copies.copy_scripts import CopyEnd, CopyStart
from pilotage_agents.router.route_edges import CopyState, CopyStatus


def copy_status(said: GlideinStatus, start: CopyStart | None, end: CopyEnd | None) -> CopyStatus:
    """Return where a copy is; `start` and `end` None = it has written down none that can be seen."""
    match said.state:
        case GlideinState.WAITING:
            return CopyStatus(CopyState.IDLE, said.reason)
        case GlideinState.RUNNING:
            return _with(CopyStatus(CopyState.RUNNING, said.reason), start)
        case GlideinState.ENDED:
            return _ended(said, start, end)
        case GlideinState.UNKNOWN:
            completed = end is not None and not end.was_told
            return _ended(said, start, end) if completed else CopyStatus(CopyState.UNKNOWN, said.reason)
        case _:
            assert_never(said.state)


def leaves_open(said: GlideinStatus, end: CopyEnd | None) -> bool:
    """Return whether a copy must have written down its end, and that is not to be seen yet."""
    return said.state is GlideinState.ENDED and said.exit_code == 0 and end is None


def _ended(said: GlideinStatus, start: CopyStart | None, end: CopyEnd | None) -> CopyStatus:
    if end is None:
        reason = f"it left no word of its end; the batch system says: {said.reason or 'ended'}"
        return _with(CopyStatus(CopyState.GONE, reason), start)
    began = end.time if start is None else start.time
    # Of what the batch system has ended, it does not say an exit code.
    is_gone = end.was_told and said.exit_code is None
    status = CopyStatus(
        CopyState.GONE if is_gone else CopyState.COMPLETED,
        f"it was told to end; the batch system says: {said.reason}" if is_gone else said.reason,
        exit_code=None if is_gone else end.exit_code,
        ended=end.time,
        cpu_s=end.cpu_s or 0.0,
        wall_s=max(0.0, (end.time - began).total_seconds()),
    )
    return _with(status, start)


def _with(status: CopyStatus, start: CopyStart | None) -> CopyStatus:
    return status if start is None else replace(status, node=start.node, started=start.time)
