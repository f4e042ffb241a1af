"""The failure rate of a route: HTCondor's arithmetic, and the stop inside an interval."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_agents.router.core.failure_rate import INTERVAL, FailureRate

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_rate(threshold: float = 0.03, **fields: float) -> FailureRate:
    return FailureRate(threshold, NOON, quota=fields.get("quota", 0.0))


def after(rate: FailureRate, running: int = 0, **counts: int) -> FailureRate:
    """Return the rate after an interval with these counts."""
    return rate.counted(**counts).adjusted(running, rate.since + INTERVAL)


def test_quota_after_100_failures_and_50_running_is_27() -> None:
    assert after(a_rate(), running=50, sent=150, failed=100).quota == pytest.approx(27)


def test_quota_stays_at_threshold_while_all_jobs_fail() -> None:
    rate = after(a_rate(0.01), sent=500, failed=500)
    assert rate.quota == pytest.approx(6)
    for _ in range(3):
        rate = after(rate, sent=6, failed=6)
        assert rate.quota == pytest.approx(6)


def test_quotas_after_bad_interval_equal_htcondors() -> None:
    rate, quotas = after(a_rate(), running=50, sent=150, failed=100), []
    for counts in ({"failed": 10}, {"failed": 1}, {}, {}, {"succeeded": 27}):
        rate = after(rate, **counts)
        quotas.append(rate.quota)
    assert quotas == pytest.approx([27, 27, 54, 108, 540])


def test_quota_grows_by_2_5_if_half_succeed() -> None:
    assert after(a_rate(quota=10), succeeded=4, failed=4).quota == pytest.approx(25)


def test_large_quota_is_dropped() -> None:
    assert after(a_rate(quota=36_000), succeeded=1).quota == pytest.approx(180_000)
    assert after(a_rate(quota=36_001), succeeded=1).quota == 0


def test_quota_below_one_lets_single_jobs_through() -> None:
    low = a_rate(0.0001, quota=0.1)
    assert after(low).quota == 1
    assert low.obstacle == ""
    assert low.counted(sent=1).obstacle == "1 sent of 0.1 in 600 s"


def test_rate_is_computed_over_actual_length_of_interval() -> None:
    failing = a_rate(0.01).counted(failed=10)
    assert failing.adjusted(0, NOON + INTERVAL).quota > 0
    assert failing.adjusted(0, NOON + 2 * INTERVAL).quota == 0


def test_quota_is_not_adjusted_within_interval() -> None:
    failing = a_rate().counted(sent=30, failed=30)
    assert failing.adjusted(0, NOON + INTERVAL - timedelta(microseconds=1)) == failing


def test_quota_is_renewed_with_next_interval() -> None:
    rate = a_rate(quota=2).counted(sent=1)
    assert rate.obstacle == ""
    rate = rate.counted(sent=1)
    assert rate.obstacle == "2 sent of 2 in 600 s"
    assert rate.adjusted(2, NOON + INTERVAL).obstacle == ""


def test_too_many_failures_stop_route_within_interval() -> None:
    rate = a_rate(0.01).counted(sent=50, failed=6)
    assert rate.obstacle == ""
    assert rate.counted(failed=1).obstacle == "7 failed in less than 600 s, where 6 may"


def test_saved_rate_resumes_within_its_interval() -> None:
    failing = a_rate(0.01).counted(sent=50, failed=7)
    assert failing.resumed(3, NOON + timedelta(seconds=599)) == failing
    assert failing.resumed(3, NOON - timedelta(hours=1)).since == NOON - timedelta(hours=1), "clocks may differ"


def test_saved_rate_is_not_relaxed_by_downtime() -> None:
    failing = a_rate(0.01).counted(sent=50, failed=50)
    resumed = failing.resumed(0, NOON + timedelta(days=3))
    assert resumed.quota == pytest.approx(6)
    assert resumed.since == NOON + timedelta(days=3)


def test_rate_without_counts_and_quota_is_blank() -> None:
    assert a_rate().is_blank
    assert not a_rate(quota=2).is_blank
    assert not a_rate().counted(sent=1).is_blank


counts = st.integers(0, 10**6)


@given(counts, counts, counts, st.floats(0, 1e6), st.integers(1, 10**6))
def test_quota_is_positive_above_threshold_and_never_negative(
    succeeded: int, failed: int, running: int, quota: float, seconds: int
) -> None:
    rate = a_rate(quota=quota).counted(succeeded=succeeded, failed=failed)
    following = rate.adjusted(running, NOON + INTERVAL + timedelta(seconds=seconds))
    assert following.quota >= 0
    elapsed = INTERVAL.total_seconds() + seconds
    if failed / elapsed > rate.threshold:
        assert following.quota > 0
