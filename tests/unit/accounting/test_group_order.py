"""The operators' order of groups: values of groups, groups without a number, and which expressions are refused."""

from __future__ import annotations

import pytest

from pilotage.accounts import Quota, QuotaUnit
from pilotage.classads.library import InvalidClassAdError
from pilotage.values.accounts import Account
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.group_order import check_group_order
from pilotage_server.core.rules import Sharing
from support.virtual_clock import START

ANN, BEN, CAL = Account("atlas", "mcore", "ann"), Account("atlas", "score", "ben"), Account("lhcb", "", "cal")

HTCONDORS_DEFAULT = """
    ifThenElse(AccountingGroup =?= "<none>", 3.4e+38,
        ifThenElse(GroupQuota > 0, GroupResourcesInUse/GroupQuota, 3.3e+38))
"""


def shares_by(expression: str) -> FairShare:
    """Return shares in which ann uses 6 of the 8 cores of her group, ben 3 of 10, and cal none of a weight."""
    quotas = {ANN.group_id: Quota(8, QuotaUnit.CORES), BEN.group_id: Quota(10, QuotaUnit.CORES)}
    shares = FairShare(Sharing(group_quotas=quotas, group_sort_expression=check_group_order(expression)))
    shares.start_run(ANN, 6, START)
    shares.start_run(BEN, 3, START)
    return shares


def order(shares: FairShare) -> list[str]:
    round_ = shares.round(START)
    return [account.owner for account in sorted((ANN, BEN, CAL), key=round_.share)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (HTCONDORS_DEFAULT, ["ben", "ann", "cal"]),
        ("-GroupResourcesInUse", ["ann", "ben", "cal"]),
        ("GroupWeight > 0 ? -1 : GroupQuota", ["cal", "ann", "ben"]),
        ('ifThenElse(VO == "lhcb", 0, ifThenElse(regexp("^m", AccountingGroup), 1, 2))', ["cal", "ann", "ben"]),
        ('AccountingGroup == "score"', ["ann", "cal", "ben"]),
        ("0", ["ben", "ann", "cal"]),
    ],
)
def test_groups_go_in_increasing_order_of_the_expression(expression: str, expected: list[str]) -> None:
    assert order(shares_by(expression)) == expected


@pytest.mark.parametrize("no_number", ["undefined", 'real("NaN")'])
def test_group_without_a_number_goes_after_numbers_and_before_full_quotas(no_number: str) -> None:
    shares = shares_by(f'ifThenElse(AccountingGroup == "score", {no_number}, 1e308)')
    assert order(shares)[-1] == "ben"
    shares.start_run(ANN, 2, START)
    assert order(shares) == ["cal", "ben", "ann"]


def test_fault_of_a_group_is_reported_once() -> None:
    shares = shares_by('ifThenElse(VO == "lhcb", strcat("la", "st"), 1)')
    order(shares)
    assert shares.group_order.take_faults() == {CAL.group_id: 'the value is "last", which is no number'}
    shares.start_run(CAL, 1, START)
    order(shares)
    assert shares.group_order.take_faults() == {}


def test_charges_within_a_tick_move_no_group_until_it_reaches_its_quota() -> None:
    round_ = shares_by("-GroupResourcesInUse").round(START)
    round_.charge(BEN, 6.9)
    assert round_.share(ANN) < round_.share(BEN) < round_.share(CAL)
    round_.charge(ANN, 2)
    assert round_.share(BEN) < round_.share(CAL) < round_.share(ANN)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("GroupResourcesAllocated", "use GroupQuota instead"),
        ("GroupQouta", "it refers to groupqouta; a group has AccountingGroup, VO,"),
        ("TARGET.GroupQuota", "it refers to groupquota"),
        ("time() % 2", "reads the time"),
        ('eval("GroupQuota")', "a computed text"),
    ],
)
def test_expression_over_unknown_attributes_is_refused(expression: str, why: str) -> None:
    with pytest.raises(InvalidClassAdError, match=why):
        check_group_order(expression)
