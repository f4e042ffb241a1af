"""Pilots in the database, with their slots, the settings of their nodes, and pilots that came back empty."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, func, insert, literal_column, or_, select, update
from sqlmodel import Session

from pilotage.resources.tree import QueueId
from pilotage.values.isolation import Isolation
from pilotage.values.pilots import PilotState
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.diagnosis import PilotFacts
from pilotage_server.core.matching.demand import EmptyPilot
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings, Setting, node_facts, slot_from_json, slot_to_json
from pilotage_server.core.pilots.pilots import ALIVE, ARRIVING, OVER, PilotFilter, PilotRecord, SlotInfo
from pilotage_server.core.pilots.slot_counts import PilotSlots
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.tables import CREDENTIAL_ENDS, EMPTY, HAS_QUEUE_SET, TAKEN, UNREPORTED, metadata
from pilotage_server.storage.jobs import chunks

PILOTS = metadata.tables["pilots"]

IS_ALIVE = PILOTS.c.state.in_(sorted(state.value for state in ALIVE))
IS_ARRIVING = PILOTS.c.state.in_(sorted(state.value for state in ARRIVING))
IS_PRESENT = PILOTS.c.state.in_(sorted(state.value for state in ALIVE | ARRIVING))
IS_OVER = PILOTS.c.state.in_(sorted(state.value for state in OVER))

_MAX_LISTED = 100_000


@dataclass(frozen=True, slots=True)
class PilotCounts:
    """The numbers of arriving and of living pilots of a queue."""

    arriving: int = 0
    alive: int = 0


@dataclass(frozen=True, slots=True)
class NewPilot:
    """A pilot that is being registered."""

    stamp: str
    queue: QueueId
    vos: tuple[str, ...]
    registered_by: str
    queue_set: tuple[str, ...] = ()


def insert_pilots(session: Session, new: Iterable[NewPilot], now: datetime) -> None:
    """Store new pilots, which have not made contact yet."""
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
            "queue_set_json": _set_json(pilot.queue_set),
        }
        for pilot in new
    ]
    session.connection().execute(insert(PILOTS), rows)


def _set_json(queue_set: Sequence[str]) -> str:
    return json.dumps(queue_set) if queue_set else ""


def load_pilots(session: Session, stamps: Iterable[str]) -> dict[str, PilotRecord]:
    """Return the existing ones of these pilots, by stamp."""
    return {row[0]: _known_record(tuple(row)) for row in sql.rows(session, _BY_STAMP, sorted(set(stamps)))}


_COLUMNS = (
    *("stamp", "site", "ce", "queue", "vos_json", "state", "reason", "glidein_id", "node", "isolation"),
    *("nonce_hash", "alarm"),
    *("drain_reason", "drain_evicts", "jobs_ended"),
    *("registered", "glidein_seen", "glidein_started", "last_seen", "ends", "credential_ends", "report_requested"),
    "queue_set_json",
)
_OWES_ANSWERS = f"EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = stamp AND {TAKEN})"  # noqa: S608 - a constant
_RECORD: tuple[ColumnElement[Any], ...] = (*(PILOTS.c[name] for name in _COLUMNS), literal_column(_OWES_ANSWERS))
_BY_STAMP = f"SELECT {', '.join(_COLUMNS)}, {_OWES_ANSWERS} FROM pilots WHERE stamp = ANY(?)"  # noqa: S608 - a constant
_REMEMBERED = 20_000


def _record(row: tuple[Any, ...]) -> PilotRecord:
    """Return the pilot of a row of _COLUMNS and _OWES_ANSWERS."""
    stamp, site, ce, queue, vos, state, reason, glidein_id, node, isolation, *rest = row
    nonce_hash, alarm, drain_reason, evicts, ended, *times, queue_set, owes = rest
    registered, glidein_seen, glidein_started, last_seen, ends, credential_ends, report_requested = (
        None if time is None else sql.utc_time(time) for time in times
    )
    assert registered is not None, "every pilot was registered"
    return PilotRecord(
        stamp=stamp,
        queue=QueueId(site, ce, queue),
        vos=tuple(json.loads(vos)),
        state=PilotState(state),
        reason=reason,
        glidein_id=glidein_id,
        node=node,
        isolation=Isolation(isolation) if isolation else None,
        nonce_hash=nonce_hash,
        alarm=alarm,
        drain_reason=drain_reason,
        drain_evicts=bool(evicts),
        jobs_ended=ended,
        registered=registered,
        glidein_seen=glidein_seen,
        glidein_started=glidein_started,
        last_seen=last_seen,
        ends=ends,
        credential_ends=credential_ends,
        report_requested=report_requested,
        has_unreported_ends=bool(owes),
        queue_set=tuple(json.loads(queue_set)) if queue_set else (),
    )


_known_record = lru_cache(maxsize=_REMEMBERED)(_record)
"""The same with a cache: the same pilots are read again and again, and most rows have not changed."""


def list_pilots(
    session: Session, filter_: PilotFilter, *, lost_since: datetime | None = None
) -> tuple[PilotRecord, ...]:
    """Return the pilots that a filter selects, the newest first.

    If it does not include ended pilots, those are added that had arrived and were lost after `lost_since`.
    """
    query = select(*_RECORD)
    if filter_.queue is not None:
        query = query.where(at_queue(filter_.queue))
    if filter_.site:
        query = query.where(PILOTS.c.site == filter_.site)
    if filter_.node:
        query = query.where(func.lower(PILOTS.c.node) == filter_.node.lower())
    if filter_.states:
        query = query.where(PILOTS.c.state.in_(sorted(state.value for state in filter_.states)))
    if filter_.since is not None:
        query = query.where(or_(PILOTS.c.ended.is_(None), PILOTS.c.ended >= filter_.since))
    if filter_.registered_by:
        query = query.where(PILOTS.c.registered_by == filter_.registered_by)
    if not filter_.includes_ended:
        wanted: ColumnElement[bool] = IS_PRESENT
        if lost_since is not None:
            had_arrived = PILOTS.c.last_seen.is_not(None)
            wanted |= had_arrived & (PILOTS.c.state == PilotState.LOST.value) & (PILOTS.c.ended >= lost_since)
        query = query.where(wanted)
    rows = session.execute(query.order_by(PILOTS.c.registered.desc(), PILOTS.c.stamp).limit(_MAX_LISTED))
    return tuple(_record(tuple(row)) for row in rows)


def load_silent(
    session: Session, last_contact_before: datetime, registered_before: datetime
) -> tuple[PilotRecord, ...]:
    """Return the pilots whose last contact, or without any their registration or last listing, is before these times.

    Each kind of silence has its own limit, which the caller applies to the returned pilots.
    """
    silent = IS_ALIVE & (PILOTS.c.last_seen < last_contact_before)
    last_known = func.coalesce(PILOTS.c.glidein_seen, PILOTS.c.registered)
    never_came = IS_ARRIVING & (last_known < registered_before)
    rows = session.execute(select(*_RECORD).where(or_(silent, never_came)).order_by(PILOTS.c.stamp))
    return tuple(_record(tuple(row)) for row in rows)


def count_pilots(session: Session) -> dict[QueueId, PilotCounts]:
    """Return the numbers of pilots of every queue that has any, without ended ones."""
    counts: dict[QueueId, PilotCounts] = {}
    for queue, state, count in count_states(session):
        before = counts.get(queue, PilotCounts())
        more = PilotCounts(arriving=count) if state in ARRIVING else PilotCounts(alive=count)
        counts[queue] = PilotCounts(before.arriving + more.arriving, before.alive + more.alive)
    return counts


def count_states(session: Session) -> list[tuple[QueueId, PilotState, int]]:
    """Return the numbers of pilots by queue and state, without ended ones."""
    columns = (PILOTS.c.site, PILOTS.c.ce, PILOTS.c.queue, PILOTS.c.state)
    rows = session.execute(select(*columns, func.count()).where(IS_PRESENT).group_by(*columns))
    return [(QueueId(site, ce, name), PilotState(state), count) for site, ce, name, state, count in rows]


_OVERDUE = f"""
    SELECT site, ce, queue, count(*) FROM pilots
    WHERE state IN ({", ".join(f"'{state.value}'" for state in sorted(ARRIVING))}) AND glidein_started < ?
    GROUP BY site, ce, queue
