"""Matching by the policies of slots and jobs, vacate orders, and slot classes of waiting requests."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError
from pilotage.values.accounts import Account
from pilotage.values.offers import AdPart, OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.matching.slot_policy import MAX_JOB_NAMES, SlotPolicies
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.rules import Rules
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, ServerMatchEstimator, could_match
from pilotage_server.operations.matching.offers import MAX_FAULTY_SLOTS, read_offers, read_offers_ahead
from pilotage_server.operations.matching.work import Match, WorkAnswer, WorkRequest
from pilotage_server.operations.queueing.rekeying import MAX_REFERENCES
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_slot, request_jobs
from support.jobs import a_user
from support.match_bench import a_slot_with
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

BATCH = "TARGET.Batch =?= True"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def occupied_slot(match: Match, *, ordered: bool = False, rank: float = 0.0, **ad: Any) -> SlotOffer:
    """Return an offer of a slot that runs this match."""
    return a_slot_with(match.slot, **ad)._replace(occupied=OccupiedSlot(match.job_id, match.attempt, rank, ordered))


def ad_part(text: str) -> AdPart:
    return AdPart(hashlib.sha256(text.encode()).hexdigest(), text)


def test_start_and_requirements_expression_must_both_hold(grid: Grid) -> None:
    grid.submit(attributes={"Batch": False})
    grid.submit(attributes={"Batch": True}, requirements_expression="TARGET.NoSuch")
    (job_id,) = grid.submit(attributes={"Batch": True}, requirements_expression='TARGET.Site == "CERN"')
    assert grid.start_pilot().claim(a_slot_with("a", Start=BATCH), a_slot_with("b", Start=BATCH)) == [job_id]


def test_requirements_section_and_expression_must_both_hold(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG, Memory=4000)
    grid.submit(requirements={"Memory": 8000}, requirements_expression="TARGET.Cpus >= 1")
    grid.submit(requirements={"Memory": 2000}, requirements_expression="TARGET.Cpus >= 2")
    (job_id,) = grid.submit(requirements={"Memory": 2000}, requirements_expression="TARGET.Cpus >= 1")
    assert grid.start_pilot().claim(a_slot("a"), a_slot("b")) == [job_id]


def test_start_reads_keywords_and_requirements(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG, Memory=8000, Tags=["a", "b"])
    grid.submit(requirements={"Memory": 2000, "Tags": ("a",)}, sites=("CERN", "FNAL"))
    grid.submit(requirements={"Memory": 4000, "Tags": ("a",)}, sites=("CERN",))
    grid.submit(attributes={"Site": "FNAL", "SubmitPool": "mine"})
    (job_id,) = grid.submit(requirements={"Memory": 4000, "Tags": ("a", "b")}, sites=("CERN", "FNAL"))
    start = (
        'member("FNAL", TARGET.Site) && TARGET.JobRequirements.Memory > 3000 '
        f'&& member("b", TARGET.JobRequirements.Tags) && TARGET.SubmitPool == "{grid.job(job_id).pool_id}"'
    )
    assert grid.start_pilot().claim(*(a_slot_with(name, Start=start) for name in "ab")) == [job_id]


def test_new_policy_rekeys_jobs_before_the_match(grid: Grid) -> None:
    other, batch = grid.submit(attributes={"Batch": False})[0], grid.submit(attributes={"Batch": True})[0]
    assert grid.job(other).task_queue_id == grid.job(batch).task_queue_id
    assert grid.start_pilot().claim(a_slot_with(Start=BATCH)) == [batch]
    assert grid.job(other).task_queue_id != grid.job(batch).task_queue_id


def test_slot_prefers_jobs_of_higher_rank(grid: Grid) -> None:
    (first,), (batch,) = grid.submit(), grid.submit(attributes={"Batch": True})
    assert grid.start_pilot().claim(a_slot_with("a", Rank=BATCH), a_slot_with("b", Rank=BATCH)) == [batch, first]


def test_claim_prefers_jobs_of_its_holder(grid: Grid) -> None:
    (bobs,), (alices,) = grid.submit(a_user("bob")), grid.submit(a_user("alice"))
    slots = [a_slot_with(name, claim=Account("lhcb", "users", "alice")) for name in ("a", "b")]
    assert grid.start_pilot().claim(*slots) == [alices, bobs]


def test_missing_ad_parts_are_requested_and_stored(grid: Grid) -> None:
    grid.submit(count=3)
    pilot = grid.start_pilot()
    part = ad_part("[Start = TARGET.RequestCpus == 1]")
    with_part, without_part = a_slot("with part", ad_parts=(part.key,)), a_slot("without part")
    answer = pilot.request_jobs(with_part, without_part)
    assert answer.ad_parts_wanted == (part.key,)
    assert [match.slot for match in answer.matches] == ["without part"]
    answer = pilot.request(WorkRequest((with_part,), ad_parts=(part,)))
    assert ([match.slot for match in answer.matches], answer.ad_parts_wanted) == (["with part"], ())
    assert pilot.claim(with_part)


def test_ad_part_with_wrong_key_is_refused(grid: Grid) -> None:
    forged = AdPart(ad_part("[Start = True]").key, "[Start = False]")
    with pytest.raises(InvalidInputError, match="SHA-256"):
        grid.start_pilot().request(WorkRequest((a_slot(),), ad_parts=(forged,)))


def test_later_ad_parts_and_changes_take_precedence(grid: Grid) -> None:
    grid.submit(attributes={"Batch": True})
    parts = [ad_part("[Farm = 1; Start = False]"), ad_part("[Farm = 2; Start = Farm == 3]")]
    slot = a_slot(ad_parts=tuple(part.key for part in parts), ad_changes="[Farm = 3]")
    assert grid.start_pilot().request(WorkRequest((slot,), ad_parts=tuple(parts))).matches


def test_slot_gets_job_ad_on_request(grid: Grid) -> None:
    (job_id,) = grid.submit(attributes={"Batch": True}, request_cpus=1)
    grid.submit()
    pilot = grid.start_pilot()
    first, second = pilot.request_jobs(a_slot("a", job_ad_wanted=True), a_slot("b")).matches
    ad = Ad.read(first.job_ad)
    assert [ad.value(name) for name in ("Batch", "Owner", "RequestCpus", "JobUniverse")] == [True, "alice", 1, 5]
    assert (first.job_id, second.job_ad) == (job_id, "")


def test_slot_with_random_policy_gets_no_job(grid: Grid) -> None:
    grid.submit()
    answer = grid.start_pilot().request_jobs(a_slot_with("random", Start="random() < 2"), a_slot("other"))
    assert [match.slot for match in answer.matches] == ["other"]
    assert "random()" in answer.faults["random"]


def test_attempt_is_charged_with_slot_weight(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take(a_slot_with(SlotWeight="Cpus * 2.5"))
    attempt = grid.read(lambda transaction, _: load_attempts(transaction.session, [(job_id, 1)]))[job_id, 1]
    assert (attempt.cpus, attempt.weight) == (1, 2.5)
    assert grid.state.shares.use(Account("lhcb", "users", "alice"), grid.clock()).cores == 2.5


def test_expression_selects_single_jobs_of_an_array(grid: Grid) -> None:
    ids = grid.submit(count=4, requirements_expression="MY.ProcId % 2 == 1")
    assert grid.start_pilot().claim(*(a_slot(name) for name in "abcd")) == [ids[1], ids[3]]


def test_waiting_job_of_higher_rank_vacates_one_slot(grid: Grid) -> None:
    grid.submit(count=2)
    pilot = grid.start_pilot()
    running = [pilot.take(a_slot_with(name)) for name in ("a", "b")]
    slots = [occupied_slot(match, Rank=BATCH) for match in running]
    assert pilot.request_jobs(*slots).vacates == ()
    (batch,) = grid.submit(attributes={"Batch": True})
    (vacate,) = pilot.request_jobs(*slots).vacates
    assert (vacate.slot, vacate.by_rank) == ("a", True)
    assert grid.start_pilot().request_jobs(occupied_slot(running[1], Rank=BATCH)).vacates == ()
    ordered_slots = [occupied_slot(running[0], ordered=True, Rank=BATCH), slots[1]]
    assert [order.slot for order in pilot.request_jobs(*ordered_slots).vacates] == ["a"]
    assert pilot.claim(a_slot_with("a", Rank=BATCH), slots[1]) == [batch]
    assert pilot.request_jobs(*ordered_slots).vacates == ()


def test_occupied_slot_counts_only_for_its_own_pilot(grid: Grid) -> None:
    grid.submit()
    match = grid.start_pilot().take()
    grid.submit(attributes={"Batch": True})
    stranger = grid.start_pilot()
    assert stranger.request_jobs(occupied_slot(match, Rank=BATCH)).vacates == ()
    assert stranger.request_jobs(occupied_slot(match._replace(attempt=9), Rank=BATCH)).vacates == ()


def test_preemption_by_priority_needs_slot_and_server_policy(database: Database, clock: VirtualClock) -> None:
    better = "RemoteUserPrio > 1.2 * SubmittorPrio"
    grid = Grid(database, clock, rules=Rules(preemption_requirements=f"{better} && TARGET.Quick =?= True"))
    grid.submit(a_user("bob"))
    pilot = grid.start_pilot()
    match = pilot.take(a_slot_with(SlotWeight="1000"))
    grid.pass_time(minutes=15)
    occupied = occupied_slot(match, PreemptionRequirements=better)
    grid.submit(a_user("alice"))
    assert pilot.request_jobs(occupied).vacates == ()
    grid.submit(a_user("bob"), attributes={"Quick": True})
    assert pilot.request_jobs(occupied).vacates == ()
    grid.submit(a_user("alice"), attributes={"Quick": True})
    (vacate,) = pilot.request_jobs(occupied).vacates
    assert not vacate.by_rank


def test_policies_decide_which_waiting_request_a_job_wakes(grid: Grid) -> None:
    pilot = grid.start_pilot()
    slots = [a_slot_with("free", Start=BATCH), a_slot_with("busy", Rank=BATCH)._replace(occupied=OccupiedSlot(1, 1))]
    pilot.request_jobs(*slots)
    task_queues: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: task_queues.append(queue))
    grid.submit()
    grid.submit(attributes={"Batch": True})
    assert pilot.identity.pilot is not None
    possible_slots = [
        could_match(grid.state, grid.clock(), queue, pilot.identity.pilot, slots) for queue in task_queues
    ]
    assert possible_slots == [PossibleSlots.NONE, PossibleSlots.FREE_SLOT | PossibleSlots.OCCUPIED_SLOT]


def test_job_dependent_requirements_might_match(grid: Grid) -> None:
    task_queues: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: task_queues.append(queue))
    grid.submit(requirements_expression="MY.ProcId > 5")
    credential = grid.start_pilot().identity.pilot
    assert credential is not None
    arguments = grid.state, grid.clock(), task_queues[0], credential
    assert could_match(*arguments, [a_slot()]) is PossibleSlots.FREE_SLOT
    assert not could_match(*arguments, [a_slot(cpus=0)])
    assert not could_match(*arguments, [a_slot_with(Start="random() > 0")])


def test_waiting_slot_is_woken_to_resend_evicted_ad(grid: Grid) -> None:
    part = ad_part("[Start = TARGET.Batch =?= True]")
    slot = a_slot(ad_parts=(part.key,))
    pilot = grid.start_pilot()
    task_queues: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: task_queues.append(queue))
    assert not pilot.request(WorkRequest((slot,), ad_parts=(part,))).matches
    grid.state.policies = SlotPolicies()
    (job_id,) = grid.submit(attributes={"Batch": True})
    assert pilot.identity.pilot is not None
    assert (
        could_match(grid.state, grid.clock(), task_queues[0], pilot.identity.pilot, [slot]) is PossibleSlots.FREE_SLOT
    )
    assert pilot.request(WorkRequest((slot,))).ad_parts_wanted == (part.key,)
    assert [match.job_id for match in pilot.request(WorkRequest((slot,), ad_parts=(part,))).matches] == [job_id]


def test_new_reference_of_policy_is_added_once(grid: Grid) -> None:
    pilot = grid.start_pilot()
    slot = a_slot_with(Start="TARGET.Seldom =!= True")
    assert _first_answer(grid, pilot, slot).unreferred == {"seldom"}
    grid.submit()
    assert pilot.request_jobs(slot).matches
    assert _first_answer(grid, pilot, slot).unreferred == frozenset()


def _first_answer(grid: Grid, pilot: Pilot, slot: SlotOffer) -> WorkAnswer:
    return grid.write(lambda transaction, state: request_jobs(transaction, state, pilot.identity, WorkRequest((slot,))))


def test_slot_with_too_many_references_gets_no_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    many_references = " || ".join(f"TARGET.A{number}" for number in range(MAX_JOB_NAMES + 1))
    answer = grid.start_pilot().request_jobs(a_slot_with("a", Start=f"({many_references}) =!= True"), a_slot("b"))
    assert answer.faults == {"a": f"refers to {MAX_JOB_NAMES + 1} job attributes, and may refer to {MAX_JOB_NAMES}"}
    assert [match.job_id for match in answer.matches] == [job_id]
    assert grid.state.significant_attributes == frozenset()


def test_slot_over_limit_of_significant_attributes_gets_no_job(grid: Grid) -> None:
    grid.state.significant_attributes = frozenset(f"a{number}" for number in range(MAX_REFERENCES))
    grid.submit()
    slots = a_slot_with("a", Start="TARGET.Another =!= True"), a_slot_with("b", Start="TARGET.A0 =!= True")
    answer = grid.start_pilot().request_jobs(*slots)
    assert [match.slot for match in answer.matches] == ["b"]
    assert "which leaves no room for another" in answer.faults["a"]
    assert len(grid.state.significant_attributes) == MAX_REFERENCES


STARTS = ("true", "TARGET.Batch =?= True", "Multi || TARGET.Batch =?= True", "time() % 2 == TARGET.Parity")


def credential_of(grid: Grid) -> PilotCredential:
    credential = grid.start_pilot().identity.pilot
    assert credential is not None
    return credential


def task_queues_of_various_jobs(grid: Grid) -> list[TaskQueue]:
    task_queues: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: task_queues.append(queue))
    grid.submit(request_cpus=2)
    grid.submit(request_memory_mib=3000)
    grid.submit(cpu_time=timedelta(seconds=5000))
    grid.submit(attributes={"Batch": True})
    grid.submit(attributes={"Parity": 1})
    grid.submit(requirements_expression="TARGET.Multi =?= True")
    return task_queues


def various_slots() -> list[SlotOffer]:
    without_policy = [
        a_slot(f"slot{number}", cpus, memory, time_left=timedelta(seconds=left), cpu_power=power)
        for number, (cpus, memory, left, power) in enumerate(product((1, 2), (2900, 3100), (900, 1000), (4.5, 5.5)))
    ]
    free = [a_slot_with(f"{multi}{start}", Start=start, Multi=multi) for start, multi in product(STARTS, (True, False))]
    return [*without_policy, *free, *(slot._replace(occupied=OccupiedSlot(1, 1)) for slot in free)]


def test_upper_bound_of_slot_class_covers_each_slot(grid: Grid) -> None:
    estimator, credential = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid)
    queues, slots = task_queues_of_various_jobs(grid), various_slots()
    grid.start_pilot().request_jobs(*slots)  # the server stores their ads
    slot_classes: dict[Hashable, list[SlotOffer]] = defaultdict(list)
    for slot in slots:
        slot_classes[estimator.slot_class(credential, [slot])].append(slot)

    ruled_out = 0
    for queue, class_slots in product(queues, slot_classes.values()):
        best = estimator.upper_bound(queue, credential, class_slots[:1])
        ruled_out += not best
        assert all(estimator.of(queue, credential, [slot]) in best for slot in class_slots)

    assert len(slot_classes) < len(slots)
    assert ruled_out


def test_slots_with_equal_start_share_a_class(grid: Grid) -> None:
    estimator, credential = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid)
    slots = [a_slot_with(f"slot{number}", Start=STARTS[1], Machine=f"node{number}") for number in range(3)]

    assert len({estimator.slot_class(credential, [slot]) for slot in slots}) == 1


def test_free_and_occupied_slots_differ_in_class(grid: Grid) -> None:
    estimator, credential, slot = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid), a_slot()

    assert estimator.slot_class(credential, [slot]) != estimator.slot_class(
        credential, [slot._replace(occupied=OccupiedSlot(1, 1))]
    )
    assert estimator.of(task_queues_of_various_jobs(grid)[3], credential, [slot]) is PossibleSlots.FREE_SLOT


def test_ads_that_were_read_ahead_are_not_read_again(grid: Grid) -> None:
    part = ad_part("[Batch = True]")
    queue = grid.start_pilot().identity.pilot.queue  # type: ignore[union-attr]
    faulty = [a_slot(f"f{n}")._replace(ad_changes=f"[Start = eval({n}) + random({n})]") for n in range(150)]
    good = [
        a_slot(f"s{n}")._replace(ad_parts=(part.key,), ad_changes=f"[Number = {n}; Start = {n} > 1]") for n in range(9)
    ]
    read_offers_ahead(grid.state, queue, [part], [*good, *faulty])
    offers = read_offers(grid.state, queue, [*good, *faulty])
    again = read_offers(grid.state, queue, [*good, *faulty])
    assert offers.parts_wanted == ()
    assert [slot.name for slot in offers.slots] == [slot.name for slot in good]
    assert len(offers.policies) == len(good) + MAX_FAULTY_SLOTS
    assert all(again.policies[name] is policy for name, policy in offers.policies.items())
    assert len(offers.faults) == len(faulty)
    assert "its ad is not read" in offers.faults["f149"]
