"""Priority factors and quotas set by operators: their effect on matches, on all servers, after restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pilotage.accounts import Quota, QuotaUnit
from pilotage.errors import PermissionDeniedError
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account, GroupId
from pilotage.values.attempts import Outcome
from pilotage.values.offers import SlotOffer
from pilotage_server.background import log_unsorted_groups
from pilotage_server.core.accounting.shares import Shares
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import Identity
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.operations.accounting.shares import list_shares, refresh_pool_size, set_shares
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.startup.loading import refresh_state
from pilotage_server.settings import read_submit_policy
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, a_slot, an_idle_slot
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

BIG, SMALL = GroupId("lhcb", "big"), GroupId("lhcb", "small")
ANN, BEN = Account("lhcb", "big", "ann"), Account("lhcb", "small", "ben")


def submit(grid: Grid, account: Account, count: int = 1, **fields: Any) -> list[int]:
    """Submit jobs charged to an account."""
    return grid.submit(a_user(account.owner, account.vo, account.group), count, **fields)


def set_quotas(
    grid: Grid, quotas: dict[GroupId, Quota | None], factors: dict[Account, float | None] | None = None
) -> None:
    """Set quotas and priority factors."""
    grid.write(lambda transaction, state: set_shares(transaction, state, an_operator(), factors or {}, quotas))


def shares(grid: Grid, identity: Identity | None = None, vo: str = "") -> Shares:
    return grid.read(lambda transaction, state: list_shares(transaction, state, identity or an_operator(), vo))


def owners(grid: Grid, slots: int) -> list[str]:
    """Offer free slots of a new pilot and return the owners of the matches, in order."""
    answer = grid.start_pilot().request_jobs(*(a_slot(f"s{number}") for number in range(slots)))
    return [match.owner for match in answer.matches]


def test_priority_factor_applies_until_reset(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(priority_factor=10)))
    one, other = Account("lhcb", "big", "one"), Account("lhcb", "big", "two")
    submit(grid, one, 20)
    submit(grid, other, 20)
    set_quotas(grid, {}, {other: 1.0})
    assert owners(grid, 11).count("two") == 10
    set_quotas(grid, {}, {other: None})
    assert grid.state.shares.settings.factor(other) == 10


def test_settings_reach_other_servers_and_survive_restart(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    neighbour = grid.restarted()
    set_quotas(grid, {BIG: Quota(0.25, QuotaUnit.PART), SMALL: Quota(7)}, {ANN: 3.0, BEN: 4.0})
    set_quotas(grid, {SMALL: Quota(8, QuotaUnit.CORES)}, {BEN: None})
    neighbour.read(refresh_state)
    for server in (grid, neighbour, grid.restarted()):
        settings = server.state.shares.settings
        assert (settings.factor(ANN), settings.factor(BEN)) == (3, 1)
        assert (settings.quota(BIG), settings.quota(SMALL)) == (
            Quota(0.25, QuotaUnit.PART),
            Quota(8, QuotaUnit.CORES),
        )


def test_weights_divide_the_slots(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    submit(grid, ANN, 20)
    submit(grid, BEN, 20)
    set_quotas(grid, {BIG: Quota(3)})
    assert owners(grid, 12).count("ann") == 9


def test_group_gets_its_quota_first_and_surplus_last(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    set_quotas(grid, {BIG: Quota(2, QuotaUnit.CORES)})
    submit(grid, ANN, 9)
    submit(grid, BEN, 3)
    assert owners(grid, 7) == ["ann", "ann", "ben", "ben", "ben", "ann", "ann"]


def test_strict_quota_leaves_slots_empty_and_explains_it(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(group_accept_surplus=False), lease=timedelta(days=1)))
    set_quotas(grid, {BIG: Quota(2, QuotaUnit.CORES)})
    jobs = submit(grid, ANN, 4)
    pilot = grid.start_pilot()
    first, _ = pilot.request_jobs(*(a_slot(f"s{number}") for number in range(4))).matches
    pilot.show(an_idle_slot())
    (outlook,) = grid.why(jobs[3]).eligible_queues
    assert outlook.obstacle == "its group has a quota of 2 cores and uses them"
    woken: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, _: woken.append(task_queue.id))
    pilot.finish(first)
    assert woken == [grid.job(jobs[3]).task_queue_id]
    assert pilot.claim() == [jobs[2]]
    assert pilot.claim() == []
    wakeups: list[bool] = []
    grid.state.access_listeners.append(lambda: wakeups.append(True))
    set_quotas(grid, {BIG: Quota(2, QuotaUnit.CORES)})
    assert not wakeups
    set_quotas(grid, {BIG: Quota(3, QuotaUnit.CORES)})
    assert wakeups
    assert pilot.claim() == [jobs[3]]


def test_jobs_beyond_a_strict_quota_in_cores_are_no_demand(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(group_accept_surplus=False)))
    set_quotas(grid, {BIG: Quota(5, QuotaUnit.CORES), SMALL: Quota(0.5, QuotaUnit.PART)})
    submit(grid, ANN, 4)
    submit(grid, ANN, 3, request_cpus=2)
    submit(grid, BEN, 9)

    def demand() -> tuple[list[tuple[int, int, tuple[int, ...]]], list[int]]:
        """Return cores, number and limits of the jobs of each demand, and the room of each limit in cores."""
        answer = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)]))
        assert all(each.counts_cores for each in answer.limits)
        demands = [(each.amounts.cpus, each.waiting, each.limit_indexes) for each in answer.demands]
        return demands, [each.room for each in answer.limits]

    assert demand() == ([(1, 4, (0,)), (2, 2, (0,)), (1, 9, ())], [5]), "a part of all cores grows with the pilots"
    pilot = grid.start_pilot()
    matches = pilot.request_jobs(*(a_slot(f"s{number}") for number in range(3))).matches
    assert [match.owner for match in matches].count("ann") == 3
    assert demand() == ([(1, 1, (0,)), (2, 1, (0,)), (1, 9, ())], [2])
    pilot.finish(matches[0])
    set_quotas(grid, {BIG: Quota(2, QuotaUnit.CORES)})
    assert demand() == ([(1, 9, ())], [0])
    set_quotas(grid, {BIG: Quota(2)})
    assert demand() == ([(1, 1, ()), (2, 3, ()), (1, 9, ())], [])


def test_freed_quota_notifies_how_many_jobs_may_run(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(group_accept_surplus=False)))
    set_quotas(grid, {BIG: Quota(3, QuotaUnit.CORES)})
    submit(grid, ANN, 6)
    pilot = grid.start_pilot()
    early = pilot.request_jobs(a_slot("s1"), a_slot("s2")).matches
    clock.advance(seconds=1)
    runs = (*early, *pilot.request_jobs(a_slot("s3")).matches)
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda _, count: notified.append(count))
    done = [JobReport(run.job_id, run.attempt, outcome=Outcome.EXITED, exit_code=0) for run in runs]
    pilot.beat(*done)
    assert notified == [3]


@pytest.mark.parametrize(
    ("slot", "taken"),
    [
        (a_slot(cpus=4), 0),
        (a_slot(cpus=4, partitionable=True), 3),
        (a_slot(cpus=4, partitionable=True, ad_changes="[ SlotWeight = Cpus * 1.5 ]"), 2),
        (a_slot(cpus=4, ad_changes="[ SlotWeight = 3 ]"), 1),
    ],
)
def test_strict_quota_counts_granted_not_requested_cores(
    database: Database, clock: VirtualClock, slot: SlotOffer, taken: int
) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(group_accept_surplus=False)))
    set_quotas(grid, {BIG: Quota(3, QuotaUnit.CORES)})
    (job_id, *_) = submit(grid, ANN, 4)
    pilot = grid.start_pilot()
    assert len(pilot.claim(slot)) == taken
    if not taken:
        pilot.show(an_idle_slot(cpus=4))
        (outlook,) = grid.why(job_id).eligible_queues
        assert outlook.obstacle == "its group has a quota of 3 cores and uses them"


def test_pool_size_counts_each_slot_once(database: Database, clock: VirtualClock) -> None:
    sharing = Sharing(machine_constraint="CAN_RUN_WHOLE_MACHINE == False")
    grid = Grid(database, clock, rules=Rules(sharing=sharing))
    part, whole = "[ CAN_RUN_WHOLE_MACHINE = false ]", "[ CAN_RUN_WHOLE_MACHINE = true ]"
    singles = [replace(an_idle_slot(f"slot{number}"), ad=part) for number in range(1, 9)]
    pilot = grid.start_pilot()
    pilot.request_jobs()
    pilot.show(*singles, replace(an_idle_slot("slot9", 8), ad=whole))
    set_quotas(grid, {BIG: Quota(0.25, QuotaUnit.PART)})
    assert grid.state.shares.settings.entitled_cores(BIG) == 2
    (big,) = [group for group in shares(grid).groups if group.group == BIG]
    assert (shares(grid).pool_size, big.entitled_cores) == (8, 2)
    other = grid.start_pilot()
    other.request_jobs()
    other.show(*singles)
    grid.read(refresh_pool_size)
    assert grid.state.shares.settings.entitled_cores(BIG) == 4
    assert grid.restarted().state.shares.settings.entitled_cores(BIG) == 4


def test_larger_pool_wakes_requests_blocked_by_quota(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(group_accept_surplus=False)))
    set_quotas(grid, {BIG: Quota(0.5, QuotaUnit.PART)})
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot(cpus=2))
    grid.read(refresh_pool_size)
    jobs = submit(grid, ANN, 2)
    assert pilot.claim(a_slot("s1"), a_slot("s2")) == jobs[:1]
    wakeups: list[bool] = []
    grid.state.access_listeners.append(lambda: wakeups.append(True))
    grid.read(refresh_pool_size)
    assert not wakeups
    pilot.show(an_idle_slot(cpus=4))
    grid.read(refresh_pool_size)
    assert wakeups
    assert pilot.claim(a_slot("s2")) == jobs[1:]


def test_shares_show_use_entitlement_and_waiting_jobs(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(lease=timedelta(days=1)))
    set_quotas(grid, {BIG: Quota(3)}, {BEN: 2.0})
    submit(grid, ANN, 1)
    submit(grid, BEN, 3)
    grid.start_pilot().claim(a_slot("s1"), a_slot("s2"))
    grid.pass_time(hours=1)
    result = shares(grid)
    big, small = result.groups
    assert (big.group, big.quota, big.quota_is_set, big.cores, big.waiting) == (BIG, Quota(3), True, 1, 0)
    assert (small.group, small.quota_is_set, small.waiting) == (SMALL, False, 2)
    assert (big.entitled_part, small.entitled_part) == (0.75, 0.25)
    assert (big.used_part, small.used_part) == pytest.approx((0.5, 0.5))
    ann, ben = result.accounts
    assert (ann.account, ann.factor_is_set, ann.use.cores, ann.waiting) == (ANN, False, 1, 0)
    assert (ben.account, ben.factor, ben.factor_is_set, ben.waiting) == (BEN, 2, True, 2)
    assert (ann.user_priority, ben.user_priority) == pytest.approx((0.5, 1))
    assert ann.use.core_s == pytest.approx(3600, rel=0.02)


def test_restart_counts_runs_of_different_starts(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(lease=timedelta(days=1)))
    submit(grid, ANN, 4)
    grid.start_pilot().request_jobs(*(a_slot(f"s{number}") for number in range(3)))
    grid.pass_time(hours=1)
    grid.start_pilot().request_jobs(a_slot("s1"))
    grid.pass_time(hours=1)

    used, after = (server.state.shares.use(ANN, clock()) for server in (grid, grid.restarted()))

    assert (after.cores, after.runs) == (used.cores, used.runs) == (4, 4)
    assert after.core_s == pytest.approx(used.core_s)


FALLOWS_GROUPS = r"""
Width = ifThenElse(RequestCpus > 1, "_mcore", "_score")
LivAcctSubGroup = strcat(regexps("([A-Za-z0-9]+[A-Za-z])\d+", Owner, "\1"), Width)
AccountingGroup = strcat(LivAcctSubGroup, ".", Owner)
SUBMIT_EXPRS = $(SUBMIT_EXPRS) Width, LivAcctSubGroup, AccountingGroup
"""
MCORE, SCORE = GroupId("atlas", "prdatl_mcore"), GroupId("atlas", "prdatl_score")
NARROW, WIDE = list(range(2, 10)), [10, 11]
"""The ids of the waiting jobs of the two groups."""

MCORE_FIRST = 'ifThenElse(regexp("_mcore$", AccountingGroup), 0, 1)'


def grid_of_fallow(database: Database, clock: VirtualClock, folder: Path, sort_expression: str) -> Grid:
    """Return a grid with waiting jobs of one person in Fallow's two groups; the multicore group has more use."""
    (folder / "submit.conf").write_text(FALLOWS_GROUPS)
    submission = read_submit_policy(folder / "submit.conf", None)
    sharing = Sharing(priority_factor=1000, group_sort_expression=sort_expression)
    grid = Grid(database, clock, rules=Rules(sharing=sharing, submission=submission, lease=timedelta(days=1)))
    set_quotas(grid, {}, {Account(*MCORE, "prdatl28"): 1.0})
    prdatl = a_user("prdatl28", "atlas")
    grid.submit(prdatl, 1, request_cpus=8)
    grid.start_pilot().claim(a_slot(cpus=8))
    clock.advance(hours=1)
    assert grid.submit(prdatl, 8, request_cpus=1) == NARROW
    assert grid.submit(prdatl, 2, request_cpus=8) == WIDE
    return grid