"""  # noqa: S608 - of constants only
_LAST_FAILED = f"""
    SELECT pilots.site, pilots.ce, pilots.queue, glidein_id, reason FROM pilots
    JOIN (SELECT site, ce, queue, max(registered) AS registered FROM pilots GROUP BY site, ce, queue) AS last
    ON last.site = pilots.site AND last.ce = pilots.ce AND last.queue = pilots.queue
        AND last.registered = pilots.registered
    WHERE state = '{PilotState.ENDED.value}' AND last_seen IS NULL ORDER BY stamp DESC
"""  # noqa: S608 - of constants only


def count_overdue(session: Session, started_before: datetime) -> dict[QueueId, int]:
    """Return by queue how many pilots have not called whose glideins run since before this time."""
    rows = sql.rows(session, _OVERDUE, sql.column_time(session, started_before))
    return {QueueId(site, ce, queue): pilots for site, ce, queue, pilots in rows}


class FailedPilot(NamedTuple):
    """A pilot that has ended without a call; `was_submitted` False = its batch system did not take it."""

    was_submitted: bool
    reason: str


def last_failed(session: Session) -> dict[QueueId, FailedPilot]:
    """Return one of the last pilots of each queue at which these have ended without a call."""
    rows = sql.rows(session, _LAST_FAILED)
    return {QueueId(site, ce, queue): FailedPilot(bool(id_), reason) for site, ce, queue, id_, reason in rows}


_ALIVE = f"state IN ({', '.join(repr(state.value) for state in sorted(ALIVE))})"
_FACTS = f"""
    SELECT (SELECT count(*) FROM pilots WHERE {_ALIVE}),
        (SELECT count(*) FROM pilots WHERE {_ALIVE} AND last_seen < ?),
        (SELECT coalesce(min(stamp), '') FROM pilots WHERE {_ALIVE} AND last_seen < ?),
        (SELECT count(*) FROM pilots WHERE state = '{PilotState.LOST.value}' AND last_seen IS NOT NULL AND ended >= ?),
        (SELECT count(*) FROM pilots WHERE {_ALIVE} AND alarm <> '')
