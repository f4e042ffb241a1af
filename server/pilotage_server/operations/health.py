"""Circuit breakers of locations: opened by failures, listed for operators, held and closed by their orders.

On the wire a circuit breaker is a throttle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.text import did_you_mean, fold
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.health.black_holes import HealthRules, Location, LocationLevel, suspected_locations
from pilotage_server.core.health.evidence import AttemptGroup, Evidence, RunningFilter
from pilotage_server.core.health.throttles import (
    HoldOrder,
    Throttle,
    ThrottleChange,
    ThrottleState,
    held_throttle,
    opened,
    opened_locations,
    throttle_changes,
    tripped_locations,
)
from pilotage_server.core.identity import Identity
from pilotage_server.core.resources.bans import TreeNode, find_node
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import health as stored
from pilotage_server.storage.attempts import has_failures, load_ended, load_running
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import feed_bounds
from pilotage_server.storage.pilots import load_nodes


class HealthReview(NamedTuple):
    """The result of a review: changes of throttles, the evidence, and the position of the feed that it covers."""

    changes: Sequence[ThrottleChange]
    evidence: Evidence
    position: int


class HealthWatch:
    """The evidence of one server: the ends of attempts on all servers since its first review."""

    def __init__(self) -> None:
        self._position: int | None = None
        self._evidence = Evidence()

    def review(self, transaction: Transaction, state: ServerState) -> HealthReview:
        """Return the changes that follow from the ends since the last review; apply the changes of other servers."""
        throttles, rules = stored.load_throttles(transaction.session), state.rules.health
        _apply_throttles(state, throttles)
        opened = opened_locations(throttles)
        is_tried = any(each.state is ThrottleState.THROTTLED for each in throttles)
        _, newest = feed_bounds(transaction.session)
        ended = self._ended(transaction, rules, newest, is_wanted=is_tried or self._evidence.has_failures)
        evidence = self._evidence.with_ended(ended, opened, rules.interval, transaction.now)
        suspected = suspected_locations(evidence.counts(opened), tripped_locations(throttles), opened, rules)
        is_asked = rules.watch and (is_tried or suspected)
        wanted = RunningFilter.of_suspects(suspected, ended)
        running = load_running(transaction.session, rules.fast, transaction.now, wanted) if is_asked else []
        lasted = [each.lasted for each in running if each.lasted is not None]
        changes = throttle_changes(
            throttles, evidence.with_running(running, opened), (*ended, *lasted), rules, transaction.now
        )
        return HealthReview(changes, evidence, newest)

    def commit(self, look: HealthReview) -> None:
        """Accept a review; without this the next one covers the same events again."""
        self._position, self._evidence = look.position, look.evidence

    def _ended(
        self, transaction: Transaction, rules: HealthRules, newest: int, *, is_wanted: bool
    ) -> Sequence[AttemptGroup]:
        """Return the attempts that have ended since the last review; empty as long as nothing fails anywhere."""
        if self._position is None or not rules.watch:
            return ()
        if not is_wanted and not has_failures(transaction.session, self._position, newest):
            return ()
        return load_ended(transaction.session, self._position, newest, rules.fast)


def store_changes(
    transaction: Transaction, state: ServerState, changes: Iterable[ThrottleChange]
) -> list[ThrottleChange]:
    """Store the changes; return those that did not conflict with another server's."""
    made = [change for change in changes if _is_stored(transaction, change)]
    _publish_throttles(transaction, state)
    return made


def _is_stored(transaction: Transaction, change: ThrottleChange) -> bool:
    if change.new is None:
        return change.old is not None and stored.remove(transaction.session, change.old)
    if change.old is None:
        return stored.insert(transaction.session, change.new)
    return stored.change(transaction.session, change.old, change.new)


def list_health(transaction: Transaction) -> tuple[Throttle, ...]:
    """Return all throttles, also those of locations that were opened recently."""
    return stored.load_throttles(transaction.session)


class HeldPlace(NamedTuple):
    """The throttle of a held location, and warnings for the operator."""

    throttle: Throttle
    warnings: tuple[str, ...] = ()


