"""The audit: an entry for each change by operators, in the transaction of the change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from pilotage.accounts import Quota, QuotaUnit
from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.values.accounts import GroupId
from pilotage_server.core.audit import LONGEST_DIFFERENCE, AuditEntry, AuditKind, text_difference
from pilotage_server.core.health.throttles import HoldOrder
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.accounting.shares import set_shares
from pilotage_server.operations.audit import AuditPage, list_audit, record_change
from pilotage_server.operations.health import hold_place, open_place
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.retention import REMOVALS
from pilotage_server.operations.pilots.nodes import set_node_attributes
from pilotage_server.operations.put_tree import put_tree, try_tree
from pilotage_server.operations.resources.bans import BanOrder, ban, unban
from pilotage_server.operations.resources.tree import parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.identity.audit import AuditQuery
from support.grid import QUEUE, Grid
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

ALWAYS = datetime.min.replace(tzinfo=UTC)
EVERYTHING = AuditQuery(ALWAYS)
SITE = TreeNode("CERN")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def page_of(transaction: Transaction, _: ServerState, query: AuditQuery, page_size: int, token: str) -> AuditPage:
    return list_audit(transaction, query, page_size, token)


def audit(grid: Grid, query: AuditQuery = EVERYTHING, page_size: int = 100) -> list[AuditEntry]:
    """Return all entries, page by page, without those of the grid's own tree and pilots."""
    found: list[AuditEntry] = []
    token = ""
    while True:
        page = grid.read(partial(page_of, query=query, page_size=page_size, token=token))
        found += (each for each in page.entries if each.subject != "version 1" and each.what != "pilot-secret")
        token = page.next_page_token
        if not token:
            return found


def differences(entries: Sequence[AuditEntry]) -> list[tuple[str, str, str, str]]:
    """Return who has changed what, the oldest first."""
    return [(each.who, each.what.value, each.subject, each.difference) for each in reversed(entries)]


def test_changes_of_a_place_are_stored_with_what_was_before(grid: Grid, clock: VirtualClock) -> None:
    until = clock() + timedelta(hours=1)
    olga, otto = an_operator(), an_operator("otto")
    grid.write(lambda transaction, state: ban(transaction, state, olga, BanOrder(SITE, "power cut", until)))
    grid.write(lambda transaction, state: ban(transaction, state, otto, BanOrder(SITE, "new cooling")))
    grid.write(lambda transaction, state: unban(transaction, state, olga, SITE))
    held = HoldOrder(QUEUE, "too many fail", "olga")
    grid.write(lambda transaction, state: hold_place(transaction, state, olga, held))
    grid.write(lambda transaction, state: open_place(transaction, state, otto, QUEUE))
    first = f"banned until {until:%Y-%m-%d %H:%M:%S} UTC by olga: power cut"
    second = "banned until it is removed by otto: new cooling"
    assert differences(audit(grid)) == [
        ("olga", "ban", "CERN", f"+ {first}"),
        ("otto", "ban", "CERN", f"- {first}\n+ {second}"),
        ("olga", "ban", "CERN", f"- {second}"),
        ("olga", "health", QUEUE.key, "+ held: too many fail"),
        ("otto", "health", QUEUE.key, "- held: too many fail\n+ opened: an operator opened it"),
    ]


def test_new_tree_is_stored_as_a_unified_diff(grid: Grid) -> None:
    def put(transaction: Transaction, state: ServerState, memory: int) -> None:
        new = parse_tree(f"[sites.CERN.ces.ce01.queues.long]\nMemory = {memory}\nCPUs = 8\n", "toml")
        put_tree(transaction, state, an_operator(), new, try_tree(transaction, state, new))

    for memory in (2000, 4000):
        grid.write(partial(put, memory=memory))
    newest = audit(grid, AuditQuery(ALWAYS, what="tree"))[0]
    assert newest.subject == "version 3"
    assert newest.difference.splitlines() == [
        "--- version 2",
        "+++ version 3",
        "@@ -1,3 +1,3 @@",
        " [sites.CERN.ces.ce01.queues.long]",
        "-Memory = 2000",
        "+Memory = 4000",
        " CPUs = 8",
    ]


