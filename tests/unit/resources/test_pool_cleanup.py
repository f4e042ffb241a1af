"""Which pools are refreshed, and which are removed when."""

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


def test_a_mapping_is_refreshed_at_its_age_and_not_before() -> None:
    assert not due(a_pool(), minutes=14.9)
    assert due(a_pool(), minutes=15)


def test_a_pool_without_a_mapping_or_with_one_of_another_tree_is_always_refreshed() -> None:
    assert due(a_pool(mapped=None))
    assert due(a_pool(version=1), version=2)


def test_a_pool_that_is_first_seen_idle_is_only_noted() -> None:
    found = cleanup_plan([a_pool()], set(), HOUR, NOON)
    assert (found.fell_idle, found.came_alive, found.removable) == (("p",), (), ())


def test_a_pool_that_has_a_job_again_loses_the_note() -> None:
    found = cleanup_plan([a_pool(idle_since=NOON)], {"p"}, HOUR, NOON + 5 * HOUR)
    assert (found.fell_idle, found.came_alive, found.removable) == ((), ("p",), ())


def test_a_pool_that_was_idle_for_the_grace_period_is_removable() -> None:
    pool = a_pool(idle_since=NOON)
    assert cleanup_plan([pool], set(), HOUR, NOON + HOUR - timedelta(seconds=1)).touched == ()
    assert cleanup_plan([pool], set(), HOUR, NOON + HOUR).removable == ("p",)


def test_pools_are_touched_in_one_order_by_all_who_clean() -> None:
    pools = [a_pool("b"), a_pool("c", idle_since=NOON), a_pool("a", idle_since=NOON - HOUR)]
    assert cleanup_plan(pools, {"c"}, HOUR, NOON).touched == ("a", "b", "c")


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=20),
    st.integers(1, 60).map(lambda minutes: timedelta(minutes=minutes)),
)
def test_a_pool_is_never_removed_before_its_grace_period_is_over(
    seen: list[tuple[bool, int]], grace: timedelta
) -> None:
    """Each cleanup sees the pool live or not, some minutes after the one before; jobs note themselves."""
    pool, now, last_live = a_pool(), NOON, NOON
    for live, minutes in seen:
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
