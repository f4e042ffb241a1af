"""The throttle of a place that fails: HTCondor's arithmetic, and the stop inside an interval."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_agents.router.core.failure_rate import INTERVAL, FailureRate

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_rate(threshold: float = 0.03, **said: float) -> FailureRate:
    return FailureRate(threshold, NOON, quota=said.get("quota", 0.0))


def after(rate: FailureRate, under_way: int = 0, **counts: int) -> FailureRate:
    """Return the rate after an interval with these counts."""
    return rate.counted(**counts).adjusted(under_way, rate.since + INTERVAL)


def test_a_hundred_failures_and_fifty_under_way_leave_a_quota_of_twenty_seven() -> None:
    assert after(a_rate(), under_way=50, sent=150, failed=100).quota == pytest.approx(27)


def test_a_place_that_fails_everything_is_held_at_its_threshold() -> None:
    rate = after(a_rate(0.01), sent=500, failed=500)
    assert rate.quota == pytest.approx(6)
    for _ in range(3):
        rate = after(rate, sent=6, failed=6)
        assert rate.quota == pytest.approx(6)


def test_quotas_of_the_intervals_after_a_bad_one_are_htcondors() -> None:
    rate, quotas = after(a_rate(), under_way=50, sent=150, failed=100), []
    for counts in ({"failed": 10}, {"failed": 1}, {}, {}, {"succeeded": 27}):
        rate = after(rate, **counts)
        quotas.append(rate.quota)
    assert quotas == pytest.approx([27, 27, 54, 108, 540])


def test_half_of_what_ended_going_well_relaxes_two_and_a_half_times() -> None:
    assert after(a_rate(quota=10), succeeded=4, failed=4).quota == pytest.approx(25)


def test_a_quota_that_bounds_nothing_any_more_is_none() -> None:
    assert after(a_rate(quota=36_000), succeeded=1).quota == pytest.approx(180_000)
    assert after(a_rate(quota=36_001), succeeded=1).quota == 0


def test_a_quota_below_one_lets_single_ones_through_once_nothing_fails() -> None:
    low = a_rate(0.0001, quota=0.1)
    assert after(low).quota == 1
    assert low.obstacle == ""
    assert low.counted(sent=1).obstacle == "1 sent of 0.1 in 600 s"


def test_an_interval_may_be_longer_than_its_measure_and_its_rate_is_that_of_all_of_it() -> None:
    failing = a_rate(0.01).counted(failed=10)
    assert failing.adjusted(0, NOON + INTERVAL).quota > 0
    assert failing.adjusted(0, NOON + 2 * INTERVAL).quota == 0


def test_nothing_is_adjusted_before_the_interval_is_over() -> None:
    failing = a_rate().counted(sent=30, failed=30)
    assert failing.adjusted(0, NOON + INTERVAL - timedelta(microseconds=1)) == failing


def test_a_quota_is_used_up_and_comes_back_with_the_next_interval() -> None:
    rate = a_rate(quota=2).counted(sent=1)
    assert rate.obstacle == ""
    rate = rate.counted(sent=1)
    assert rate.obstacle == "2 sent of 2 in 600 s"
    assert rate.adjusted(2, NOON + INTERVAL).obstacle == ""


def test_more_failures_than_an_interval_may_have_stop_it_at_once() -> None:
    rate = a_rate(0.01).counted(sent=50, failed=6)
    assert rate.obstacle == ""
    assert rate.counted(failed=1).obstacle == "7 failed in less than 600 s, where 6 may"


def test_a_rate_that_was_kept_goes_on_within_its_interval() -> None:
    failing = a_rate(0.01).counted(sent=50, failed=7)
    assert failing.resumed(3, NOON + timedelta(seconds=599)) == failing
    assert failing.resumed(3, NOON - timedelta(hours=1)).since == NOON - timedelta(hours=1), "clocks differ"


def test_a_rate_that_was_kept_for_days_is_that_of_its_interval_and_was_relaxed_by_nothing_since() -> None:
    failing = a_rate(0.01).counted(sent=50, failed=50)
    resumed = failing.resumed(0, NOON + timedelta(days=3))
    assert resumed.quota == pytest.approx(6)
    assert resumed.since == NOON + timedelta(days=3)


def test_a_rate_of_which_nothing_is_to_be_remembered_is_blank() -> None:
    assert a_rate().is_blank
    assert not a_rate(quota=2).is_blank
    assert not a_rate().counted(sent=1).is_blank


counts = st.integers(0, 10**6)


@given(counts, counts, counts, st.floats(0, 1e6), st.integers(1, 10**6))
def test_a_quota_is_never_negative_and_an_interval_that_passed_its_threshold_has_one(
    succeeded: int, failed: int, under_way: int, quota: float, seconds: int
) -> None:
    rate = a_rate(quota=quota).counted(succeeded=succeeded, failed=failed)
    following = rate.adjusted(under_way, NOON + INTERVAL + timedelta(seconds=seconds))
    assert following.quota >= 0
    elapsed = INTERVAL.total_seconds() + seconds
    if failed / elapsed > rate.threshold:
        assert following.quota > 0