def test_agent_is_named_with_its_leadership(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(name="n1", settable_attributes=("OnlyMulticore",))
    set_to = ({"OnlyMulticore": "true"}, ())
    grid.write(
        lambda transaction, state: set_node_attributes(
            transaction,
            state,
            an_operator("agent:drain"),
            [NodeId("CERN", "n1")],
            set_to,
            "drain controller of CERN/*/*",
        )
    )
    (entry,) = audit(grid)
    assert (entry.agent, entry.difference) == ("drain controller of CERN/*/*", "+ CERN/n1: OnlyMulticore = true")


def test_jobs_that_an_operator_changes_are_named(grid: Grid) -> None:
    alice = a_user()
    ids = grid.submit(count=2)

    def change(identity: Identity, wanted: JobChange) -> None:
        grid.write(lambda transaction, state: change_jobs(transaction, state, identity, ids, wanted, "disk full"))

    change(alice, JobChange.HOLD)
    change(an_operator(), JobChange.REMOVE)
    (entry,) = audit(grid)
    assert (entry.what, entry.subject, entry.reason) == (AuditKind.JOBS, "2 jobs of lhcb/users/alice", "disk full")
    assert entry.difference.splitlines() == [f"+ remove job {job}, which was HELD" for job in ids]


def test_refused_change_leaves_no_entry(grid: Grid) -> None:
    with pytest.raises(NotFoundError):
        grid.write(lambda transaction, state: unban(transaction, state, an_operator(), SITE))
    assert audit(grid) == []


def test_entries_are_filtered_paged_and_removed(grid: Grid, clock: VirtualClock) -> None:
    group = GroupId("lhcb", "prod")

    def set_quota(owner: str, cores: int) -> None:
        quotas: dict[GroupId, Quota | None] = {group: Quota(cores, QuotaUnit.CORES)}
        grid.write(lambda transaction, state: set_shares(transaction, state, an_operator(owner), {}, quotas))
        clock.advance(hours=1)

    set_quota("olga", 40)
    set_quota("otto", 50)
    set_quota("olga", 60)
    assert [entry.difference for entry in audit(grid, page_size=1)] == [
        "- lhcb/prod: quota 50 cores\n+ lhcb/prod: quota 60 cores",
        "- lhcb/prod: quota 40 cores\n+ lhcb/prod: quota 50 cores",
        "+ lhcb/prod: quota 40 cores",
    ]
    assert [entry.who for entry in audit(grid, AuditQuery(ALWAYS, who="olga"), 1)] == ["olga", "olga"]
    assert len(audit(grid, AuditQuery(clock() - timedelta(minutes=90)))) == 1
    assert audit(grid, AuditQuery(ALWAYS, what="ban")) == []
    clock.advance(grid.state.rules.retention.audit - timedelta(minutes=90))
    for remove in REMOVALS:
        grid.write(remove)
    assert [entry.who for entry in audit(grid)] == ["olga"]


def test_page_token_of_another_query_is_refused(grid: Grid) -> None:
    grid.write(lambda transaction, _: record_change(transaction, an_operator(), AuditKind.TREE, "version 2"))
    page = grid.read(lambda transaction, _: list_audit(transaction, AuditQuery(ALWAYS), 1))
    with pytest.raises(InvalidInputError, match="other filters"):
        grid.read(lambda transaction, _: list_audit(transaction, AuditQuery(ALWAYS, who="o"), 1, page.next_page_token))


def test_long_differences_are_cut() -> None:
    text = text_difference("", "x" * 100 + "\n" * 1 + "\n".join(["y" * 99] * 1000), ("version 1", "version 2"))
    assert len(text) < LONGEST_DIFFERENCE + 100
    assert text.endswith("more characters are not stored]")
