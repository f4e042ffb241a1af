"""Pilots in the database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, func, insert, literal_column, or_, select
from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.node_settings import NodeId
from pilotage_server.core.pilots import ALIVE, ARRIVING, OVER, PilotRecord, PilotState
from pilotage_server.storage import bulk
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import TAKEN

PILOTS = metadata.tables["pilots"]

IS_ALIVE = PILOTS.c.state.in_(sorted(state.value for state in ALIVE))
IS_ARRIVING = PILOTS.c.state.in_(sorted(state.value for state in ARRIVING))
IS_PRESENT = PILOTS.c.state.in_(sorted(state.value for state in ALIVE | ARRIVING))
IS_OVER = PILOTS.c.state.in_(sorted(state.value for state in OVER))

_MOST_LISTED = 100_000


@dataclass(frozen=True, slots=True)
class PilotCounts:
    """How many pilots of a queue are on their way, and how many live."""

    arriving: int = 0
    alive: int = 0


@dataclass(frozen=True, slots=True)
class NewPilot:
    """A pilot that is being registered."""

    stamp: str
    queue: QueueId
    vos: tuple[str, ...]
    registered_by: str


def insert_pilots(session: Session, new: Iterable[NewPilot], now: datetime) -> None:
    """Store new pilots, not heard of yet."""
    rows = [
        {
            "stamp": pilot.stamp,
            "site": pilot.queue.site,
            "ce": pilot.queue.ce,
            "queue": pilot.queue.queue,
            "vos_json": json.dumps(pilot.vos, separators=(",", ":")),
            "state": PilotState.REGISTERED.value,
            "reason": "",
            "glidein_id": "",
            "node": "",
            "node_json": "",
            "drain_reason": "",
            "drain_evicts": False,
            "jobs_ended": 0,
            "registered": now,
            "registered_by": pilot.registered_by,
        }
        for pilot in new
    ]
    session.connection().execute(insert(PILOTS), rows)


def load_pilots(session: Session, stamps: Iterable[str]) -> dict[str, PilotRecord]:
    """Return the pilots by stamp; those that there are not are left out."""
    return {row[0]: _known_record(tuple(row)) for row in bulk.rows(session, _BY_STAMP, sorted(set(stamps)))}


_COLUMNS = (
    *("stamp", "site", "ce", "queue", "vos_json", "state", "reason", "glidein_id", "node"),
    *("drain_reason", "drain_evicts", "jobs_ended", "registered", "glidein_seen", "last_seen", "ends"),
)
_OWES_ANSWERS = f"EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = stamp AND {TAKEN})"  # noqa: S608 - a constant
_RECORD: tuple[ColumnElement[Any], ...] = (*(PILOTS.c[name] for name in _COLUMNS), literal_column(_OWES_ANSWERS))
_BY_STAMP = f"SELECT {', '.join(_COLUMNS)}, {_OWES_ANSWERS} FROM pilots WHERE stamp = ANY(?)"  # noqa: S608 - a constant
_REMEMBERED = 20_000


def _record(row: tuple[Any, ...]) -> PilotRecord:
    """Return the pilot of a row of _COLUMNS and _OWES_ANSWERS."""
    stamp, site, ce, queue, vos, state, reason, glidein_id, node, drain_reason, evicts, ended, *times, owes = row
    registered, glidein_seen, last_seen, ends = (None if time is None else bulk.time_of(time) for time in times)
    assert registered is not None, "every pilot was registered"
    return PilotRecord(
        stamp=stamp,
        queue=QueueId(site, ce, queue),
        vos=tuple(json.loads(vos)),
        state=PilotState(state),
        reason=reason,
        glidein_id=glidein_id,
        node=node,
        drain_reason=drain_reason,
        drain_evicts=bool(evicts),
        jobs_ended=ended,
        registered=registered,
        glidein_seen=glidein_seen,
        last_seen=last_seen,
        ends=ends,
        owes_answers=bool(owes),
    )


_known_record = lru_cache(maxsize=_REMEMBERED)(_record)
"""The same for those who ask again and again for the same pilots, most of whose rows have not changed."""


def list_pilots(
    session: Session, queue: QueueId | None, *, ended: bool, lost_since: datetime | None = None
) -> tuple[PilotRecord, ...]:
    """Return the pilots of a queue (None = of all), the newest first.

    Those that are over only where `ended`, but for those that had come and were lost after `lost_since`.
    """
    query = select(*_RECORD)
    if queue is not None:
        query = query.where(at_queue(queue))
    if not ended:
        query = query.where(IS_PRESENT if lost_since is None else IS_PRESENT | _was_lost(lost_since))
    rows = session.execute(query.order_by(PILOTS.c.registered.desc(), PILOTS.c.stamp).limit(_MOST_LISTED))
    return tuple(_record(tuple(row)) for row in rows)


def _was_lost(since: datetime) -> ColumnElement[bool]:
    had_come = PILOTS.c.last_seen.is_not(None)
    return had_come & (PILOTS.c.state == PilotState.LOST.value) & (PILOTS.c.ended >= since)


def load_silent(session: Session, heard_before: datetime, told_before: datetime) -> tuple[PilotRecord, ...]:
    """Return the pilots that were last heard, or never and last told of (registered, or seen), before these times.

    Each kind of silence has its own length: who asks judges those that are returned.
    """
    silent = IS_ALIVE & (PILOTS.c.last_seen < heard_before)
    told = func.coalesce(PILOTS.c.glidein_seen, PILOTS.c.registered)
    never_came = IS_ARRIVING & (told < told_before)
    rows = session.execute(select(*_RECORD).where(or_(silent, never_came)).order_by(PILOTS.c.stamp))
    return tuple(_record(tuple(row)) for row in rows)


def count_pilots(session: Session) -> dict[QueueId, PilotCounts]:
    """Return the pilots of every queue that has any, those that are over not counted."""
    columns = (PILOTS.c.site, PILOTS.c.ce, PILOTS.c.queue, PILOTS.c.state)
    counts: dict[QueueId, PilotCounts] = {}
    for site, ce, name, state, count in session.execute(
        select(*columns, func.count()).where(IS_PRESENT).group_by(*columns)
    ):
        queue = QueueId(site, ce, name)
        before = counts.get(queue, PilotCounts())
        more = PilotCounts(arriving=count) if PilotState(state) in ARRIVING else PilotCounts(alive=count)
        counts[queue] = PilotCounts(before.arriving + more.arriving, before.alive + more.alive)
    return counts


def change_pilots(session: Session, stamps: Iterable[str], values: Mapping[str, Any]) -> None:
    """Give pilots these columns."""
    kept = [bulk.moment(session, value) if isinstance(value, datetime) else value for value in values.values()]
    bulk.once(session, _change(tuple(values)), *kept, sorted(stamps))


@lru_cache(maxsize=64)
def _change(names: tuple[str, ...]) -> str:
    return f"UPDATE pilots SET {', '.join(f'{name} = ?' for name in names)} WHERE stamp = ANY(?)"  # noqa: S608 - names of ours


_SUBMITTED = f"""
    UPDATE pilots SET state = '{PilotState.SUBMITTED.value}', reason = ?, ended = NULL WHERE stamp = ? AND state = ?