"""  # noqa: S608 - of constants only
_RELEASES = f"SELECT release, count(*) FROM pilots WHERE {_ALIVE} GROUP BY release"  # noqa: S608 - of constants only


def pilot_facts(session: Session, silent_since: datetime, lost_since: datetime) -> PilotFacts:
    """Return the counts of living pilots, of those without contact since a time, and of those lost since another."""
    silent, lost = sql.column_time(session, silent_since), sql.column_time(session, lost_since)
    ((alive, quiet, example, gone, alarmed),) = sql.rows(session, _FACTS, silent, silent, lost)
    releases = {str(name): int(count) for name, count in sql.rows(session, _RELEASES)}
    return PilotFacts(alive, quiet, example, gone, alarmed, releases)


def change_pilots(session: Session, stamps: Iterable[str], values: Mapping[str, Any]) -> None:
    """Update columns of pilots."""
    kept = [sql.column_time(session, value) if isinstance(value, datetime) else value for value in values.values()]
    sql.execute(session, _change(tuple(values)), *kept, sorted(stamps))


@lru_cache(maxsize=64)
def _change(names: tuple[str, ...]) -> str:
    return f"UPDATE pilots SET {', '.join(f'{name} = ?' for name in names)} WHERE stamp = ANY(?)"  # noqa: S608 - names of ours


_SUBMITTED = f"""
    UPDATE pilots SET state = '{PilotState.SUBMITTED.value}', reason = ?, ended = NULL WHERE stamp = ? AND state = ?
"""  # noqa: S608 - a constant


def record_submission(session: Session, pilot: PilotRecord, reason: str) -> None:
    """Set a pilot to SUBMITTED unless its state has changed since it was loaded."""
    sql.execute(session, _SUBMITTED, reason, pilot.stamp, pilot.state.value)


_MAY_CALL = f"state <> '{PilotState.ENDED.value}' AND (credential_ends IS NULL OR credential_ends > ?)"
_RECORD_CONTACT = f"""
    UPDATE pilots SET state = ?, reason = '', ended = NULL, last_seen = ? WHERE stamp = ? AND {_MAY_CALL}
"""  # noqa: S608 - a constant


def store_contact(session: Session, stamp: str, state: PilotState, now: datetime) -> None:
    """Record contact with a pilot and its state, unless it has been ended or revoked since it was loaded."""
    time = sql.column_time(session, now)
    sql.execute(session, _RECORD_CONTACT, state.value, time, stamp, time)


_BIND = f"""
    UPDATE pilots SET nonce_hash = ?, site = ?, ce = ?, queue = ?, release = ?
    WHERE stamp = ? AND (nonce_hash = '' OR nonce_hash = ? AND site = ? AND ce = ? AND queue = ?) AND {_MAY_CALL}
    RETURNING stamp
