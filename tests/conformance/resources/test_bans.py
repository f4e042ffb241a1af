"""Bans on every database: given, replaced, ended by time or by hand."""

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


def give(bench: PoolBench, node: TreeNode, reason: str = "broken", hours: float | None = None) -> BanRecord:
    def operation(transaction: Transaction, state: ServerState) -> BanRecord:
        until = None if hours is None else transaction.now + timedelta(hours=hours)
        return ban(transaction, state, OPERATOR, BanOrder(node, reason, until))

    return bench.write(operation)


def in_force(bench: PoolBench) -> list[Ban]:
    return [record.ban for record in bench.database.read(list_bans)]


def test_a_ban_says_who_gave_it_and_when_and_reaches_the_matcher(bench: PoolBench, clock: VirtualClock) -> None:
    record = give(bench, TreeNode("CERN", "ce01"), "disk full", hours=2)
    assert (record.by, record.since) == ("olga", clock())
    assert record.ban == Ban("CERN", "ce01", None, "disk full", clock() + timedelta(hours=2))
    assert bench.database.read(list_bans) == (record,)
    assert [active_bans(bench.state.bans, queue, clock()) != () for queue in (BIG, SMALL, FAR)] == [True, True, False]
    bench.agree()


def test_a_ban_ends_by_itself(bench: PoolBench, clock: VirtualClock) -> None:
    give(bench, SITE, hours=2)
    clock.advance(hours=2)
    assert in_force(bench) == []
    assert active_bans(bench.state.bans, BIG, clock()) == ()


def test_a_new_ban_takes_the_place_of_the_nodes_old_one(bench: PoolBench) -> None:
    give(bench, SITE, "for an hour", hours=1)
    give(bench, SITE, "for good")
    give(bench, TreeNode("CERN", "ce01", "big"), "another node")
    assert [ban.reason for ban in in_force(bench)] == ["for good", "another node"]
    bench.agree()


def test_a_ban_taken_back_is_no_longer_in_force_and_wakes_those_who_wait(bench: PoolBench) -> None:
    record = give(bench, SITE)
    give(bench, TreeNode("CERN", "ce01", "big"))
    woken: list[str] = []
    bench.state.access_listeners.append(lambda: woken.append("now"))
    assert bench.write(lambda transaction, state: unban(transaction, state, SITE)) == (record,)
    assert [str(ban) for ban in in_force(bench)] == ["CERN/ce01/big"]
    assert woken == ["now"]
    bench.agree()


def test_taking_back_a_ban_that_is_not_there_is_an_error(bench: PoolBench) -> None:
    give(bench, SITE)
    with pytest.raises(NotFoundError, match="CERN/ce01"):
        bench.write(lambda transaction, state: unban(transaction, state, TreeNode("CERN", "ce01")))
    assert len(in_force(bench)) == 1


def test_the_ban_of_a_node_that_has_left_the_tree_can_be_taken_back(bench: PoolBench) -> None:
    give(bench, SITE)
    bench.put(a_new_tree())
    assert len(bench.write(lambda transaction, state: unban(transaction, state, SITE))) == 1


def test_a_node_is_banned_in_the_spelling_of_the_tree(bench: PoolBench) -> None:
    assert str(give(bench, TreeNode("cern", "CE01", "Big")).ban) == "CERN/ce01/big"
    assert len(bench.write(lambda transaction, state: unban(transaction, state, TreeNode("Cern", "ce01", "BIG")))) == 1


@pytest.mark.parametrize(
    ("node", "field", "nearest"),
    [
        (TreeNode("CERM"), "site", "CERN"),
        (TreeNode("CERN", "ce1"), "ce", "ce01"),
        (TreeNode("CERN", "ce01", "bigg"), "queue", "big"),
    ],
)
def test_a_ban_of_an_unknown_node_names_the_nearest(bench: PoolBench, node: TreeNode, field: str, nearest: str) -> None:
    with pytest.raises(InvalidInputError, match=nearest) as refused:
        give(bench, node)
    assert [violation.where for violation in refused.value.violations] == [field]
    assert in_force(bench) == []


def test_a_ban_without_a_reason_or_with_an_end_in_the_past_tells_both_faults(bench: PoolBench) -> None:
    with pytest.raises(InvalidInputError) as refused:
        give(bench, SITE, reason=" ", hours=-1)
    assert [violation.where for violation in refused.value.violations] == ["reason", "until"]


def test_a_queue_is_not_banned_without_its_computing_element(bench: PoolBench) -> None:
    with pytest.raises(InvalidInputError, match="computing element"):
        give(bench, TreeNode("CERN", None, "big"))


def test_two_servers_on_one_database_learn_of_each_others_bans(bench: PoolBench) -> None:
    there = PoolBench(bench.database)
    give(bench, SITE)
    there.catch_up()
    assert there.state.bans == bench.state.bans != ()
