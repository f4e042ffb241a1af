"""The text form of quotas, accounts and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.accounts import LARGEST, Quota, QuotaUnit, read_quota, split_account, split_group
from pilotage.errors import InvalidInputError
from pilotage.rpc.wire import quota_from_wire, quota_to_wire
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.identity import charged_account

AMOUNTS = st.integers(1, 10**9).map(float)
NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("3", Quota(3)),
        (3, Quota(3)),
        (0.25, Quota(0.25)),
        (" .5 ", Quota(0.5)),
        ("40 cores", Quota(40, QuotaUnit.CORES)),
        ("1core", Quota(1, QuotaUnit.CORES)),
        ("25 %", Quota(0.25, QuotaUnit.PART)),
        ("100%", Quota(1, QuotaUnit.PART)),
    ],
)
def test_reads_quota(text: str | float, quota: Quota) -> None:
    assert read_quota(text) == quota


@pytest.mark.parametrize("text", ["", "much", "0", "-1", "40 slots", "101 %", "0 %", "1e10", 2 * LARGEST, 0, "nan"])
def test_rejects_invalid_quota(text: str | float) -> None:
    with pytest.raises(InvalidInputError):
        read_quota(text)


@given(st.builds(Quota, AMOUNTS, st.sampled_from([QuotaUnit.WEIGHT, QuotaUnit.CORES])))
def test_quota_round_trips_as_text_and_message(quota: Quota) -> None:
    assert read_quota(str(quota)) == quota
    assert quota_from_wire(quota_to_wire(quota)) == quota


def test_rejects_quota_message_without_amount() -> None:
    with pytest.raises(InvalidInputError, match="has no amount"):
        quota_from_wire(type(quota_to_wire(Quota(1)))())


@given(NAMES, st.lists(NAMES, max_size=3).map("/".join), NAMES)
def test_account_and_group_names_round_trip(vo: str, group: str, owner: str) -> None:
    account = Account(vo, group, owner)
    assert Account.parse(str(account)) == account
    assert GroupId.parse(str(account.group_id)) == account.group_id


@pytest.mark.parametrize("name", ["", "lhcb", "lhcb/alice", "/users/alice", "lhcb/users/"])
def test_rejects_invalid_account_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match="VO/GROUP/OWNER"):
        split_account(name)


@pytest.mark.parametrize("name", ["", "lhcb", "/users"])
def test_rejects_invalid_group_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match="VO/GROUP"):
        split_group(name)


@pytest.mark.parametrize(
    ("accounting", "charged"),
    [
        ("", "atlas/users/alice"),
        ("group_ATLAS.prdatl_mcore.prdatl28", "atlas/group_ATLAS/prdatl_mcore.prdatl28"),
        ("group_ATLAS.alice", "atlas/group_ATLAS/alice"),
        ("group_ATLAS", "atlas/group_ATLAS/alice"),
        ("group_ATLAS.", "atlas/group_ATLAS/alice"),
        (".prod", "atlas/users/prod"),
    ],
)
def test_accounting_group_selects_the_charged_account(accounting: str, charged: str) -> None:
    assert str(charged_account(Account("atlas", "users", "alice"), accounting)) == charged
