"""Decayed use and the order of accounts by share: properties over random histories, and each rule by example."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.accounts import Quota, QuotaUnit
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.fair_share import (
    FairShare,
    QuotaState,
    ShareOverrides,
    ShareSettings,
    Use,
    accrued,
    decay,
)
from pilotage_server.core.rules import Sharing
from support.virtual_clock import START

ALICE, BOB = Account("lhcb", "users", "alice"), Account("lhcb", "users", "bob")
CAROL = Account("lhcb", "prod", "carol")
USERS, PROD = ALICE.group_id, CAROL.group_id
DAY = timedelta(days=1)

WEIGHTS = st.floats(0.01, 1000)
HOURS = st.floats(0, 100)
RUNS = st.lists(st.tuples(WEIGHTS, HOURS, HOURS), min_size=1, max_size=8)

RunChange: TypeAlias = Callable[[Account, float, datetime], None]


def after(hours: float) -> timedelta:
    return timedelta(hours=hours)


@given(RUNS)
def test_many_runs_are_charged_as_their_sum(runs: list[tuple[float, float, float]]) -> None:
    shares = FairShare(Sharing())
    starts: list[tuple[float, RunChange, float]] = [(begin, shares.start_run, weight) for weight, begin, _ in runs]
    ends: list[tuple[float, RunChange, float]] = [
        (begin + length, shares.end_runs, weight) for weight, begin, length in runs
    ]
    for hours, change, weight in sorted(starts + ends, key=lambda step: step[0]):
        change(ALICE, weight, START + after(hours))
    now = START + after(200)
    expected = sum(
        accrued(weight, length * 3600, DAY) * decay((200 - begin - length) * 3600, DAY)
        for weight, begin, length in runs
    )
    microseconds = 1e-6 * sum(weight for weight, _, _ in runs)  # the resolution of datetime
    assert shares.use(ALICE, now).core_s == pytest.approx(expected, rel=1e-9, abs=2 * microseconds)


@given(st.lists(WEIGHTS, min_size=1, max_size=20))
def test_use_is_exactly_zero_after_all_runs_end(weights: list[float]) -> None:
    shares = FairShare(Sharing())
    for weight in weights:
        shares.start_run(ALICE, weight, START)
    for weight in reversed(weights):
        assert shares.use(ALICE, START).cores > 0
        shares.end_runs(ALICE, weight, START)
    assert shares.use(ALICE, START) == Use(0.0, START, 0.0, 0)


@given(WEIGHTS, HOURS, HOURS)
def test_charge_in_two_pieces_equals_charge_in_one(weight: float, first: float, second: float) -> None:
    whole = accrued(weight, (first + second) * 3600, DAY)
    pieces = accrued(weight, first * 3600, DAY) * decay(second * 3600, DAY) + accrued(weight, second * 3600, DAY)
    assert pieces == pytest.approx(whole, rel=1e-9, abs=1e-9)


def test_use_decays_by_half_in_a_half_life() -> None:
    shares, ended = FairShare(Sharing()), START + timedelta(seconds=1)
    shares.start_run(ALICE, 1, START)
    shares.end_runs(ALICE, 1, ended)
    used = shares.use(ALICE, ended).core_s
    assert used > 0
    assert shares.use(ALICE, ended + DAY).core_s == pytest.approx(used / 2)


@given(WEIGHTS, HOURS)
def test_late_reported_start_counts_from_its_time(weight: float, hours: float) -> None:
    on_time, late = FairShare(Sharing()), FairShare(Sharing())
    now = START + after(hours)
    on_time.start_run(ALICE, weight, START)
    late.start_run(ALICE, weight, now, since=START)
    assert late.use(ALICE, now).core_s == pytest.approx(on_time.use(ALICE, now).core_s)


@given(st.permutations([(ALICE, 3.0), (BOB, 0.1), (CAROL, 0.7), (Account("cms", "", "dan"), 0.2)]))
def test_order_of_shares_does_not_depend_on_arrival_order(starts: list[tuple[Account, float]]) -> None:
    shares = FairShare(Sharing(group_quotas={PROD: Quota(1, QuotaUnit.CORES)}))
    for account, cores in starts:
        shares.start_run(account, cores, START)
    round_ = shares.round(START + DAY)
    order = sorted((round_.share(account), account) for account, _ in starts)
    assert [str(account) for _, account in order] == [
        "lhcb/prod/carol",
        "cms//dan",
        "lhcb/users/bob",
        "lhcb/users/alice",
    ]


def test_user_priority_of_constant_use_approaches_its_cores() -> None:
    shares = FairShare(Sharing())
    shares.start_run(ALICE, 8, START)
    assert shares.user_priority(ALICE, START + 30 * DAY) == pytest.approx(8)
    assert shares.user_priority(ALICE, START + DAY) == pytest.approx(4)


def test_unused_account_has_minimum_priority_times_its_factor() -> None:
    shares = FairShare(Sharing(priority_factor=1000, priority_factors={BOB: 1}))
    assert (shares.user_priority(ALICE, START), shares.user_priority(BOB, START)) == pytest.approx((500, 0.5))
    assert shares.round(START).user_priority(ALICE) == pytest.approx(500)


def test_smaller_factor_goes_first_among_unused_accounts() -> None:
    round_ = FairShare(Sharing(priority_factor=1000, priority_factors={BOB: 1})).round(START)
    assert round_.share(BOB) < round_.share(ALICE)


def test_operator_override_replaces_settings_until_removed() -> None:
    rules = Sharing(priority_factor=10, priority_factors={BOB: 2}, group_quotas={USERS: Quota(3)})
    operators = ShareOverrides({ALICE: 5.0, BOB: 6.0}, {USERS: Quota(0.5, QuotaUnit.PART)})
    overridden, configured = ShareSettings(rules, operators), ShareSettings(rules)
    assert [overridden.factor(account) for account in (ALICE, BOB, CAROL)] == [5, 6, 10]
    assert [configured.factor(account) for account in (ALICE, BOB, CAROL)] == [10, 2, 10]
    assert (overridden.quota(USERS), configured.quota(USERS), overridden.quota(PROD)) == (
        Quota(0.5, QuotaUnit.PART),
        Quota(3),
        Quota(1),
    )


def shares_near_quota(*, group_accept_surplus: bool = True) -> FairShare:
    """Return shares in which carol's group uses nine of the ten cores of its quota, and alice's has a weight."""
    quotas = {PROD: Quota(10, QuotaUnit.CORES)}
    shares = FairShare(Sharing(group_quotas=quotas, group_accept_surplus=group_accept_surplus))
    shares.start_run(CAROL, 9, START - DAY)
    return shares


def test_group_precedes_weighted_groups_only_below_its_quota() -> None:
    round_ = shares_near_quota().round(START)
    assert round_.share(CAROL) < round_.share(ALICE)
    round_.charge(CAROL, 1)
    assert round_.share(CAROL).quota_state == QuotaState.AT_QUOTA
    assert round_.share(ALICE) < round_.share(CAROL)
    assert not round_.bars(CAROL, 1)


def test_quota_without_surplus_is_never_exceeded() -> None:
    round_ = shares_near_quota(group_accept_surplus=False).round(START)
    assert not round_.bars(CAROL, 1)
    assert round_.bars(CAROL, 2)
    round_.charge(CAROL, 1)
    assert round_.bars(CAROL, 1)
    assert not round_.bars(ALICE, 1000)


def test_fractional_quota_has_no_effect_while_pool_size_is_unknown() -> None:
    part = Quota(0.1, QuotaUnit.PART)
    shares = FairShare(Sharing(group_quotas={PROD: part}, group_accept_surplus=False))
    round_ = shares.round(START)
    assert round_.share(CAROL).quota_state == QuotaState.WEIGHTED
    assert not round_.bars(CAROL, 1000)


QUOTAS = st.one_of(
    st.builds(Quota, st.floats(0.1, 100)),
    st.builds(Quota, st.floats(0.1, 100), st.just(QuotaUnit.CORES)),
    st.builds(Quota, st.floats(0.01, 1), st.just(QuotaUnit.PART)),
)


@given(st.dictionaries(st.sampled_from([GroupId("vo", name) for name in "abcdef"]), QUOTAS), st.floats(0, 1e6))
def test_weighted_groups_divide_what_other_quotas_leave(quotas: dict[GroupId, Quota], pool_size: float) -> None:
    settings = ShareSettings(Sharing(), ShareOverrides(quotas=quotas), pool_size)
    entitled = settings.entitlements(quotas)
    weighted = [entitled[group] for group in quotas if settings.entitled_cores(group) is None]
    bounds = math.fsum(entitled[group] for group in quotas if settings.entitled_cores(group) is not None)
    assert all(cores >= 0 for cores in entitled.values())
    if weighted:
        assert math.fsum(weighted) == pytest.approx(max(0.0, pool_size - bounds), abs=1e-6)


def test_share_accrues_at_tick_boundaries() -> None:
    shares, later = FairShare(Sharing()), START + timedelta(seconds=1)
    shares.start_run(ALICE, 2, START)
    before = shares.priorities(START).share(ALICE)
    shares.start_run(ALICE, 1, START + timedelta(milliseconds=400))
    shares.end_runs(ALICE, 1, START + timedelta(milliseconds=800))
    assert shares.priorities(START + timedelta(milliseconds=900)).share(ALICE) == before
    assert shares.priorities(later).share(ALICE).owner > before.owner


def test_ending_more_cores_than_run_does_not_change_share() -> None:
    shares = FairShare(Sharing())
    before = shares.priorities(START).share(ALICE)
    shares.end_runs(ALICE, 5, START)
    assert shares.priorities(START).share(ALICE) == before


def test_remove_keeps_accounts_with_running_jobs() -> None:
    shares = FairShare(Sharing())
    for account in (ALICE, BOB):
        shares.start_run(account, 2, START)
    shares.end_runs(BOB, 2, START)
    shares.remove([ALICE, BOB, CAROL])
    assert shares.accounts() == shares.group_of(USERS) == (ALICE,)
    assert shares.use(ALICE, START) == Use(0.0, START, 2, 1)
