"""Required isolation on every database: which jobs pilots of each level get, and the reasons for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotage.values.accounts import Account, OwnerId
from pilotage.values.attempts import Outcome
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer
from pilotage_server.core.rules import Rules
from pilotage_server.operations.pilots.pilots import list_pilots
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_slots
from support.grid import LONG, Grid, Pilot, a_busy_slot, a_slot, a_tree, an_idle_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

ANN, BOB, CMS = a_user("ann"), a_user("bob"), a_user("eve", "cms")
OF_ANN = OwnerId(ANN.vo, ANN.owner)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def offers(level: Isolation, *names: str, bound_to: OwnerId | None = None, **fields: Any) -> list[SlotOffer]:
    """Return the offers of a pilot that isolates so."""
    return [a_slot(name, isolation=level, bound_to=bound_to, **fields) for name in names or ("slot1",)]


def shown(pilot: Pilot, level: Isolation, *busy_with: int) -> None:
    """Report a node with an idle slot, and a busy one for each of these jobs."""
    busy = [replace(a_busy_slot(f"busy{number}"), job_id=job) for number, job in enumerate(busy_with)]
    pilot.show(an_idle_slot(), *busy, isolation=level)


@pytest.mark.parametrize("required", list(Isolation))
def test_pilot_gets_jobs_only_at_the_level_that_its_queue_promises(grid: Grid, required: Isolation) -> None:
    grid.put(a_tree(LONG, Isolation=required.value))
    jobs = grid.submit(count=4)
    given = {level: grid.start_pilot().request_jobs(*offers(level)) for level in Isolation}
    assert {level for level, answer in given.items() if answer.matches} == {
        level for level in Isolation if level.is_at_least(required)
    }
    for level, answer in given.items():
        why = f"isolation: the pilot offers {level}, {LONG} requires {required} (stated by queue)"
        assert answer.faults == ({} if level.is_at_least(required) else {"slot1": why})
    assert len(jobs) == 4


def test_pilot_gets_jobs_as_soon_as_the_tree_requires_less(grid: Grid) -> None:
    grid.put(a_tree(LONG, Isolation="uid"))
    (job,) = grid.submit()
    pilot = grid.start_pilot()
    assert pilot.claim(*offers(Isolation.OWNER)) == []
    grid.put(a_tree(LONG, Isolation="owner"))
    assert pilot.claim(*offers(Isolation.OWNER)) == [job]


@pytest.mark.parametrize("by", ["overlay", "rules"])
def test_vo_that_requires_isolation_gets_only_such_pilots(database: Database, clock: VirtualClock, by: str) -> None:
    rules = Rules(required_isolation={"cms": Isolation.NAMESPACE} if by == "rules" else {})
    grid = Grid(database, clock, rules=rules)
    tree = a_tree(LONG)
    if by == "overlay":
        tree["defaults"] = {"ForVO": {"cms": {"Isolation": "namespace"}}}
    grid.put(tree)
    (of_cms,), (of_ann,) = grid.submit(CMS), grid.submit(ANN)
    weak = grid.start_pilot()
    shown(weak, Isolation.UID)
    answer = weak.request_jobs(*offers(Isolation.UID, "slot1", "slot2"))
    assert ([match.job_id for match in answer.matches], answer.faults) == ([of_ann], {})
    summary = grid.why(of_cms, CMS).summary
    assert "isolation: the pilot offers uid, " in summary
    assert ("VO cms requires namespace" if by == "rules" else f"{LONG} requires namespace") in summary
    assert grid.start_pilot().claim(*offers(Isolation.NAMESPACE)) == [of_cms]


def test_pilot_of_a_vo_alone_is_refused_for_that_vo(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(required_isolation={"cms": Isolation.UID}))
    grid.submit(CMS)
    answer = grid.start_pilot(LONG, "cms").request_jobs(*offers(Isolation.OWNER))
    assert answer.faults == {"slot1": "isolation: the pilot offers owner, VO cms requires uid"}


def test_overlay_lets_weaker_pilots_serve_its_vo(grid: Grid) -> None:
    grid.put(a_tree(LONG, Isolation="namespace", ForVO={"cms": {"Isolation": "none"}}))
    grid.submit(ANN)
    (of_cms,) = grid.submit(CMS)
    answer = grid.start_pilot().request_jobs(*offers(Isolation.NONE, "slot1", "slot2"))
    assert ([match.job_id for match in answer.matches], answer.faults) == ([of_cms], {})


def test_required_level_selects_queues_and_their_pilots(grid: Grid) -> None:
    strong = "CERN/ce01/strong"
    tree = a_tree(LONG, strong, Isolation="owner")
    tree["sites"]["CERN"]["ces"]["ce01"]["queues"]["strong"]["Isolation"] = "namespace"
    grid.put(tree)
    (job,) = grid.submit(requirements={"Isolation": "uid"})
    assert grid.start_pilot(LONG).claim(*offers(Isolation.NAMESPACE)) == []
    assert grid.start_pilot(strong).claim(*offers(Isolation.UID)) == []
    assert grid.start_pilot(strong).claim(*offers(Isolation.NAMESPACE)) == [job]


def test_expression_sees_the_isolation_that_the_pilot_reports(grid: Grid) -> None:
    (job,) = grid.submit(requirements_expression='TARGET.Isolation == "namespace"')
    pilot = grid.start_pilot()
    assert pilot.claim(*offers(Isolation.UID, ad_changes='[Isolation = "namespace"]')) == []
    assert pilot.claim(*offers(Isolation.NAMESPACE)) == [job]


def test_why_names_the_level_that_free_slots_lack(grid: Grid) -> None:
    grid.put(a_tree(LONG, Isolation="uid"))
    (job,) = grid.submit()
    shown(grid.start_pilot(), Isolation.NONE)
    assert grid.why(job).summary == (
        "It waits for a slot that fits: 1 queue can run it, 1 pilot there, but it does not fit in the free slot "
        f"(isolation: the pilot offers none, {LONG} requires uid (stated by queue))."
    )


# One owner at a time


def by_owner(grid: Grid, jobs: list[int]) -> set[str]:
    return {grid.job(job).owner for job in jobs}


@pytest.mark.parametrize("slots", [{"partitionable": True, "cpus": 4}, {}, {"ad_changes": "[Start = true]"}])
def test_unbound_pilot_gets_jobs_of_one_owner_in_one_answer(grid: Grid, slots: dict[str, Any]) -> None:
    grid.submit(ANN, count=2)
    grid.submit(BOB, count=2)
    jobs = grid.start_pilot().claim(*offers(Isolation.OWNER, "slot1", "slot2", "slot3", **slots))
    assert len(by_owner(grid, jobs)) == 1


def test_prefetched_jobs_are_of_the_first_jobs_owner(grid: Grid) -> None:
    grid.submit(ANN, count=2)
    grid.submit(BOB, count=9)
    jobs = grid.start_pilot().claim(*offers(Isolation.OWNER, "slot1", "slot2", ahead=5))
    assert len(by_owner(grid, jobs)) == 1
    assert len(jobs) > 1


@pytest.mark.parametrize("fields", [{}, {"partitionable": True, "cpus": 8}, {"ad_changes": "[Start = true]"}])
@pytest.mark.parametrize("claim", [None, Account(BOB.vo, "users", BOB.owner)])
def test_bound_pilot_gets_only_jobs_of_its_owner(grid: Grid, fields: dict[str, Any], claim: Account | None) -> None:
    grid.submit(BOB, count=5)
    (mine,) = grid.submit(ANN)
    pilot = grid.start_pilot()
    slots = offers(Isolation.OWNER, "s1", "s2", "s3", bound_to=OF_ANN, claim=claim, **fields)
    assert pilot.claim(*slots) == [mine]
    assert pilot.claim(*slots) == []


def test_other_groups_of_the_same_owner_are_the_same_owner(grid: Grid) -> None:
    (job,) = grid.submit(a_user("ann", "lhcb", "prod"))
    assert grid.start_pilot().claim(*offers(Isolation.OWNER, bound_to=OF_ANN)) == [job]


def test_same_name_in_another_vo_is_another_owner(grid: Grid) -> None:
    grid.submit(a_user("ann", "cms"))
    assert grid.start_pilot().claim(*offers(Isolation.OWNER, bound_to=OF_ANN)) == []


def test_why_says_that_pilots_hold_jobs_of_another_owner(grid: Grid) -> None:
    grid.submit(ANN)
    pilot = grid.start_pilot()
    match = pilot.take(*offers(Isolation.OWNER))
    shown(pilot, Isolation.OWNER, match.job_id)
    (waiting,) = grid.submit(BOB)
    assert "its pilot holds jobs of another owner" in grid.why(waiting, BOB).summary
    pilot.report(match, Outcome.EXITED, exit_code=0)
    shown(pilot, Isolation.OWNER)
    assert "another owner" not in grid.why(waiting, BOB).summary


def test_listed_pilots_and_slots_show_their_isolation(grid: Grid) -> None:
    silent, uid = grid.start_pilot(), grid.start_pilot()
    shown(uid, Isolation.UID)
    pilots = grid.read(lambda transaction, _: list_pilots(transaction))
    assert {each.pilot.stamp: each.pilot.isolation for each in pilots} == {silent.stamp: None, uid.stamp: Isolation.UID}
    (slot,) = grid.read(lambda transaction, _: load_slots(transaction.session))
    assert slot.isolation is Isolation.UID