"""  # noqa: S608 - a constant


def put_on_its_way(session: Session, pilot: PilotRecord, reason: str) -> None:
    """Let a pilot be SUBMITTED, unless somebody has moved it since it was loaded: it may have come, or ended."""
    bulk.once(session, _SUBMITTED, reason, pilot.stamp, pilot.state.value)


_HEARD = f"""
    UPDATE pilots SET state = ?, reason = '', ended = NULL, last_seen = ? WHERE stamp = ?
        AND state <> '{PilotState.ENDED.value}'
"""  # noqa: S608 - a constant


def note_heard(session: Session, stamp: str, state: PilotState, now: datetime) -> None:
    """Let a pilot that is heard be in this state, unless somebody has let it end since it was loaded."""
    bulk.once(session, _HEARD, state.value, bulk.moment(session, now), stamp)


def count_ended_jobs(session: Session, counts: Mapping[str, int]) -> None:
    """Add to the attempts that pilots, given by their stamps, have brought to an end."""
    more = "UPDATE pilots SET jobs_ended = jobs_ended + ? WHERE stamp = ?"
    bulk.many(session, more, [(count, stamp) for stamp, count in sorted(counts.items())])


def node_text(session: Session, stamp: str) -> str | None:
    """Return what the pilot last said of its node, as it was stored; None = there is no such pilot."""
    return session.execute(select(PILOTS.c.node_json).where(PILOTS.c.stamp == stamp)).scalar_one_or_none()


def without_node(session: Session, stamps: Collection[str]) -> set[str]:
    """Return those of these pilots that have never told anything of their nodes."""
    bare = "SELECT stamp FROM pilots WHERE stamp = ANY(?) AND node_json = ''"
    return {row[0] for row in bulk.rows(session, bare, list(stamps))} if stamps else set()


@dataclass(frozen=True, slots=True)
class NodePilot:
    """A living pilot and the node that it is on; `node_json` is what it last said of it."""

    stamp: str
    node: NodeId
    node_json: str


def load_node_pilots(session: Session, nodes: Iterable[NodeId]) -> tuple[NodePilot, ...]:
    """Return the living pilots on these nodes, by stamp."""
    wanted = set(nodes)
    names = sorted({node.node for node in wanted})
    rows = [
        row
        for chunk in chunks(names)
        for row in session.execute(select(PILOTS).where(IS_ALIVE, PILOTS.c.node.in_(chunk)).order_by(PILOTS.c.stamp))
    ]
    found = (NodePilot(row.stamp, NodeId(row.site, row.node), row.node_json) for row in rows)
    return tuple(pilot for pilot in found if pilot.node in wanted)


def load_nodes(session: Session, site: str) -> list[str]:
    """Return the names of the nodes of a site that any pilot there has told, as far as is known."""
    names = select(PILOTS.c.node).where(PILOTS.c.site == site, PILOTS.c.node != "").distinct()
    return list(session.execute(names).scalars())


def at_queue(queue: QueueId) -> Any:
    """Return the condition that a pilot is of this queue."""
    return (PILOTS.c.site == queue.site) & (PILOTS.c.ce == queue.ce) & (PILOTS.c.queue == queue.queue)