"""  # noqa: S608 - a constant


def bind_pilot(session: Session, stamp: str, nonce_hash: str, queue: QueueId, now: datetime, release: str = "") -> bool:
    """Bind a pilot to the nonce with this hash, and to a queue; record the release of its program.

    False = it is bound to another nonce or queue, has ended, or is revoked.
    """
    bound = (nonce_hash, *queue)
    return bool(sql.rows(session, _BIND, *bound, release, stamp, *bound, sql.column_time(session, now)))


_REVOKE = f"""
    UPDATE pilots SET state = '{PilotState.LOST.value}', reason = ?, ended = ?, credential_ends = ?
    WHERE stamp = ANY(?) AND state <> '{PilotState.ENDED.value}' RETURNING stamp
"""  # noqa: S608 - a constant
_AT = f"SELECT stamp FROM pilots WHERE site = ? AND state <> '{PilotState.ENDED.value}'"  # noqa: S608 - a constant
_PLACES = f"SELECT DISTINCT site, ce, queue FROM pilots WHERE state <> '{PilotState.ENDED.value}' AND site <> ''"  # noqa: S608
_CREDENTIAL_ENDS = f"SELECT stamp, credential_ends FROM pilots WHERE {CREDENTIAL_ENDS}"  # noqa: S608 - a constant


def revoke_pilots(session: Session, stamps: Iterable[str], reason: str, now: datetime) -> tuple[str, ...]:
    """End the credentials of pilots that have not ended, which are lost then; return their stamps."""
    time = sql.column_time(session, now)
    return tuple(sorted(row[0] for row in sql.rows(session, _REVOKE, reason, time, time, sorted(set(stamps)))))


def stamps_at(session: Session, site: str, ce: str | None, queue: str | None) -> tuple[str, ...]:
    """Return the pilots of a site, a CE or a queue that have not ended."""
    names = [("ce", ce), ("queue", queue)]
    statement = _AT + "".join(f" AND {column} = ?" for column, name in names if name is not None)
    return tuple(row[0] for row in sql.rows(session, statement, site, *(name for _, name in names if name is not None)))


def queues_with_pilots(session: Session) -> tuple[QueueId, ...]:
    """Return the queues of all pilots that have not ended."""
    return tuple(QueueId(*row) for row in sql.rows(session, _PLACES))


def load_credential_ends(session: Session) -> dict[str, datetime]:
    """Return when the credentials of pilots end, for those that end before their tokens."""
    return {stamp: sql.utc_time(ends) for stamp, ends in sql.rows(session, _CREDENTIAL_ENDS)}


def count_ended_jobs(session: Session, counts: Mapping[str, int]) -> None:
    """Add to the numbers of attempts that pilots, given by stamp, have ended."""
    more = "UPDATE pilots SET jobs_ended = jobs_ended + ? WHERE stamp = ?"
    sql.execute_many(session, more, [(count, stamp) for stamp, count in sorted(counts.items())])


def node_text(session: Session, stamp: str) -> str | None:
    """Return the stored JSON of the node that the pilot last reported; None = there is no such pilot."""
    return session.execute(select(PILOTS.c.node_json).where(PILOTS.c.stamp == stamp)).scalar_one_or_none()


def without_node(session: Session, stamps: Collection[str]) -> set[str]:
    """Return those of these pilots that have never reported their nodes."""
    bare = "SELECT stamp FROM pilots WHERE stamp = ANY(?) AND node_json = ''"
    return {row[0] for row in sql.rows(session, bare, list(stamps))} if stamps else set()


@dataclass(frozen=True, slots=True)
class NodePilot:
    """A living pilot, its node and its queue; `node_json` = the node as last reported."""

    stamp: str
    node: NodeId
    node_json: str
    queue: QueueId


def load_node_pilots(session: Session, nodes: Iterable[NodeId]) -> tuple[NodePilot, ...]:
    """Return the living pilots on these nodes, by stamp."""
    wanted = set(nodes)
    names = sorted({node.node for node in wanted})
    rows = [
        row
        for chunk in chunks(names)
        for row in session.execute(
            select(PILOTS).where(IS_ALIVE, one_of(PILOTS.c.node, chunk)).order_by(PILOTS.c.stamp)
        )
    ]
    found = (
        NodePilot(row.stamp, NodeId(row.site, row.node), row.node_json, QueueId(row.site, row.ce, row.queue))
        for row in rows
    )
    return tuple(pilot for pilot in found if pilot.node in wanted)


def load_nodes(session: Session, site: str) -> list[str]:
    """Return the names of the nodes of a site that the stored pilots have reported."""
    names = select(PILOTS.c.node).where(PILOTS.c.site == site, PILOTS.c.node != "").distinct()
    return list(session.execute(names).scalars())


def at_queue(queue: QueueId) -> Any:
    """Return the condition that a pilot belongs to this queue."""
    return (PILOTS.c.site == queue.site) & (PILOTS.c.ce == queue.ce) & (PILOTS.c.queue == queue.queue)


SLOTS = metadata.tables["slots"]


def store_slots(session: Session, pilot_stamp: str, slots: Iterable[ReportedSlot]) -> None:
    """Replace the slots of a pilot; only changes are written, and a slot without a new ad keeps its ad."""
    query = select(SLOTS.c.name, SLOTS.c.state_json).where(SLOTS.c.pilot_stamp == pilot_stamp)
    before = {row.name: row.state_json for row in session.execute(query)}
    after = {slot.name: {"state_json": slot_to_json(slot), **({"ad": slot.ad} if slot.ad else {})} for slot in slots}
    new = [
        {"pilot_stamp": pilot_stamp, "name": name, "ad": "", **columns}
        for name, columns in after.items()
        if name not in before
    ]
    if new:
        session.connection().execute(insert(SLOTS), new)
    for name in before.keys() & after.keys():
        if "ad" in after[name] or before[name] != after[name]["state_json"]:
            of_slot = (SLOTS.c.pilot_stamp == pilot_stamp, SLOTS.c.name == name)
            session.execute(update(SLOTS).where(*of_slot).values(**after[name]))
    gone = sorted(before.keys() - after.keys())
    if gone:
        session.execute(delete(SLOTS).where(SLOTS.c.pilot_stamp == pilot_stamp, one_of(SLOTS.c.name, gone)))


def remove_slots(session: Session, pilot_stamps: Iterable[str]) -> None:
    """Remove the slots of ended pilots."""
    for chunk in chunks(pilot_stamps):
        session.execute(delete(SLOTS).where(one_of(SLOTS.c.pilot_stamp, chunk)))


def load_slots(session: Session, queue: QueueId | None = None, node: NodeId | None = None) -> tuple[SlotInfo, ...]:
    """Return the slots of living pilots of a queue and on a node (None = of all), by node and name."""
    columns = (SLOTS.c.pilot_stamp, SLOTS.c.state_json, SLOTS.c.ad)
    wanted: list[ColumnElement[bool]] = [IS_ALIVE]
    if queue is not None:
        wanted.append(at_queue(queue))
    if node is not None:
        wanted.append((PILOTS.c.site == node.site) & (PILOTS.c.node == node.node))
    pilots = select(PILOTS).where(*wanted)
    slots = select(*columns).join(PILOTS, PILOTS.c.stamp == SLOTS.c.pilot_stamp).where(*wanted)
    by_stamp = {row.stamp: (row, *node_facts(row.node_json)) for row in session.execute(pilots)}
    found = [
        SlotInfo(
            slot=slot_from_json(text, ad),
            node=pilot.node,
            pilot_stamp=stamp,
            queue=QueueId(pilot.site, pilot.ce, pilot.queue),
            last_seen=pilot.last_seen,
            ends=pilot.ends,
            cpu_power=power,
            draining=pilot.state == PilotState.DRAINING.value,
            node_attributes=attributes,
            settable_attributes=settable,
            isolation=Isolation(pilot.isolation or Isolation.NONE),
            answered=pilot.report_answered,
        )
        for stamp, text, ad in session.execute(slots)
        for pilot, power, attributes, settable in (by_stamp[stamp],)
    ]
    return tuple(sorted(found, key=lambda info: (info.node, info.pilot_stamp, info.slot.name)))


def load_slots_of_pilots(session: Session, site: str = "") -> list[PilotSlots]:
    """Return the pilots with slots that live at a site ("" = at all), and their slots without ads."""
    wanted: list[ColumnElement[bool]] = [IS_ALIVE]
    if site:
        wanted.append(PILOTS.c.site == site)
    columns = (PILOTS.c.stamp, PILOTS.c.site, PILOTS.c.node, PILOTS.c.state, PILOTS.c.last_seen)
    slots = select(SLOTS.c.pilot_stamp, SLOTS.c.state_json).join(PILOTS, PILOTS.c.stamp == SLOTS.c.pilot_stamp)
    of_pilots: dict[str, list[ReportedSlot]] = defaultdict(list)
    for stamp, text in session.execute(slots.where(*wanted)):
        of_pilots[stamp].append(slot_from_json(text, ""))
    return [
        PilotSlots(NodeId(site, node), state == PilotState.DRAINING.value, last_seen, of_pilots[stamp])
        for stamp, site, node, state, last_seen in session.execute(select(*columns).where(*wanted))
        if stamp in of_pilots
    ]


def count_slots(session: Session) -> list[tuple[QueueId, int]]:
    """Return the numbers of slots of living pilots by queue."""
    place = (PILOTS.c.site, PILOTS.c.ce, PILOTS.c.queue)
    slots = select(*place, func.count()).join(SLOTS, SLOTS.c.pilot_stamp == PILOTS.c.stamp)
    rows = session.execute(slots.where(IS_ALIVE).group_by(*place))
    return [(QueueId(site, ce, queue), count) for site, ce, queue, count in rows]


_ALL = "SELECT site, node, version, settings_json FROM node_settings"
_OF_NODES = f"{_ALL} WHERE site = ANY(?) AND node = ANY(?)"
_INSERT = "INSERT INTO node_settings (site, node, version, settings_json) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_CHANGE = "UPDATE node_settings SET version = ?, settings_json = ? WHERE site = ? AND node = ? AND version = ?"


def load_node_settings(session: Session, nodes: Collection[NodeId] | None = None) -> dict[NodeId, NodeSettings]:
    """Return the settings of these nodes (None = of all), by site and name."""
    if nodes is None:
        rows = sql.rows(session, _ALL)
    else:
        sites, names = {node.site for node in nodes}, {node.node for node in nodes}
        rows = sql.rows(session, _OF_NODES, sorted(sites), sorted(names))
    found = (NodeSettings(NodeId(site, node), version, _settings(text)) for site, node, version, text in rows)
    wanted = None if nodes is None else set(nodes)
    ordered = sorted(found, key=lambda settings: settings.node)
    return {settings.node: settings for settings in ordered if wanted is None or settings.node in wanted}


def store_node_settings(session: Session, changed: Sequence[NodeSettings]) -> bool:
    """Store the next versions of nodes' settings; False = one of them has changed since they were loaded."""
    ordered = sorted(changed, key=lambda settings: settings.node)  # one order of locks for all transactions
    new = [(each.node.site, each.node.node, 1, _json(each.settings)) for each in ordered if each.version == 1]
    old = [
        (each.version, _json(each.settings), each.node.site, each.node.node, each.version - 1)
        for each in ordered
        if each.version > 1
    ]
    return sql.execute_many(session, _INSERT, new) + sql.execute_many(session, _CHANGE, old) == len(changed)


