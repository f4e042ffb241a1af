"""Leadership of agents: taken and released by replicas, and required for changes that only the leader may make."""

from __future__ import annotations

from datetime import timedelta

from pilotage.errors import LeadershipLostError
from pilotage.values.leadership import (
    EVERY_SERVED_QUEUE,
    NO_STATUS,
    AgentStatus,
    Leadership,
    LeadershipAnswer,
    ServedQueues,
)
from pilotage_server.core.identity import Identity, check_turn
from pilotage_server.core.leadership import AgentReplica, AgentState, LeadershipTerm, next_call_due
from pilotage_server.storage import leadership as stored
from pilotage_server.storage.database.transaction import Transaction


def take_leadership(
    transaction: Transaction,
    leadership: Leadership,
    length: timedelta,
    host: str,
    serves: ServedQueues = EVERY_SERVED_QUEUE,
    bounds: tuple[str, ...] = (),
    status: AgentStatus = NO_STATUS,
    owner: str = "",
) -> LeadershipAnswer:
    """Give leadership to a replica for `length` from now, unless another replica has it, and record the replica.

    `serves` are the queues that it acts on, `bounds` patterns of those that its token is bound to, and `owner` is the
    owner that the token names.
    """
    now = transaction.now
    due = next_call_due(now, length, status)
    stored.save_replica(
        transaction.session, AgentReplica(leadership, host, owner, now, now, due, serves, bounds, status)
    )
    wanted = LeadershipTerm(leadership, host, now + length, serves, bounds)
    if stored.take(transaction.session, wanted, transaction.now):
        return LeadershipAnswer(True, host, length)
    term = stored.find(transaction.session, leadership.agent)
    return (
        LeadershipAnswer(False, term.host, term.remaining(transaction.now))
        if term
        else LeadershipAnswer(False, "", timedelta(0))
    )


def release_leadership(transaction: Transaction, leadership: Leadership) -> None:
    """End the term of a replica, so that another one can take over at once, and record that it has ended."""
    stored.release(transaction.session, leadership)
    stored.end_replica(transaction.session, leadership, transaction.now)


def list_agents(transaction: Transaction) -> list[tuple[AgentReplica, AgentState]]:
    """Return the replicas of all agents with their states, by agent, the leader first and the ended ones last."""
    leaders = {term.leadership.agent: term for term in stored.active_terms(transaction.session, transaction.now)}
    found = [
        (each, each.state(transaction.now, leaders.get(each.leadership.agent)))
        for each in stored.load_replicas(transaction.session)
    ]
    order = list(AgentState)
    return sorted(found, key=lambda pair: (pair[0].leadership.agent, order.index(pair[1])))


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
