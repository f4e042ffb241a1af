"""Places that get no more than single jobs: found by their failures, shown to operators and changed by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.folding import fold
from pilotage_server.core.ban_records import Node, find_node
from pilotage_server.core.evidence import Attempts, Evidence, Wanted
from pilotage_server.core.health import HealthRules, Level, Place, suspects
from pilotage_server.core.throttles import (
    Change,
    ClosedBy,
    Throttle,
    ThrottleState,
    closed_places,
    hold,
    opened,
    opened_places,
    review,
)
from pilotage_server.operations.world import World
from pilotage_server.storage import throttles as stored
from pilotage_server.storage.ended_attempts import has_failures, load_ended, load_running
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import feed_bounds
from pilotage_server.storage.pilots import load_nodes


class Look(NamedTuple):
    """What a look has found: what is to be changed, what is known now, and up to which position of the feed."""

    changes: Sequence[Change]
    evidence: Evidence
    position: int


class HealthWatch:
    """What one server has seen of the attempts that end, on whichever server, since it began to look."""

    def __init__(self) -> None:
        self._position: int | None = None
        self._evidence = Evidence()

    def look(self, unit: Unit, world: World) -> Look:
        """Return what is to be changed by what has ended since the last look; take in what other servers changed."""
        throttles, rules = stored.load_throttles(unit.session), world.rules.health
        _take_in(world, throttles)
        opened = opened_places(throttles)
        is_tried = any(each.state is ThrottleState.THROTTLED for each in throttles)
        _, newest = feed_bounds(unit.session)
        ended = self._ended(unit, rules, newest, is_wanted=is_tried or self._evidence.has_failures)
        evidence = self._evidence.after(ended, opened, rules.interval, unit.now)
        suspected = suspects(evidence.counts(opened), closed_places(throttles), opened, rules)
        is_asked = rules.watch and (is_tried or suspected)
        wanted = Wanted.by(suspected, ended)
        running = load_running(unit.session, rules.fast, unit.now, wanted) if is_asked else []
        lasted = [each.lasted for each in running if each.lasted is not None]
        changes = review(throttles, evidence.beside(running, opened), (*ended, *lasted), rules, unit.now)
        return Look(changes, evidence, newest)

    def keep(self, look: Look) -> None:
        """Go on from what a look has found; without that, the next one sees the same again."""
        self._position, self._evidence = look.position, look.evidence

    def _ended(self, unit: Unit, rules: HealthRules, newest: int, *, is_wanted: bool) -> Sequence[Attempts]:
        """Return what has ended since the last look; as long as nothing fails anywhere, nobody wants to know."""
        if self._position is None or not rules.watch:
            return ()
        if not is_wanted and not has_failures(unit.session, self._position, newest):
            return ()
        return load_ended(unit.session, self._position, newest, rules.fast)


def store_changes(unit: Unit, world: World, changes: Iterable[Change]) -> list[Change]:
    """Store the changes, and return those in which no other server was quicker."""
    made = [change for change in changes if _is_stored(unit, change)]
    _tell(unit, world)
    return made


def _is_stored(unit: Unit, change: Change) -> bool:
    if change.new is None:
        return change.old is not None and stored.remove(unit.session, change.old)
    if change.old is None:
        return stored.insert(unit.session, change.new)
    return stored.change(unit.session, change.old, change.new)


def list_health(unit: Unit) -> tuple[Throttle, ...]:
    """Return what is known of places that were found out or closed, also of those that were opened lately."""
    return stored.load_throttles(unit.session)


class HeldPlace(NamedTuple):
    """The throttle of a place that is held, and what the operator should know."""

    throttle: Throttle
    warnings: tuple[str, ...] = ()


def hold_place(unit: Unit, world: World, ordered: ClosedBy) -> HeldPlace:
    """Let a place get no job, in the place of what is known of it.

    A node may be held before any pilot has been there.

    Raises
    ------
    InvalidInputError
        For a place that the tree does not have, or an end that has passed.
    """
    if ordered.until is not None and ordered.until <= unit.now:
        raise InvalidInputError(Violation("until", f"{ordered.until.isoformat()} has passed"))
    place = _in_the_tree(world, ordered.place)
    warnings = _doubts(unit, world, place) if place.level is Level.NODE else ()
    closed = hold(ordered._replace(place=place), unit.now, world.rules.health)
    stored.put(unit.session, closed)
    _tell(unit, world)
    return HeldPlace(closed, warnings)


def _doubts(unit: Unit, world: World, place: Place) -> tuple[str, ...]:
    """Return what speaks for it that there is no such node."""
    known = {fold(node) for node in load_nodes(unit.session, place.site)}
    if place.node in known:
        return ()
    if any((fold(queue.site), fold(queue.ce)) == (fold(place.site), place.node) for queue in world.tree.queues):
        raise InvalidInputError(Violation("node", f"{place} is a CE and no node; name one of its queues"))
    near = get_close_matches(place.node, sorted(known), n=1)
    hint = f"; the nearest name there is {near[0]}" if near else ""
    return (f"no pilot has told of a node {place.node} at {place.site}{hint}; it is held for when one comes",)


def open_place(unit: Unit, world: World, place: Place, by: str) -> Throttle:
    """Let a place get jobs again, as if it had proved well, and return what was its throttle, now open.

    Raises
    ------
    NotFoundError
        When it is not closed; a throttle of a place within it or around it is another one.
    """
    wanted = place.key.casefold()
    found = [each for each in stored.load_throttles(unit.session) if each.place.key.casefold() == wanted]
    if not found or not found[0].is_closed:
        raise NotFoundError("throttle of", f"{place.level} {place}")
    now_open = opened(found[0], unit.now, reason="an operator opened it", by=by)
    stored.put(unit.session, now_open)
    _tell(unit, world)
    return now_open


def _in_the_tree(world: World, place: Place) -> Place:
    """Return the place in the spelling of the tree, which knows no nodes but their sites."""
    match place.level:
        case Level.QUEUE:
            found = find_node(world.tree.queues, Node(place.site, place.ce, place.queue))
        case Level.SITE | Level.NODE:
            found = find_node(world.tree.queues, Node(place.site))
    return Place(place.level, found.site, found.ce or "", found.queue or "", fold(place.node))


def _tell(unit: Unit, world: World) -> None:
    """Let the memory know after the commit what the throttles are now."""
    unit.after_commit(partial(_take_in, world, stored.load_throttles(unit.session)))


def _take_in(world: World, throttles: Iterable[Throttle]) -> None:
    """Know the throttles; where a place is open again, those who wait may look."""
    closed = closed_places(throttles)
    with world.lock:
        before, world.throttles = world.throttles, closed
    if before.keys() - closed.keys():
        world.reach_changed()