def _json(settings: Iterable[Setting]) -> str:
    rows = ((each.name, each.expression, each.set_by, each.set.isoformat(), each.agent) for each in settings)
    return json.dumps(list(rows))


def _settings(text: str) -> tuple[Setting, ...]:
    # Older rows do not name an agent.
    rows = json.loads(text)
    return tuple(
        Setting(name, expression, by, datetime.fromisoformat(at), *agent) for name, expression, by, at, *agent in rows
    )


_EMPTY = f"SELECT site, ce, queue, registered, ended FROM pilots WHERE {EMPTY} AND ended >= ?"  # noqa: S608 - a constant
_HAS_RUN = f"""(jobs_ended > 0
    OR EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = stamp AND started IS NOT NULL AND {UNREPORTED}))"""  # noqa: S608 - a constant
_HAS_RUN_ANY = f"SELECT 1 FROM pilots WHERE stamp = ? AND {_HAS_RUN}"  # noqa: S608 - a constant
# Newest pilots first: usually one of the first has run a job.
_PROVEN = f"""SELECT registered FROM pilots WHERE site = ? AND ce = ? AND queue = ? AND registered >= ?
    AND NOT {EMPTY} AND {_HAS_RUN}
    ORDER BY registered DESC LIMIT 1"""  # noqa: S608 - constants


