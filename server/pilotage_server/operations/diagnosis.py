"""The diagnosis of an installation, as far as the database and the state of a server show it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pilotage.text import count_text
from pilotage_server.core.diagnosis import (
    LOST_WITHIN,
    DatabaseFacts,
    Finding,
    FindingLevel,
    judge_agents,
    judge_database,
    judge_pilots,
    judge_queues,
    ok,
)
from pilotage_server.core.pilots.pilots import HEARTBEAT_MARGIN
from pilotage_server.operations.cooperative import cooperative
from pilotage_server.operations.resources.supply import pilot_problems
from pilotage_server.operations.resources.tree import parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.condition import damage, database_size, write_and_revert
from pilotage_server.storage.database.engine import read_schema
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leadership import load_replicas, terms_until
from pilotage_server.storage.pilots import pilot_facts
from pilotage_server.storage.resources import load_tree_text

AGENTS_MISSED_FOR = timedelta(days=7)
"""An agent without a leader for longer is taken as gone for good."""

_MISSED_HEARTBEATS = 3


def diagnose(transaction: Transaction, state: ServerState, commit: timedelta, release: str) -> tuple[Finding, ...]:
    """Return the findings; `commit` = how long a commit has just taken, `release` = that of the server."""
    return (
        *_database(transaction, commit),
        *_tree(transaction, state),
        *_queues(transaction, state),
        *_places(state),
        *_agents(transaction, release),
        *_pilots(transaction, state, release),
    )


def commit_something(transaction: Transaction, _: ServerState) -> None:
    """Write to the database, for the time that a commit takes; nothing is changed."""
    write_and_revert(transaction.session)


def _database(transaction: Transaction, commit: timedelta) -> Iterator[Finding]:
    session = transaction.session
    size = database_size(session)
    kind = "SQLite" if sql.is_sqlite(session) else "PostgreSQL"
    schema = read_schema(session).present or "none"
    return judge_database(DatabaseFacts(kind, schema, size, commit, damage(session, size)))


def _tree(transaction: Transaction, state: ServerState) -> Iterator[Finding]:
    stored = load_tree_text(transaction.session)
    if not stored.version:
        yield Finding("tree", FindingLevel.FAULT, "there is no resource tree: no job can run", "pilotage tree put FILE")
        return
    warnings = parse_tree(stored.text, stored.format, cooperative).warnings
    text = f"version {stored.version} is in force since {stored.created:%Y-%m-%d %H:%M} UTC, by {stored.created_by}"
    if stored.version != state.tree.version:
        yield Finding(
            "tree", FindingLevel.WARNING, f"{text}; this server has version {state.tree.version} still", "repeat"
        )
    elif warnings:
        more = f" and {len(warnings) - 1} more" if len(warnings) > 1 else ""
        advice = "correct the file, and: pilotage tree put FILE --validate-only"
        yield Finding("tree", FindingLevel.WARNING, f"{text}, with a warning: {warnings[0]}{more}", advice)
    else:
        yield ok("tree", text)


def _queues(transaction: Transaction, state: ServerState) -> Iterator[Finding]:
    usable = {queue.id: queue for queue in state.tree.view_for(None).values() if queue.is_enabled()}
    return judge_queues(pilot_problems(transaction, usable), len(usable))


def _places(state: ServerState) -> Iterator[Finding]:
    places = sorted(location.key for location in state.throttles)
    if places:
        few = f"{count_text(len(places), 'place')} {'gets' if len(places) == 1 else 'get'} single jobs or none"
        text = f"{few}, because jobs fail fast there, such as {places[0]}"
        yield Finding("places", FindingLevel.WARNING, text, "pilotage health list")


def _agents(transaction: Transaction, release: str) -> Iterator[Finding]:
    terms = terms_until(transaction.session, transaction.now - AGENTS_MISSED_FOR)
    reports = {replica.leadership: replica.status for replica in load_replicas(transaction.session)}
    return judge_agents(terms, reports, transaction.now, release)


def _pilots(transaction: Transaction, state: ServerState, release: str) -> Iterator[Finding]:
    silent_for = _MISSED_HEARTBEATS * state.rules.heartbeat + HEARTBEAT_MARGIN
    now = transaction.now
    facts = pilot_facts(transaction.session, now - silent_for, now - LOST_WITHIN)
    return judge_pilots(facts, silent_for, release)
