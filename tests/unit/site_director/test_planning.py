"""How many pilots each queue is sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.demand import Demand, EmptyReturns, IdleSlots, QueueSupply
from pilotage_agents.batch_systems.shape import Shape, queue_facts
from pilotage_agents.site_director.planning import QueueLimits, QueuePlan, QueueState, Ramp, plan_pilots

ONE_CORE = Amounts(cpus=1)
PLENTY = Ramp(start=1000)


def a_queue(
    name: str = "q",
    *,
    cpus: int | None = 1,
    waiting: int = 0,
    running: int = 0,
    idle: int = 0,
    closed: str = "",
    paused: str = "",
    **limits: int,
) -> QueueState:
    supply = a_supply(waiting, running, idle_slots(idle))
    return QueueState(QueueId("S", "ce", name), Shape(cpus=cpus), supply, QueueLimits(**limits), closed, paused)


def a_supply(waiting: int, running: int, idle: tuple[IdleSlots, ...]) -> QueueSupply:
    return QueueSupply(True, pilots_waiting=waiting, pilots_running=running, idle=idle)


def idle_slots(count: int, free: Amounts = ONE_CORE) -> tuple[IdleSlots, ...]:
    return (IdleSlots(free, count),) if count else ()


def a_demand(waiting: int, *queues: int, cpus: int = 1) -> Demand:
    return Demand("", "vo", waiting, Amounts(cpus=cpus), queues)


def pilots(*plans: QueuePlan) -> list[int]:
    return [plan.pilots for plan in plans]


def test_no_demand_calls_for_no_pilot() -> None:
    (plan,) = plan_pilots([], [a_queue()])
    assert plan == QueuePlan(QueueId("S", "ce", "q"), 0, ("no demand",))


def test_demand_that_two_queues_could_take_is_counted_once() -> None:
    plans = plan_pilots([a_demand(8, 0, 1)], [a_queue("a"), a_queue("b")])
    assert pilots(*plans) == [4, 4]


def test_new_pilots_level_what_waits_at_the_queues() -> None:
    plans = plan_pilots([a_demand(8, 0, 1)], [a_queue("a", waiting=4), a_queue("b")], PLENTY)
    assert pilots(*plans) == [0, 4]


def test_pilots_on_their_way_and_idle_cores_take_their_share_at_any_queue() -> None:
    plans = plan_pilots(
        [a_demand(10, 0, 1, 2)], [a_queue("a", waiting=2), a_queue("b", running=3, idle=3), a_queue("c")]
    )
    assert sum(pilots(*plans)) == 5


def test_idle_cores_whose_memory_is_used_up_take_no_job_that_needs_some() -> None:
    free = Amounts(cpus=6, memory_mib=500)
    queue = replace(a_queue(cpus=8, running=1), supply=a_supply(0, 1, idle_slots(1, free)))
    hungry, modest = Amounts(cpus=1, memory_mib=4000), Amounts(cpus=1, memory_mib=100)
    pilot = replace(queue, pilot=Shape(cpus=8, memory_mib=16000))
    assert pilots(*plan_pilots([Demand("", "vo", 2, hungry, (0,))], [pilot])) == [1]
    assert pilots(*plan_pilots([Demand("", "vo", 5, modest, (0,))], [pilot])) == [0]
    assert pilots(*plan_pilots([Demand("", "vo", 6, modest, (0,))], [pilot])) == [1]


def test_what_one_demand_takes_of_an_idle_slot_is_gone_for_the_next() -> None:
    queue = replace(a_queue(), supply=a_supply(0, 1, idle_slots(3, Amounts(cpus=4))))
    narrow = [a_demand(5, 0), a_demand(7, 0)]
    assert pilots(*plan_pilots(narrow, [queue])) == [0]
    assert pilots(*plan_pilots([*narrow, a_demand(1, 0)], [queue])) == [1]


def test_work_that_only_one_queue_can_take_is_not_displaced_by_work_that_could_go_anywhere() -> None:
    queues = [a_queue("a", idle=2, running=2), a_queue("b", idle=2, running=2)]
    plans = plan_pilots([a_demand(2, 0, 1), a_demand(2, 0)], queues)
    assert pilots(*plans) == [0, 0]


def test_one_wide_pilot_serves_several_narrow_jobs_of_several_demands() -> None:
    demands = [a_demand(3, 0, cpus=2), a_demand(2, 0)]
    assert pilots(*plan_pilots(demands, [a_queue(cpus=8)])) == [1]


def test_a_job_wider_than_the_pilots_of_a_queue_calls_for_none_and_says_so() -> None:
    (plan,) = plan_pilots([a_demand(3, 0, cpus=8)], [a_queue(cpus=4)])
    assert plan.pilots == 0
    assert plan.reasons == ("a pilot there is too small for 3 jobs",)


def test_a_pilot_whose_cores_are_not_known_counts_for_one_job() -> None:
    assert pilots(*plan_pilots([a_demand(3, 0, cpus=8)], [a_queue(cpus=None)])) == [3]


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (a_queue(max_total=5, running=3, waiting=1), "no pilot for 8 jobs: MaxTotalJobs is 5"),
        (a_queue(max_waiting=2, waiting=1), "no pilot for 8 jobs: MaxWaitingJobs is 2"),
    ],
)
def test_a_queue_is_filled_to_its_limits_and_the_plan_names_them(queue: QueueState, words: str) -> None:
    (plan,) = plan_pilots([a_demand(10, 0)], [queue])
    assert plan.pilots == 1
    assert words in plan.reasons


def test_a_queue_that_has_shown_nothing_yet_is_sent_few_pilots() -> None:
    (plan,) = plan_pilots([a_demand(1000, 0)], [a_queue(waiting=4)], Ramp(start=10))
    assert plan.pilots == 6
    assert any("no more than 10 may be without work until more are at work" in reason for reason in plan.reasons)


def test_a_queue_whose_pilots_are_at_work_grows_with_them_but_not_with_idle_ones() -> None:
    at_work, idle = a_queue("a", running=40), a_queue("b", running=40, idle=40)
    assert pilots(*plan_pilots([a_demand(1000, 0)], [at_work], Ramp(10, 1))) == [40]
    assert pilots(*plan_pilots([a_demand(1000, 0)], [idle], Ramp(10, 1))) == [0]


def test_a_closed_queue_gets_nothing_and_its_pilots_count_for_nobody() -> None:
    plans = plan_pilots(
        [a_demand(2, 0, 1)], [a_queue("a", waiting=9, idle=9, closed="an operator has banned it"), a_queue("b")]
    )
    assert pilots(*plans) == [0, 2]
    assert plans[0].reasons == ("an operator has banned it",)


def test_a_paused_queue_gets_nothing_and_its_pilots_count_all_the_same() -> None:
    paused = a_queue("a", waiting=1, idle=1, paused="2 failures in a row")
    plans = plan_pilots([a_demand(3, 0, 1)], [paused, a_queue("b")])
    assert pilots(*plans) == [0, 1]
    assert plans[0].reasons == ("2 failures in a row", "idle slots and pilots on their way take 2 waiting jobs")


def test_idle_pilots_are_kept_ready_without_demand_within_the_limits() -> None:
    queues = [
        a_queue("a", min_idle=2),
        a_queue("b", min_idle=2, waiting=1),
        a_queue("c", min_idle=2, running=2, idle=2),
        a_queue("d", min_idle=2, max_total=1),
    ]
    assert pilots(*plan_pilots([], queues)) == [2, 1, 0, 1]


def test_idle_pilots_that_the_demand_leaves_idle_count_as_those_that_wait() -> None:
    for_others = a_queue(running=7, idle=7)
    assert pilots(*plan_pilots([a_demand(1000, 0)], [for_others], Ramp(10, 1))) == [3]


def test_a_pilot_with_some_cores_free_is_not_without_work() -> None:
    queue = replace(a_queue(cpus=8, running=10), supply=a_supply(0, 10, idle_slots(10, Amounts(cpus=2))))
    assert pilots(*plan_pilots([a_demand(1000, 0, cpus=4)], [queue], Ramp(10, 1))) == [10]


def test_pilots_kept_ready_are_sent_however_many_came_back_empty() -> None:
    queue = a_queue(min_idle=2)
    queue = replace(queue, supply=QueueSupply(True, pilots_waiting=1, empty_returns=EmptyReturns(50, 9)))
    assert pilots(*plan_pilots([], [queue])) == [1]
    assert pilots(*plan_pilots([a_demand(100, 0)], [queue])) == [1]


def test_pilots_kept_ready_come_on_top_of_what_the_demand_takes() -> None:
    assert pilots(*plan_pilots([a_demand(2, 0)], [a_queue(min_idle=1, waiting=1)])) == [2]


queue_states = st.builds(
    lambda cpus, waiting, running, idle, total, ready, why_none: QueueState(
        QueueId("S", "ce", "q"),
        Shape(cpus=cpus),
        a_supply(waiting, running, idle_slots(min(idle, running * cpus))),
        QueueLimits(total, None, ready),
        *why_none,
    ),
    st.integers(1, 16),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 20),
    st.none() | st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from([(), (), ("banned",), ("", "paused")]),
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Demand], list[QueueState]]:
    queues = draw(st.lists(queue_states, min_size=1, max_size=5))
    places = st.lists(st.integers(0, len(queues) - 1), min_size=1, unique=True)
    demand = st.builds(
        lambda waiting, cpus, queues: a_demand(waiting, *queues, cpus=cpus),
        st.integers(0, 30),
        st.integers(1, 16),
        places,
    )
    return draw(st.lists(demand, max_size=5)), queues


@given(situations())
def test_no_plan_exceeds_a_limit_the_ramp_or_the_demand(
    situation: tuple[list[Demand], list[QueueState]],
) -> None:
    demands, queues = situation
    ramp = Ramp(start=4)
    plans = plan_pilots(demands, queues, ramp)
    for plan, queue in zip(plans, queues, strict=True):
        there = queue.supply.pilots_waiting + queue.supply.pilots_running
        assert plan.pilots >= 0
        assert plan.reasons
        assert not (queue.blocked_reason and plan.pilots)
        if queue.limits.max_total is not None:
            assert plan.pilots == 0 or there + plan.pilots <= queue.limits.max_total
        unproven = max(ramp.start, queue.supply.pilots_running)
        assert plan.pilots == 0 or plan.pilots + queue.supply.pilots_waiting <= unproven
    kept_ready = sum(queue.limits.min_idle for queue in queues)
    assert sum(pilots(*plans)) <= sum(demand.waiting for demand in demands) + kept_ready


@given(situations())
def test_one_more_idle_core_never_calls_for_more_pilots_of_its_queue(
    situation: tuple[list[Demand], list[QueueState]],
) -> None:
    demands, queues = situation
    narrow = [replace(demand, amounts=ONE_CORE, queue_indexes=(0,)) for demand in demands]
    before = plan_pilots(narrow, queues[:1], PLENTY)
    supply = queues[0].supply
    richer = replace(queues[0], supply=replace(supply, idle=(*supply.idle, *idle_slots(1))))
    assert plan_pilots(narrow, [richer], PLENTY)[0].pilots <= before[0].pilots


def test_a_director_of_a_whole_grid_plans_within_a_moment() -> None:
    queues = [a_queue(str(place), cpus=8) for place in range(700)]
    demands = [a_demand(1000, *range(place, 700)) for place in range(100)]
    assert sum(pilots(*plan_pilots(demands, queues))) == 7000


def test_dirac_needs_as_many_pilots_for_the_same_facts(shared_data: Path) -> None:
    facts = [case for case in _cases(shared_data) if case["kind"] == "pilots_needed"]
    assert facts
    for fact in facts:
        resource = fact["resource"]
        demands = [a_demand(each["waiting"], 0) for each in fact["jobs"] if each["vo"] == resource["vo"]]
        (plan,) = plan_pilots(demands, [a_queue(waiting=resource["waiting_pilots"])], PLENTY)
        assert plan.pilots == fact["expected"]["pilots"], fact["name"]


def _cases(shared_data: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((shared_data / "cases" / "dirac-matching.json").read_text())["cases"]
    return cases


def test_queue_facts_take_units_and_leave_unknown_what_is_no_number() -> None:
    facts = queue_facts({"cpus": "auto", "Memory": "4 GB", "MAXWALLTIME": 3600, "CEType": "Local"})
    assert facts.pilot == Shape(cpus=None, memory_mib=4096)
    assert (facts.wall_time_s, facts.ce_type, facts.max_total) == (3600, "local", None)