def load_empty_pilots(
    session: Session, since: datetime, queues: Collection[QueueId]
) -> Mapping[QueueId, Sequence[EmptyPilot]]:
    """Return the pilots of these queues that came back empty since then."""
    wanted = {(queue.site, queue.ce, queue.queue): queue for queue in queues}
    found: dict[QueueId, list[EmptyPilot]] = defaultdict(list)
    for *place, registered, ended in sql.rows(session, _EMPTY, sql.column_time(session, since)):
        if (queue := wanted.get(tuple(place))) is not None:
            found[queue].append(EmptyPilot(sql.utc_time(registered), sql.utc_time(ended)))
    return found


def load_proven(session: Session, queue: QueueId, since: datetime) -> datetime | None:
    """Return when the last pilot of a queue that has run a job registered; None = none since then."""
    rows = sql.rows(session, _PROVEN, queue.site, queue.ce, queue.queue, sql.column_time(session, since))
    return sql.utc_time(rows[0][0]) if rows else None


_ARRIVING = ", ".join(f"'{state.value}'" for state in sorted(ARRIVING))
_SET_ON_ITS_WAY = f"""SELECT COUNT(*) FROM pilots
    WHERE queue_set_json = ? AND {HAS_QUEUE_SET} AND site = '' AND state IN ({_ARRIVING})"""  # noqa: S608 - constants
