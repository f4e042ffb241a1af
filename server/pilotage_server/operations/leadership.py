"""Leadership of agents: taken and released by replicas, and required for changes that only the leader may make."""

from __future__ import annotations

from datetime import timedelta

from pilotage.errors import LeadershipLostError
from pilotage.values.leadership import (
    EVERY_SERVED_QUEUE,
    UNKNOWN_CONDITION,
    AgentCondition,
    Leadership,
    LeadershipAnswer,
    ServedQueues,
)
from pilotage_server.core.identity import Identity, check_turn
from pilotage_server.core.leadership import LeadershipTerm
from pilotage_server.storage import leadership as stored
from pilotage_server.storage.database.transaction import Transaction


def take_leadership(
    transaction: Transaction,
    leadership: Leadership,
    length: timedelta,
    host: str,
    serves: ServedQueues = EVERY_SERVED_QUEUE,
    bounds: tuple[str, ...] = (),
    condition: AgentCondition = UNKNOWN_CONDITION,
) -> LeadershipAnswer:
    """Give leadership to a replica for `length` from now, unless another replica has it.

    `serves` are the queues that it acts on, `bounds` patterns of those that its token is bound to.
    """
    ago = condition.succeeded_ago
    wanted = LeadershipTerm(
        leadership,
        host,
        transaction.now + length,
        serves,
        bounds,
        release=condition.release,
        succeeded=None if ago is None else transaction.now - ago,
        fault=condition.fault,
    )
    if stored.take(transaction.session, wanted, transaction.now):
        return LeadershipAnswer(True, host, length)
    term = stored.find(transaction.session, leadership.agent)
    return (
        LeadershipAnswer(False, term.host, term.remaining(transaction.now))
        if term
        else LeadershipAnswer(False, "", timedelta(0))
    )


def release_leadership(transaction: Transaction, leadership: Leadership) -> None:
    """End the term of a replica, so that another one can take over at once."""
    stored.release(transaction.session, leadership)


def lock_leadership(transaction: Transaction, leadership: Leadership | None) -> None:
    """Lock the term of a replica until the transaction ends, so that all its changes fall in the term.

    None = the caller is no replica of an agent; nothing is locked.

    Raises
    ------
    LeadershipLostError
        The replica is not the leader.
    """
    if leadership is None:
        return
    _check(transaction, leadership, stored.lock(transaction.session, leadership.agent))


def lock_leadership_of(transaction: Transaction, identity: Identity, leadership: Leadership | None) -> None:
    """Lock the term of a replica as `lock_leadership`; raises PermissionDeniedError for the turn of another agent."""
    if leadership is not None:
        check_turn(identity, leadership.agent)
    lock_leadership(transaction, leadership)


def check_leadership(transaction: Transaction, leadership: Leadership) -> None:
    """Raise LeadershipLostError unless the replica is the leader now; nothing is locked."""
    _check(transaction, leadership, stored.find(transaction.session, leadership.agent))


def _check(transaction: Transaction, leadership: Leadership, term: LeadershipTerm | None) -> None:
    if term is None or term.leadership != leadership or not term.remaining(transaction.now):
        raise LeadershipLostError(leadership.agent)
