"""Bans: operators take a site, a computing element or a queue out of use for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pilotage.bans import Ban
from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.folding import fold
from pilotage_server.core.ban_records import BanRecord, Node, find_node
from pilotage_server.core.identity import Identity
from pilotage_server.operations.world import World
from pilotage_server.storage import bans as stored
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class BanOrder:
    """What is to be banned, why, and until when (aware; None = until it is taken back)."""

    node: Node
    reason: str
    until: datetime | None = None


def load_bans(unit: Unit) -> tuple[Ban, ...]:
    """Return the bans that hold, as the matcher knows them."""
    return tuple(record.ban for record in stored.load_bans(unit.session, unit.now))


def list_bans(unit: Unit) -> tuple[BanRecord, ...]:
    """Return the bans that hold, in the order of what they name."""
    return stored.load_bans(unit.session, unit.now)


def ban(unit: Unit, world: World, identity: Identity, order: BanOrder) -> BanRecord:
    """Ban a node, in the place of the ban that it may have, and return the ban.

    Raises
    ------
    InvalidInputError
        For a node that the tree does not have, no reason, or an end that has passed.
    """
    _validate(order, unit.now)
    node = find_node(world.tree.queues, order.node)
    stored.remove_ended_bans(unit.session, unit.now)
    stored.remove_bans(unit.session, node)
    ordered = Ban(node.site, node.ce, node.queue, order.reason.strip(), order.until)
    record = stored.insert_ban(unit.session, ordered, identity.owner, unit.now)
    unit.after_commit(lambda: _change(world, lambda kept: not _is_of(kept, node), ordered))
    return record


def unban(unit: Unit, world: World, node: Node) -> tuple[BanRecord, ...]:
    """Take back the ban of exactly this node, which need not be in the tree any more, and return it.

    Raises
    ------
    NotFoundError
        When no such ban holds; one of a level above or below is another ban.
    """
    held = [record for record in list_bans(unit) if _is_of(record.ban, node)]
    if not held:
        path = "/".join(name for name in (node.site, node.ce, node.queue) if name)
        raise NotFoundError("ban of", path)
    for record in held:
        stored.remove_bans(unit.session, Node(record.ban.site, record.ban.ce, record.ban.queue))
    unit.after_commit(lambda: _change(world, lambda kept: not _is_of(kept, node)))
    return tuple(held)


def _validate(order: BanOrder, now: datetime) -> None:
    violations: list[Violation] = []
    if not order.reason.strip():
        violations.append(Violation("reason", "a ban says why, so that people can be told"))
    if order.until is not None and order.until <= now:
        violations.append(Violation("until", f"{order.until.isoformat()} has passed"))
    if violations:
        raise InvalidInputError(*violations)


def _is_of(ban_: Ban, node: Node) -> bool:
    return _folded(ban_.site, ban_.ce, ban_.queue) == _folded(node.site, node.ce, node.queue)


def _folded(*names: str | None) -> tuple[str, ...]:
    return tuple(fold(name or "") for name in names)


def _change(world: World, stays: Callable[[Ban], bool], *new: Ban) -> None:
    with world.lock:
        world.bans = (*(kept for kept in world.bans if stays(kept)), *new)
    world.reach_changed()