@pytest.mark.parametrize(
    ("sort_expression", "expected"), [("", NARROW), (MCORE_FIRST, WIDE[:1])], ids=["shares", "order"]
)
def test_wide_slots_go_to_the_group_that_the_order_considers_first(
    database: Database, clock: VirtualClock, tmp_path: Path, sort_expression: str, expected: list[int]
) -> None:
    grid = grid_of_fallow(database, clock, tmp_path, sort_expression)
    assert grid.start_pilot().claim(a_slot(cpus=8, partitionable=True)) == expected


def test_order_of_groups_is_shown_with_its_reasons(database: Database, clock: VirtualClock, tmp_path: Path) -> None:
    in_use = 'ifThenElse(regexp("_mcore$", AccountingGroup), GroupResourcesInUse, strcat("no", "number"))'
    grid = grid_of_fallow(database, clock, tmp_path, in_use)
    assert grid.state.rules.sharing.group_sort_expression == shares(grid).group_sort_expression == in_use
    no_number = 'the value is "nonumber", which is no number'
    shown = [(each.group, each.sort_value, each.goes_last) for each in shares(grid).groups]
    assert shown == [(MCORE, 8, ""), (SCORE, None, no_number)]
    with capture_logs() as logs:
        for _ in range(2):
            asyncio.run(log_unsorted_groups(grid.state))
            shares(grid)
    assert [(line["event"], line["group"], line["why"]) for line in logs] == [
        ("group goes last", str(SCORE), no_number)
    ]
    by = "by group_sort_expression, which comes before shares, its group"
    narrow, wide = (grid.why(each[0]) for each in (NARROW, WIDE))
    assert (
        f"{by} goes last, because {no_number}; 1 other account with work for the same queues goes first" in narrow.order
    )
    assert f"{by} has the value 8; no account with work for the same queues goes first" in wide.order
    assert (narrow.jobs_ahead, wide.jobs_ahead) == (2, 0)
    set_quotas(grid, {MCORE: Quota(8, QuotaUnit.CORES)})
    assert [(each.group, each.goes_last) for each in shares(grid).groups] == [
        (SCORE, no_number),
        (MCORE, "it uses its quota"),
    ]


def test_users_see_only_shares_of_their_vo(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    submit(grid, ANN)
    submit(grid, Account("cms", "", "carl"))
    assert [use.account for use in shares(grid, a_user("ann", "LHCb")).accounts] == [ANN]
    assert len(shares(grid).accounts) == 2
    assert len(shares(grid, vo="cms").groups) == 1
    with pytest.raises(PermissionDeniedError, match="other VOs"):
        shares(grid, a_user("ann", "lhcb"), "cms")
