"""Why a queue has no pilot: none are sent, its batch system refuses them, they end, or they do not call."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Role, is_turn_of
from pilotage_server.core.jobs.record import queue_of_target
from pilotage_server.core.pilots.pilots import LONGEST_START
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leadership import active_terms
from pilotage_server.storage.pilots import FailedPilot, PilotCounts, count_overdue, count_pilots, last_failed
from pilotage_server.storage.routing import load_routers

_CE_TYPE = "CEType"


def pilot_problems(transaction: Transaction, queues: Mapping[QueueId, EffectiveQueue]) -> dict[QueueId, str]:
    """Return why no pilot is there to take jobs, for those of the queues of which a reason is known.

    Targets of routes need no site director.
    """
    session, now = transaction.session, transaction.now
    counts = count_pilots(session)
    idle = {each: counts.get(each, PilotCounts()) for each in queues if not counts.get(each, PilotCounts()).alive}
    if not idle:
        return {}
    overdue, failed = count_overdue(session, now - LONGEST_START), last_failed(session)
    directors = [term for term in active_terms(session, now) if is_turn_of(term.leadership.agent, Role.DIRECTOR)]
    targets = {queue_of_target(route.target) for each in load_routers(session) for route in each.table.routes}
    problems: dict[QueueId, str] = {}
    for queue, count in idle.items():
        reasons: list[str] = []
        if overdue.get(queue):
            reasons.append(_overdue_text(overdue[queue]))
        elif not count.arriving:
            ce_type = queues[queue].get(_CE_TYPE)
            served = any(term.has_queue(queue, str(ce_type.value) if ce_type else "") for term in directors)
            if not served and queue not in targets:
                reasons.append("no site director serves this queue")
            if last := failed.get(queue):
                reasons.append(_failed_text(last))
        if reasons:
            problems[queue] = "; ".join(reasons)
    return problems


def _failed_text(pilot: FailedPilot) -> str:
    if not pilot.was_submitted:
        return f"the batch system refused the last pilot: {pilot.reason}"
    return f"the last pilot ended before it called: {pilot.reason}"


def _overdue_text(pilots: int) -> str:
    they = "1 pilot runs" if pilots == 1 else f"{pilots} pilots run"
    return f"{they} in the batch system and cannot reach the server, or fail to start (see their output)"
