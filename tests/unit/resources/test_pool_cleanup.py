"""Refresh of pool mappings, and removal of idle pools after a grace period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.resources.pools import Pool, cleanup_plan, due_for_refresh

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_pool(
    name: str = "p", *, mapped: datetime | None = NOON, version: int = 1, idle_since: datetime | None = None
) -> Pool:
    return Pool(name, "cms", "{}", {}, NOON, mapped, version, idle_since)


def due(pool: Pool, minutes: float = 0, version: int = 1) -> bool:
    now = NOON + timedelta(minutes=minutes)
    return bool(due_for_refresh([pool], timedelta(minutes=15), version, now))


def test_mapping_is_refreshed_at_maximum_age() -> None:
    assert not due(a_pool(), minutes=14.9)
    assert due(a_pool(), minutes=15)


def test_unmapped_or_outdated_pool_is_always_refreshed() -> None:
    assert due(a_pool(mapped=None))
    assert due(a_pool(version=1), version=2)


def test_newly_idle_pool_is_only_marked() -> None:
    found = cleanup_plan([a_pool()], set(), HOUR, NOON)
    assert (found.fell_idle, found.came_alive, found.removable) == (("p",), (), ())


def test_pool_with_new_job_loses_idle_mark() -> None:
    found = cleanup_plan([a_pool(idle_since=NOON)], {"p"}, HOUR, NOON + 5 * HOUR)
    assert (found.fell_idle, found.came_alive, found.removable) == ((), ("p",), ())


def test_pool_is_removable_after_grace_period() -> None:
    pool = a_pool(idle_since=NOON)
    assert cleanup_plan([pool], set(), HOUR, NOON + HOUR - timedelta(seconds=1)).touched == ()
    assert cleanup_plan([pool], set(), HOUR, NOON + HOUR).removable == ("p",)


def test_pools_are_touched_in_sorted_order() -> None:
    pools = [a_pool("b"), a_pool("c", idle_since=NOON), a_pool("a", idle_since=NOON - HOUR)]
    assert cleanup_plan(pools, {"c"}, HOUR, NOON).touched == ("a", "b", "c")


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=20),
    st.integers(1, 60).map(lambda minutes: timedelta(minutes=minutes)),
)
def test_pool_is_never_removed_before_grace_period(cleanups: list[tuple[bool, int]], grace: timedelta) -> None:
    """Each cleanup finds the pool with or without live jobs, some minutes after the previous one."""
    pool, now, last_live = a_pool(), NOON, NOON
    for live, minutes in cleanups:
        now += timedelta(minutes=minutes)
        if live:
            last_live = now
            pool = a_pool(idle_since=None)
        found = cleanup_plan([pool], {"p"} if live else set(), grace, now)
        if found.removable:
            assert now - last_live >= grace
            return
        if found.fell_idle:
            pool = a_pool(idle_since=now)
