"""The overview: counts of jobs now and over time, and the sites, as operators and users see them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.overview import GridOverview, count_minute, get_overview, keep_counts
from pilotage_server.operations.resources.bans import BanOrder, ban
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_slot
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

HOUR, STEP = timedelta(hours=1), timedelta(minutes=10)
OPERATOR = an_operator()


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def overview(grid: Grid, **fields: Any) -> GridOverview:
    return grid.read(lambda transaction, state: get_overview(transaction, state, OPERATOR, **fields))


def keep_minute(grid: Grid) -> None:
    """Let a minute pass, and keep its counts as each of two servers would."""
    grid.clock.advance(timedelta(minutes=1))
    counted = [grid.read(count_minute) for _ in range(2)]
    for each in counted:
        assert each is not None
        grid.write(partial(keep_counts, counted=each))
    assert grid.read(count_minute) is None


def test_history_has_what_waited_ran_and_ended(grid: Grid) -> None:
    ids = grid.submit(a_user(), count=4)
    pilot = grid.start_pilot()
    match = pilot.take(a_slot())
    pilot.start(match)
    keep_minute(grid)
    pilot.finish(match)
    grid.change(JobChange.REMOVE, ids[-1])
    keep_minute(grid)
    seen = overview(grid, history=HOUR, step=STEP)
    assert (seen.now.waiting, seen.now.running, seen.held) == (2, 0, 0)
    counts = [each for _, each in seen.history]
    minutes = sum(each.minutes for each in counts)
    assert minutes == 2, "each minute counts once"
    assert sum(each.waiting * each.minutes for each in counts) == 3 + 2
    assert sum(each.running * each.minutes for each in counts) == 1
    assert [sum(getattr(each, name) for each in counts) for name in ("done", "failed", "removed")] == [1, 0, 1]
    assert all(time.minute % 10 == 0 for time, _ in seen.history)


def test_user_sees_the_own_vo(grid: Grid) -> None:
    grid.submit(a_user(), count=3)
    grid.submit(a_user("bob", "atlas"), count=2, hold=True)
    keep_minute(grid)
    assert (overview(grid).now.waiting, overview(grid).held) == (3, 2)
    assert (overview(grid, vo="atlas").now.waiting, overview(grid, vo="atlas").held) == (0, 2)
    bob = a_user("bob", "atlas")
    seen = grid.read(lambda transaction, state: get_overview(transaction, state, bob, history=HOUR))
    assert (seen.now.waiting, seen.held, [each.waiting for _, each in seen.history]) == (0, 2, [0])
    with pytest.raises(PermissionDeniedError):
        grid.read(lambda transaction, state: get_overview(transaction, state, bob, "lhcb"))


def test_sites_have_sums_of_their_queues(grid: Grid) -> None:
    grid.submit(a_user())
    pilot = grid.start_pilot()
    pilot.start(pilot.take(a_slot()))
    (site,) = overview(grid).sites
    assert (site.closed, site.leased.running, site.pilots, site.banned) == (0, 1, 1, "")
    order = BanOrder(TreeNode(site.site), "cooling")
    grid.write(lambda transaction, state: ban(transaction, state, OPERATOR, order))
    (banned,) = overview(grid).sites
    assert (banned.closed, banned.banned) == (banned.queues, f"{site.site} is banned: cooling")


@pytest.mark.parametrize(
    ("history", "step", "field"),
    [
        (timedelta(days=9), STEP, "history_s"),
        (timedelta(days=2), timedelta(minutes=1), "history_s"),
        (HOUR, timedelta(seconds=90), "step_s"),
    ],
)
def test_unbounded_history_is_refused(grid: Grid, history: timedelta, step: timedelta, field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        overview(grid, history=history, step=step)
    assert [violation.where for violation in refused.value.violations] == [field]
