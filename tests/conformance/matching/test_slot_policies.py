"""Matching by the policies of slots and jobs, and orders to vacate, on every database."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError
from pilotage.values.accounts import Account
from pilotage.values.offers import AdPart, OccupiedSlot, SlotOffer
from pilotage_server.core.matching.slot_policy import MOST_JOB_NAMES, SlotPolicies
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.rules import Rules
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, could_match
from pilotage_server.operations.matching.work import Match, WorkAnswer, WorkRequest
from pilotage_server.operations.queueing.rekeying import MOST_REFERENCES
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_slot, request_jobs
from support.jobs import a_user
from support.match_board import a_slot_with
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

BATCH = "TARGET.Batch =?= True"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def occupied_by(match: Match, *, ordered: bool = False, rank: float = 0.0, **ad: Any) -> SlotOffer:
    """Return a slot that is offered while it works on a match."""
    return a_slot_with(match.slot, **ad)._replace(occupied=OccupiedSlot(match.job_id, match.attempt, rank, ordered))


def a_part(text: str) -> AdPart:
    return AdPart(hashlib.sha256(text.encode()).hexdigest(), text)


def test_a_slots_start_and_a_jobs_expression_decide_together(grid: Grid) -> None:
    grid.submit(attributes={"Batch": False})
    grid.submit(attributes={"Batch": True}, requirements_expression="TARGET.NoSuch")
    (job_id,) = grid.submit(attributes={"Batch": True}, requirements_expression='TARGET.Site == "CERN"')
    assert grid.start_pilot().claim(a_slot_with("a", Start=BATCH), a_slot_with("b", Start=BATCH)) == [job_id]


def test_a_requirements_section_and_an_expression_work_together(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG, Memory=4000)
    grid.submit(requirements={"Memory": 8000}, requirements_expression="TARGET.Cpus >= 1")
    grid.submit(requirements={"Memory": 2000}, requirements_expression="TARGET.Cpus >= 2")
    (job_id,) = grid.submit(requirements={"Memory": 2000}, requirements_expression="TARGET.Cpus >= 1")
    assert grid.start_pilot().claim(a_slot("a"), a_slot("b")) == [job_id]


def test_jobs_that_a_new_policy_tells_apart_are_told_apart_before_they_are_matched(grid: Grid) -> None:
    plain, batch = grid.submit(attributes={"Batch": False})[0], grid.submit(attributes={"Batch": True})[0]
    assert grid.job(plain).task_queue_id == grid.job(batch).task_queue_id
    assert grid.start_pilot().claim(a_slot_with(Start=BATCH)) == [batch]
    assert grid.job(plain).task_queue_id != grid.job(batch).task_queue_id


def test_a_slot_takes_what_it_ranks_higher_and_then_the_rest(grid: Grid) -> None:
    (first,), (batch,) = grid.submit(), grid.submit(attributes={"Batch": True})
    assert grid.start_pilot().claim(a_slot_with("a", Rank=BATCH), a_slot_with("b", Rank=BATCH)) == [batch, first]


def test_a_claim_is_for_the_jobs_of_its_holder_first(grid: Grid) -> None:
    (bobs,), (alices,) = grid.submit(a_user("bob")), grid.submit(a_user("alice"))
    slots = [a_slot_with(name, claim=Account("lhcb", "users", "alice")) for name in ("a", "b")]
    assert grid.start_pilot().claim(*slots) == [alices, bobs]


def test_parts_of_an_ad_that_are_not_there_are_asked_for_and_then_kept(grid: Grid) -> None:
    grid.submit(count=3)
    pilot = grid.start_pilot()
    part = a_part("[Start = TARGET.RequestCpus == 1]")
    with_part, plain = a_slot("with part", ad_parts=(part.key,)), a_slot("plain")
    answer = pilot.ask(with_part, plain)
    assert answer.ad_parts_wanted == (part.key,)
    assert [match.slot for match in answer.matches] == ["plain"]
    brought = pilot.request(WorkRequest((with_part,), ad_parts=(part,)))
    assert ([match.slot for match in brought.matches], brought.ad_parts_wanted) == (["with part"], ())
    assert pilot.claim(with_part)


def test_a_part_that_is_not_that_of_its_key_is_refused(grid: Grid) -> None:
    forged = AdPart(a_part("[Start = True]").key, "[Start = False]")
    with pytest.raises(InvalidInputError, match="SHA-256"):
        grid.start_pilot().request(WorkRequest((a_slot(),), ad_parts=(forged,)))


def test_later_parts_win_and_changes_win_over_all(grid: Grid) -> None:
    grid.submit(attributes={"Batch": True})
    parts = [a_part("[Farm = 1; Start = False]"), a_part("[Farm = 2; Start = Farm == 3]")]
    slot = a_slot(ad_parts=tuple(part.key for part in parts), ad_changes="[Farm = 3]")
    assert grid.start_pilot().request(WorkRequest((slot,), ad_parts=tuple(parts))).matches


def test_a_slot_that_wants_the_jobs_ad_gets_it(grid: Grid) -> None:
    (job_id,) = grid.submit(attributes={"Batch": True}, request_cpus=1)
    grid.submit()
    pilot = grid.start_pilot()
    first, second = pilot.ask(a_slot("a", job_ad_wanted=True), a_slot("b")).matches
    ad = Ad.read(first.job_ad)
    assert [ad.value(name) for name in ("Batch", "Owner", "RequestCpus", "JobUniverse")] == [True, "alice", 1, 5]
    assert (first.job_id, second.job_ad) == (job_id, "")


def test_a_policy_that_is_left_to_chance_gets_nothing_and_the_rest_is_served(grid: Grid) -> None:
    grid.submit()
    answer = grid.start_pilot().ask(a_slot_with("odd", Start="random() < 2"), a_slot("even"))
    assert [match.slot for match in answer.matches] == ["even"]
    assert "random()" in answer.faults["odd"]


def test_an_attempt_is_charged_with_the_weight_of_its_slot(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take(a_slot_with(SlotWeight="Cpus * 2.5"))
    attempt = grid.read(lambda transaction, _: load_attempts(transaction.session, [(job_id, 1)]))[job_id, 1]
    assert (attempt.cpus, attempt.weight) == (1, 2.5)
    assert grid.state.shares.use(Account("lhcb", "users", "alice"), grid.clock()).cores == 2.5


def test_an_expression_over_what_is_each_jobs_own_picks_the_jobs_of_an_array(grid: Grid) -> None:
    ids = grid.submit(count=4, requirements_expression="MY.ProcId % 2 == 1")
    assert grid.start_pilot().claim(*(a_slot(name) for name in "abcd")) == [ids[1], ids[3]]


def test_a_waiting_job_of_higher_rank_makes_one_slot_vacate_and_goes_there_when_it_is_free(grid: Grid) -> None:
    grid.submit(count=2)
    pilot = grid.start_pilot()
    running = [pilot.take(a_slot_with(name)) for name in ("a", "b")]
    slots = [occupied_by(match, Rank=BATCH) for match in running]
    assert pilot.ask(*slots).vacates == ()
    (batch,) = grid.submit(attributes={"Batch": True})
    (vacate,) = pilot.ask(*slots).vacates
    assert (vacate.slot, vacate.by_rank) == ("a", True)
    assert grid.start_pilot().ask(occupied_by(running[1], Rank=BATCH)).vacates == ()
    told = [occupied_by(running[0], ordered=True, Rank=BATCH), slots[1]]
    assert [each.slot for each in pilot.ask(*told).vacates] == ["a"]
    assert pilot.claim(a_slot_with("a", Rank=BATCH), slots[1]) == [batch]
    assert pilot.ask(*told).vacates == ()


def test_of_what_is_in_a_slot_only_what_the_pilot_holds_is_believed(grid: Grid) -> None:
    grid.submit()
    match = grid.start_pilot().take()
    grid.submit(attributes={"Batch": True})
    stranger = grid.start_pilot()
    assert stranger.ask(occupied_by(match, Rank=BATCH)).vacates == ()
    assert stranger.ask(occupied_by(match._replace(attempt=9), Rank=BATCH)).vacates == ()


def test_another_user_drives_a_job_out_by_priority_only_where_slot_and_server_agree(
    database: Database, clock: VirtualClock
) -> None:
    better = "RemoteUserPrio > 1.2 * SubmittorPrio"
    grid = Grid(database, clock, rules=Rules(preemption_requirements=f"{better} && TARGET.Quick =?= True"))
    grid.submit(a_user("bob"))
    pilot = grid.start_pilot()
    match = pilot.take(a_slot_with(SlotWeight="1000"))
    grid.pass_time(minutes=15)
    occupied = occupied_by(match, PreemptionRequirements=better)
    grid.submit(a_user("alice"))
    assert pilot.ask(occupied).vacates == ()
    grid.submit(a_user("bob"), attributes={"Quick": True})
    assert pilot.ask(occupied).vacates == ()
    grid.submit(a_user("alice"), attributes={"Quick": True})
    (vacate,) = pilot.ask(occupied).vacates
    assert not vacate.by_rank


def test_who_waits_is_told_of_a_job_by_what_its_policy_says_of_it(grid: Grid) -> None:
    pilot = grid.start_pilot()
    slots = [a_slot_with("free", Start=BATCH), a_slot_with("busy", Rank=BATCH)._replace(occupied=OccupiedSlot(1, 1))]
    pilot.ask(*slots)
    told: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: told.append(queue))
    grid.submit()
    grid.submit(attributes={"Batch": True})
    assert pilot.identity.pilot is not None
    chances = [could_match(grid.state, grid.clock(), queue, pilot.identity.pilot, slots) for queue in told]
    assert chances == [PossibleSlots.NONE, PossibleSlots.FREE_SLOT | PossibleSlots.OCCUPIED_SLOT]


def test_what_can_only_be_known_of_each_job_might_be_taken(grid: Grid) -> None:
    told: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: told.append(queue))
    grid.submit(requirements_expression="MY.ProcId > 5")
    credential = grid.start_pilot().identity.pilot
    assert credential is not None
    asked = grid.state, grid.clock(), told[0], credential
    assert could_match(*asked, [a_slot()]) is PossibleSlots.FREE_SLOT
    assert not could_match(*asked, [a_slot(cpus=0)])
    assert not could_match(*asked, [a_slot_with(Start="random() > 0")])


def test_a_slot_whose_ad_was_forgotten_while_it_waited_is_told_so_that_it_brings_it_again(grid: Grid) -> None:
    part = a_part("[Start = TARGET.Batch =?= True]")
    slot = a_slot(ad_parts=(part.key,))
    pilot = grid.start_pilot()
    told: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: told.append(queue))
    assert not pilot.request(WorkRequest((slot,), ad_parts=(part,))).matches
    grid.state.policies = SlotPolicies()
    (job_id,) = grid.submit(attributes={"Batch": True})
    assert pilot.identity.pilot is not None
    assert could_match(grid.state, grid.clock(), told[0], pilot.identity.pilot, [slot]) is PossibleSlots.FREE_SLOT
    assert pilot.request(WorkRequest((slot,))).ad_parts_wanted == (part.key,)
    assert [match.job_id for match in pilot.request(WorkRequest((slot,), ad_parts=(part,))).matches] == [job_id]


def test_a_pilot_whose_policies_look_for_something_new_asks_twice_and_then_never_again(grid: Grid) -> None:
    pilot = grid.start_pilot()
    slot = a_slot_with(Start="TARGET.Seldom =!= True")
    assert _first_answer(grid, pilot, slot).unreferred == {"seldom"}
    grid.submit()
    assert pilot.ask(slot).matches
    assert _first_answer(grid, pilot, slot).unreferred == frozenset()


def _first_answer(grid: Grid, pilot: Pilot, slot: SlotOffer) -> WorkAnswer:
    return grid.write(lambda transaction, state: request_jobs(transaction, state, pilot.identity, WorkRequest((slot,))))


def test_a_policy_that_looks_for_too_many_attributes_gets_nothing_and_the_rest_is_served(grid: Grid) -> None:
    (job_id,) = grid.submit()
    curious = " || ".join(f"TARGET.A{number}" for number in range(MOST_JOB_NAMES + 1))
    answer = grid.start_pilot().ask(a_slot_with("a", Start=f"({curious}) =!= True"), a_slot("b"))
    assert answer.faults == {"a": f"refers to {MOST_JOB_NAMES + 1} job attributes, and may refer to {MOST_JOB_NAMES}"}
    assert [match.job_id for match in answer.matches] == [job_id]
    assert grid.state.significant_attributes == frozenset()


def test_policies_that_look_for_more_than_can_tell_jobs_apart_get_nothing_and_the_rest_is_served(grid: Grid) -> None:
    grid.state.significant_attributes = frozenset(f"a{number}" for number in range(MOST_REFERENCES))
    grid.submit()
    slots = a_slot_with("a", Start="TARGET.Another =!= True"), a_slot_with("b", Start="TARGET.A0 =!= True")
    answer = grid.start_pilot().ask(*slots)
    assert [match.slot for match in answer.matches] == ["b"]
    assert "which leaves no room for another" in answer.faults["a"]
    assert len(grid.state.significant_attributes) == MOST_REFERENCES
