"""The matcher: state between requests, and release of reservations when a request fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.accounts import Quota, QuotaUnit
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account, GroupId
from pilotage.values.offers import SlotOffer
from pilotage_server.core.matching.job_views import SINGLE_JOBS_AT_ONCE, JobSnapshot
from pilotage_server.core.matching.slot_policy import EvaluationTime, MatchPolicyEvaluator, SlotPolicy
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import Sharing
from support.grid import a_slot
from support.match_bench import END_MARGIN, MatcherComparison
from support.trees import a_tree
from support.virtual_clock import START

LONG = QueueId("CERN", "ce", "long")
ALICE = Account("lhcb", "users", "alice")


def a_server_state(*waiting: Traits, sharing: Sharing | None = None) -> MatcherComparison:
    """Return a server state with one queue and one waiting job for each of these, in order of submission."""
    state = MatcherComparison(
        sharing or Sharing(), ActiveTree(1, a_tree(sites={"CERN": {"ces": {"ce": {"queues": {"long": {}}}}}}))
    )
    for number, traits in enumerate(waiting, 1):
        state.add(TaskQueue(number, traits))
        state.add_jobs(number, [QueueHead(0, number)])
    return state


def given(state: MatcherComparison, *slots: SlotOffer) -> list[tuple[str, int]]:
    """Return the slot and the job of each match."""
    return [(job.slot, job.job_id) for job in state.match(LONG, (), slots, START) if job is not None]


def test_match_charges_the_group_of_its_owner_at_once() -> None:
    accounts = (Account("lhcb", group, owner) for group, owner in (("one", "ann"), ("one", "ben"), ("two", "cleo")))
    state = a_server_state(*(Traits(account, "", JobNeeds()) for account in accounts))
    assert given(state, a_slot("a"), a_slot("b"), a_slot("c")) == [("a", 1), ("b", 3), ("c", 2)]


def without_surplus(cores: float) -> Sharing:
    """Return shares where the group of Alice may use so many cores and no more."""
    quota = Quota(cores, QuotaUnit.CORES)
    return Sharing(group_quotas={GroupId("lhcb", "users"): quota}, group_accept_surplus=False)


def test_quota_without_surplus_leaves_later_slots_to_other_groups() -> None:
    other = Account("lhcb", "production", "pam")
    state = a_server_state(Traits(ALICE, "", JobNeeds()), Traits(other, "", JobNeeds()), sharing=without_surplus(1.0))
    state.add_jobs(1, [QueueHead(0, 3)])
    assert given(state, a_slot("a"), a_slot("b"), a_slot("c")) == [("a", 1), ("b", 2)]


def test_quota_without_surplus_ends_the_prefetch() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds()), sharing=without_surplus(2.0))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 6)])
    assert given(state, a_slot("a", ahead=3)) == [("a", 1), ("a", 2)]


def test_ended_run_makes_room_below_a_quota_without_surplus() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds()), sharing=without_surplus(1.0))
    state.add_jobs(1, [QueueHead(0, 2)])
    assert given(state, a_slot("a"), a_slot("b")) == [("a", 1)]
    state.shares.end_runs(ALICE, 1.0, START)
    assert given(state, a_slot("b")) == [("b", 2)]


def test_rank_of_a_job_prefers_a_later_slot_that_accepts_it() -> None:
    state = a_server_state(
        Traits(ALICE, "", JobNeeds(), rank="TARGET.Cpus"), Traits(Account("lhcb", "users", "bob"), "", JobNeeds())
    )
    assert given(state, a_slot("a"), a_slot("b", cpus=4), a_slot("c", cpus=2)) == [("b", 1), ("a", 2)]


def test_prefetch_is_that_of_the_slot_that_the_job_prefers() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), rank="TARGET.Cpus"))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 6)])
    assert given(state, a_slot("a"), a_slot("b", cpus=4, ahead=2)) == [("b", 1), ("b", 2), ("b", 3), ("a", 4)]


def test_slots_that_tell_jobs_apart_take_them_beside_the_first_ones() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), escaped=("run",)))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 6)])
    start = "[Start = TARGET.run =?= 2]"
    slots = (a_slot("a", ad_changes=start), a_slot("b"), a_slot("c", ad_changes=start), a_slot("d"))
    assert given(state, *slots) == [("a", 2), ("b", 1), ("c", 5), ("d", 3)]


def test_jobs_evaluated_alone_are_read_in_portions() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), requirements_expression="MY.ProcId > 0"))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 3 * SINGLE_JOBS_AT_ONCE)])
    slot = a_slot(cpus=3 * SINGLE_JOBS_AT_ONCE, partitionable=True)
    assert [job for _, job in given(state, slot)] == list(range(1, 3 * SINGLE_JOBS_AT_ONCE))


def test_job_that_names_a_slot_does_not_go_to_an_equal_one_after_it() -> None:
    state = a_server_state(
        Traits(ALICE, "", JobNeeds()), Traits(ALICE, "", JobNeeds(), requirements_expression='TARGET.Name == "a"')
    )
    assert given(state, a_slot("a"), a_slot("b")) == [("a", 1)]
    assert given(state, a_slot("a")) == [("a", 2)]


def test_slot_whose_search_went_on_after_a_reading_refuses_nothing_for_equal_slots() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), requirements_expression='TARGET.Name == "b"'))
    state.add(TaskQueue(2, Traits(ALICE, "", JobNeeds())))
    state.add_jobs(2, [QueueHead(0, number) for number in range(2, 6)])  # of which only the first is known
    slots = [a_slot(name)._replace(ahead=1) for name in "ab"]
    assert given(state, *slots) == [("a", 2), ("a", 3), ("b", 1)]


def test_slots_are_read_once_for_all_jobs_that_rank_them(monkeypatch: pytest.MonkeyPatch) -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), rank="TARGET.Cpus"))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 21)])
    make, made = state.policies.evaluator, Counter[str]()

    def count(policy: SlotPolicy, time: EvaluationTime) -> MatchPolicyEvaluator:
        made["evaluators"] += 1
        return make(policy, time)

    monkeypatch.setattr(state.policies, "evaluator", count)
    slots = [a_slot(f"s{cpus}", cpus=cpus) for cpus in range(1, 21)]
    assert [slot for slot, _ in given(state, *slots)] == [slot.name for slot in reversed(slots)]
    assert made["evaluators"] <= 2 * len(slots), "once for the known job, and once after the others were read"


def test_reading_of_jobs_repeats_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 30
    traits = [Traits(ALICE, "", JobNeeds(), (("kind", str(number)),)) for number in range(count)]
    state = a_server_state(*(replace(each, requirements_expression="MY.ProcId < 0") for each in traits))
    evaluate, evaluated = MatchPolicyEvaluator.meets_requirements, Counter[str]()

    def counted(evaluator: MatchPolicyEvaluator, job: JobSnapshot) -> bool:
        evaluated["jobs"] += 1
        return evaluate(evaluator, job)

    monkeypatch.setattr(MatchPolicyEvaluator, "meets_requirements", counted)
    assert given(state, a_slot("a")) == []
    assert evaluated["jobs"] == count


def test_similar_slots_with_less_time_left_are_distinguished() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(wall_time_s=600)))
    state.add_jobs(1, [QueueHead(0, 2)])
    enough, too_little = (END_MARGIN + timedelta(seconds=seconds) for seconds in (600, 599))
    assert given(state, a_slot("a", time_left=enough), a_slot("b", time_left=too_little)) == [("a", 1)]


def test_slot_gets_one_job_and_its_prefetch() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds()))
    state.add_jobs(1, [QueueHead(0, number) for number in range(2, 6)])
    assert given(state, a_slot("a", ahead=2)) == [("a", 1), ("a", 2), ("a", 3)]


def test_reused_bit_of_a_removed_task_queue_is_distinguished() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds()))
    assert given(state, a_slot("a")) == [("a", 1)]
    state.index.remove([1])
    state.add(TaskQueue(2, Traits(ALICE, "", JobNeeds(), requirements_expression="TARGET.Cpus >= 2")))
    state.add_jobs(2, [QueueHead(0, 2)])
    assert given(state, a_slot("a")) == []


def test_removed_pool_mapping_stops_matches() -> None:
    state = a_server_state()
    state.map_pool("p", [LONG], START)
    state.add(TaskQueue(1, Traits(ALICE, "p", JobNeeds())))
    state.add_jobs(1, [QueueHead(0, 1)])
    state.add_jobs(1, [QueueHead(0, 2)])
    assert given(state, a_slot("a")) == [("a", 1)]
    state.map_pool("p", [], START + timedelta(seconds=1))
    assert given(state, a_slot("a")) == []


def test_failure_at_a_later_slot_releases_earlier_reservations() -> None:
    state = a_server_state(Traits(ALICE, "", JobNeeds(), requirements_expression="TARGET.Cpus >= 1"))
    state.add_jobs(1, [QueueHead(0, 2)])
    broken = a_slot("b", cpus=2, ad_parts=("0" * 64,))
    with pytest.raises(AssertionError):
        state.matcher.choose(state.match_request(LONG, (), [a_slot("a"), broken], START), state.reach)
    state.matcher.check()
    assert (state.index.count(1), state.shares.use(ALICE, START).cores) == (2, 0)
    assert given(state, a_slot("a"), a_slot("b")) == [("a", 1), ("b", 2)]
