"""Incarnations: their numbers, and which servers belong to a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pilotage_server.core.incarnation import (
    STEPS,
    Counters,
    Installation,
    LastSeen,
    keys_fault,
    next_incarnation,
    restore_fault,
    store_fault,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HERE = Installation("db", "schema", 2, "here", "store", {})
THERE = Counters(70, 700, 0)


@pytest.mark.parametrize(
    ("number", "last", "base"),
    [
        (2, 17, 1),
        (2, 0, 1),
        (3, 17, 2),
        (2, STEPS.job // 2, 1),
        (2, STEPS.job // 2 + 1, 2),
        (2, STEPS.job * 7 - 1, 8),
    ],
)
def test_new_ids_are_at_least_half_a_step_above_the_backup(number: int, last: int, base: int) -> None:
    new = next_incarnation(number, Counters(last, 0, 0), NOW)
    assert new.base.job == base * STEPS.job
    assert new.base.job - last >= STEPS.job // 2


@pytest.mark.parametrize(
    ("place", "seen", "fault"),
    [
        ("here", None, ""),
        ("here", LastSeen("db", 2, 70, 700), ""),
        ("here", LastSeen("db", 1, 90, 900), ""),
        ("here", LastSeen("other", 9, 90, 900), ""),
        ("here", LastSeen("db", 3, 1, 1), "of incarnation 2, and this server has seen 3"),
        ("here", LastSeen("db", 2, 71, 700), "ends at job 70 and event 700, and this server has seen job 71"),
        ("here", LastSeen("db", 2, 70, 701), "event 701"),
        ("there", None, "was put back or has moved"),
    ],
)
def test_backup_that_was_put_back_is_noticed(place: str, seen: LastSeen | None, fault: str) -> None:
    found = restore_fault(replace(HERE, place="here"), place, THERE, seen)
    assert fault in found
    assert bool(fault) is bool(found)


EARLIER, LATER = NOW - timedelta(days=1), NOW + timedelta(minutes=10)
FIRST = datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("known", "own", "fault"),
    [
        ({}, {"a": FIRST}, ""),
        ({"a": FIRST}, {"a": FIRST}, ""),
        ({"a": FIRST}, {"b": FIRST}, "(b) is one of the database's (a)"),
        ({"a": FIRST, "b": LATER}, {"a": FIRST}, ""),  # the new key is not copied yet, and does not sign yet
        ({"a": FIRST}, {"a": FIRST, "b": EARLIER}, ""),  # it was rotated while no server ran
        ({"a": FIRST, "b": EARLIER}, {"b": EARLIER}, ""),  # the old one is retired here
        ({"a": FIRST, "b": EARLIER}, {"a": FIRST}, "signing key b, which signs now, is missing"),
        ({"a": LATER}, {"a": LATER}, ""),
    ],
)
def test_server_joins_with_a_common_key_and_the_one_that_signs(
    known: Mapping[str, datetime], own: Mapping[str, datetime], fault: str
) -> None:
    found = keys_fault(known, own, NOW)
    assert fault in found
    assert bool(fault) is bool(found)


@pytest.mark.parametrize(
    ("known", "own", "fault"),
    [("", None, ""), ("", "x", ""), ("x", "x", ""), ("x", "y", "has id y"), ("x", None, "is a new one")],
)
def test_server_joins_with_the_file_store_of_the_database(known: str, own: str | None, fault: str) -> None:
    found = store_fault(known, own)
    assert fault in found
    assert bool(fault) is bool(found)
