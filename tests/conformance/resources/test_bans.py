"""Bans: setting, replacing, expiry, and removal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.resources.eligibility import Ban, active_bans
from pilotage_server.core.resources.bans import BanRecord, TreeNode
from pilotage_server.operations.resources.bans import BanOrder, ban, list_bans, unban
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.pool_bench import BIG, FAR, OPERATOR, SMALL, PoolBench, a_new_tree, three_queues
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SITE = TreeNode("CERN")


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def ban_node(bench: PoolBench, node: TreeNode, reason: str = "broken", hours: float | None = None) -> BanRecord:
    def operation(transaction: Transaction, state: ServerState) -> BanRecord:
        until = None if hours is None else transaction.now + timedelta(hours=hours)
        return ban(transaction, state, OPERATOR, BanOrder(node, reason, until))

    return bench.write(operation)


def active(bench: PoolBench) -> list[Ban]:
    return [record.ban for record in bench.database.read(list_bans)]


def test_ban_records_operator_and_time_and_reaches_matcher(bench: PoolBench, clock: VirtualClock) -> None:
    record = ban_node(bench, TreeNode("CERN", "ce01"), "disk full", hours=2)
    assert (record.by, record.since) == ("olga", clock())
    assert record.ban == Ban("CERN", "ce01", None, "disk full", clock() + timedelta(hours=2))
    assert bench.database.read(list_bans) == (record,)
    assert [active_bans(bench.state.bans, queue, clock()) != () for queue in (BIG, SMALL, FAR)] == [True, True, False]
    bench.check_consistency()


def test_ban_expires(bench: PoolBench, clock: VirtualClock) -> None:
    ban_node(bench, SITE, hours=2)
    clock.advance(hours=2)
    assert active(bench) == []
    assert active_bans(bench.state.bans, BIG, clock()) == ()


def test_new_ban_replaces_older_ban_of_node(bench: PoolBench) -> None:
    ban_node(bench, SITE, "for an hour", hours=1)
    ban_node(bench, SITE, "for good")
    ban_node(bench, TreeNode("CERN", "ce01", "big"), "another node")
    assert [ban.reason for ban in active(bench)] == ["for good", "another node"]
    bench.check_consistency()


def test_unban_ends_ban_and_wakes_waiting_requests(bench: PoolBench) -> None:
    record = ban_node(bench, SITE)
    ban_node(bench, TreeNode("CERN", "ce01", "big"))
    woken: list[str] = []
    bench.state.access_listeners.append(lambda: woken.append("now"))
    assert bench.write(lambda transaction, state: unban(transaction, state, OPERATOR, SITE)) == (record,)
    assert [str(ban) for ban in active(bench)] == ["CERN/ce01/big"]
    assert woken == ["now"]
    bench.check_consistency()


def test_unban_without_ban_is_an_error(bench: PoolBench) -> None:
    ban_node(bench, SITE)
    with pytest.raises(NotFoundError, match="CERN/ce01"):
        bench.write(lambda transaction, state: unban(transaction, state, OPERATOR, TreeNode("CERN", "ce01")))
    assert len(active(bench)) == 1


def test_removed_node_can_be_unbanned(bench: PoolBench) -> None:
    ban_node(bench, SITE)
    bench.put(a_new_tree())
    assert len(bench.write(lambda transaction, state: unban(transaction, state, OPERATOR, SITE))) == 1


def test_ban_uses_the_spelling_of_the_tree(bench: PoolBench) -> None:
    assert str(ban_node(bench, TreeNode("cern", "CE01", "Big")).ban) == "CERN/ce01/big"
    assert (
        len(
            bench.write(lambda transaction, state: unban(transaction, state, OPERATOR, TreeNode("Cern", "ce01", "BIG")))
        )
        == 1
    )


@pytest.mark.parametrize(
    ("node", "field", "nearest"),
    [
        (TreeNode("CERM"), "site", "CERN"),
        (TreeNode("CERN", "ce1"), "ce", "ce01"),
        (TreeNode("CERN", "ce01", "bigg"), "queue", "big"),
    ],
)
def test_ban_of_unknown_node_is_refused_with_nearest_name(
    bench: PoolBench, node: TreeNode, field: str, nearest: str
) -> None:
    with pytest.raises(InvalidInputError, match=nearest) as refused:
        ban_node(bench, node)
    assert [violation.where for violation in refused.value.violations] == [field]
    assert active(bench) == []


def test_all_faults_of_a_ban_are_reported(bench: PoolBench) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ban_node(bench, SITE, reason=" ", hours=-1)
    assert [violation.where for violation in refused.value.violations] == ["reason", "until"]


def test_queue_cannot_be_banned_without_its_ce(bench: PoolBench) -> None:
    with pytest.raises(InvalidInputError, match="computing element"):
        ban_node(bench, TreeNode("CERN", None, "big"))


def test_bans_reach_other_servers(bench: PoolBench) -> None:
    other = PoolBench(bench.database)
    ban_node(bench, SITE)
    other.sync()
    assert other.state.bans == bench.state.bans != ()