_SET_EMPTY = f"""SELECT registered, ended FROM pilots
    WHERE {EMPTY} AND ended >= ? AND queue_set_json = ?"""  # noqa: S608 - a constant
_SET_PROVEN = f"""SELECT registered FROM pilots
    WHERE queue_set_json = ? AND {HAS_QUEUE_SET} AND registered >= ? AND NOT {EMPTY} AND {_HAS_RUN}
    ORDER BY registered DESC LIMIT 1"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class SetPilots:
    """The pilots of a set of queues that have not said yet where they are, and the pilots that came back empty.

    `proven` is when the last pilot of the set that has run a job was registered; None = none since the first empty one.
    """

    on_their_way: int
    empty: tuple[EmptyPilot, ...]
    proven: datetime | None


def load_set_pilots(session: Session, queue_set: Sequence[str], since: datetime) -> SetPilots:
    """Return the pilots of the set with exactly these patterns; empty ones only since then."""
    key = _set_json(queue_set)
    ((on_their_way,),) = sql.rows(session, _SET_ON_ITS_WAY, key)
    rows = sql.rows(session, _SET_EMPTY, sql.column_time(session, since), key)
    empty = tuple(EmptyPilot(sql.utc_time(registered), sql.utc_time(ended)) for registered, ended in rows)
    first = min((pilot.registered for pilot in empty), default=None)
    proven = sql.rows(session, _SET_PROVEN, key, sql.column_time(session, first)) if first is not None else []
    return SetPilots(on_their_way, empty, sql.utc_time(proven[0][0]) if proven else None)


def has_run_any(session: Session, stamp: str) -> bool:
    """Return whether a pilot has run a job, or runs one."""
    return bool(sql.rows(session, _HAS_RUN_ANY, stamp))


_PUT_LOG = """
    INSERT INTO pilot_logs (stamp, sent, text) SELECT stamp, ?, ? FROM pilots WHERE stamp = ?
    ON CONFLICT (stamp) DO UPDATE SET sent = excluded.sent, text = excluded.text
"""
_FIND_LOG = "SELECT sent, text FROM pilot_logs WHERE stamp = ?"
_DELETE_LOGS = "DELETE FROM pilot_logs WHERE stamp = ANY(?)"


def put_pilot_log(session: Session, stamp: str, text: str, now: datetime) -> None:
    """Store the end of a pilot's output; of an unknown pilot nothing is stored."""
    sql.execute(session, _PUT_LOG, sql.column_time(session, now), text, stamp)


def find_pilot_log(session: Session, stamp: str) -> tuple[datetime, str] | None:
    """Return when the end of a pilot's output was sent, and what it is; None = none is stored."""
    return next(((sql.utc_time(sent), text) for sent, text in sql.rows(session, _FIND_LOG, stamp)), None)


def delete_pilot_logs(session: Session, stamps: Sequence[str]) -> None:
    """Remove the stored outputs of pilots."""
    sql.execute(session, _DELETE_LOGS, list(stamps))