def hold_place(transaction: Transaction, state: ServerState, identity: Identity, ordered: HoldOrder) -> HeldPlace:
    """Hold a location, so that it gets no job; the hold replaces its present throttle.

    A node may be held before any pilot has reported from it.

    Raises
    ------
    InvalidInputError
        For a location that the tree does not have, or an end in the past.
    """
    if ordered.until is not None and ordered.until <= transaction.now:
        raise InvalidInputError(Violation("until", f"{ordered.until.isoformat()} has passed"))
    location = _in_tree_spelling(state, ordered.location)
    warnings = _unknown_node_warnings(transaction, state, location) if location.level is LocationLevel.NODE else ()
    closed = held_throttle(ordered._replace(location=location), transaction.now, state.rules.health)
    before = _throttle_of(transaction, location)
    stored.put(transaction.session, closed)
    _record(transaction, identity, before, closed)
    _publish_throttles(transaction, state)
    return HeldPlace(closed, warnings)


def _unknown_node_warnings(transaction: Transaction, state: ServerState, location: Location) -> tuple[str, ...]:
    """Return a warning when no pilot has reported this node."""
    known = {fold(node) for node in load_nodes(transaction.session, location.site)}
    if location.node in known:
        return ()
    if any((fold(queue.site), fold(queue.ce)) == (fold(location.site), location.node) for queue in state.tree.queues):
        raise InvalidInputError(Violation("node", f"{location} is a CE and no node; name one of its queues"))
    unknown = f"no pilot has reported a node {location.node} at {location.site}{did_you_mean(location.node, known)}"
    return (f"{unknown}; it is held for when one comes",)


def open_place(transaction: Transaction, state: ServerState, identity: Identity, location: Location) -> Throttle:
    """Give a location jobs again, as after enough successful probes, and return its throttle, now opened.

    Raises
    ------
    NotFoundError
        When the location is not throttled; locations within it or around it have their own throttles.
    """
    found = _throttle_of(transaction, location)
    if found is None or not found.is_tripped:
        raise NotFoundError("throttle of", f"{location.level} {location}")
    now_open = opened(found, transaction.now, reason="an operator opened it", by=identity.owner)
    stored.put(transaction.session, now_open)
    _record(transaction, identity, found, now_open)
    _publish_throttles(transaction, state)
    return now_open


def _throttle_of(transaction: Transaction, location: Location) -> Throttle | None:
    wanted = location.key.casefold()
    found = (each for each in stored.load_throttles(transaction.session) if each.location.key.casefold() == wanted)
    return next(found, None)


def _record(transaction: Transaction, identity: Identity, before: Throttle | None, after: Throttle) -> None:
    """Store in the audit what an operator does with a location."""
    changed = line_difference([_described(before)] if before else [], [_described(after)])
    record_change(transaction, identity, AuditKind.HEALTH, after.location.key, difference=changed)


def _described(throttle: Throttle) -> str:
    until = f" until {throttle.next_trial:%Y-%m-%d %H:%M:%S} UTC" if throttle.next_trial else ""
    return f"{throttle.state.value}{until}: {throttle.reason}"


def _in_tree_spelling(state: ServerState, location: Location) -> Location:
    """Return the location in the spelling of the tree, which has sites and queues but no nodes."""
    match location.level:
        case LocationLevel.QUEUE:
            found = find_node(state.tree.queues, TreeNode(location.site, location.ce, location.queue))
        case LocationLevel.SITE | LocationLevel.NODE:
            found = find_node(state.tree.queues, TreeNode(location.site))
    return Location(location.level, found.site, found.ce or "", found.queue or "", fold(location.node))


def _publish_throttles(transaction: Transaction, state: ServerState) -> None:
    """Apply the present throttles to the server state after the commit."""
    transaction.after_commit(partial(_apply_throttles, state, stored.load_throttles(transaction.session)))


def _apply_throttles(state: ServerState, throttles: Iterable[Throttle]) -> None:
    """Set the throttles of the server state; notify the listeners when a location is open again."""
    closed = tripped_locations(throttles)
    with state.lock:
        before, state.throttles = state.throttles, closed
    if before.keys() - closed.keys():
        state.publish_access_change()
