"""The number of pilots that the site director sends to each queue."""

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
from pilotage.values.demand import Demand, EmptyReturns, IdleSlots, LimitRoom, QueueSupply
from pilotage_agents.batch_systems.shape import Shape, queue_facts
from pilotage_agents.site_director.planning import QueueLimits, QueuePlan, QueueState, Ramp, has_room, plan_pilots

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


def test_no_demand_needs_no_pilots() -> None:
    (plan,) = plan_pilots([], [a_queue()])
    assert plan == QueuePlan(QueueId("S", "ce", "q"), 0, ("no demand",))


def test_shared_demand_is_counted_once() -> None:
    plans = plan_pilots([a_demand(8, 0, 1)], [a_queue("a"), a_queue("b")])
    assert pilots(*plans) == [4, 4]


def test_balances_waiting_pilots_over_queues() -> None:
    plans = plan_pilots([a_demand(8, 0, 1)], [a_queue("a", waiting=4), a_queue("b")], PLENTY)
    assert pilots(*plans) == [0, 4]


def test_waiting_pilots_and_idle_cores_reduce_demand_of_all_queues() -> None:
    plans = plan_pilots(
        [a_demand(10, 0, 1, 2)], [a_queue("a", waiting=2), a_queue("b", running=3, idle=3), a_queue("c")]
    )
    assert sum(pilots(*plans)) == 5


def test_idle_cores_without_memory_do_not_reduce_demand() -> None:
    free = Amounts(cpus=6, memory_mib=500)
    queue = replace(a_queue(cpus=8, running=1), supply=a_supply(0, 1, idle_slots(1, free)))
    large, small = Amounts(cpus=1, memory_mib=4000), Amounts(cpus=1, memory_mib=100)
    pilot = replace(queue, pilot=Shape(cpus=8, memory_mib=16000))
    assert pilots(*plan_pilots([Demand("", "vo", 2, large, (0,))], [pilot])) == [1]
    assert pilots(*plan_pilots([Demand("", "vo", 5, small, (0,))], [pilot])) == [0]
    assert pilots(*plan_pilots([Demand("", "vo", 6, small, (0,))], [pilot])) == [1]


def test_demands_share_the_room_below_a_running_limit() -> None:
    limited = [replace(a_demand(6, 0), limit_indexes=(0,)), replace(a_demand(9, 0, 1), limit_indexes=(0,))]
    here = LimitRoom("at most 8 jobs at a", 8, (0,))
    assert pilots(*plan_pilots(limited, [a_queue("a"), a_queue("b")], PLENTY, [here])) == [8, 7]


@pytest.mark.parametrize(
    ("queue", "expected"),
    [(a_queue("a"), 4), (a_queue("a", waiting=3), 1), (a_queue("a", idle=2, running=2), 2), (a_queue("a", cpus=2), 2)],
    ids=["no pilot", "pilots on their way", "idle slots", "two jobs in a pilot"],
)
def test_present_pilots_use_the_room_below_a_running_limit(queue: QueueState, expected: int) -> None:
    demand = replace(a_demand(50, 0), limit_indexes=(0,))
    (plan,) = plan_pilots([demand], [queue], PLENTY, [LimitRoom("at most 9 jobs at a", 4, (0,))])
    assert plan.pilots == expected
    assert plan.reasons[-1] == "no pilot for jobs beyond a limit: at most 9 jobs at a"


def test_quota_counts_cores_and_is_left_to_jobs_that_a_pilot_holds() -> None:
    quota = LimitRoom("the quota of vo/group", 5, (0,), counts_cores=True)
    demands = [
        Demand("", "vo", waiting, Amounts(cpus=cpus, memory_mib=memory_mib), (0,), limit_indexes=(0,))
        for waiting, cpus, memory_mib in ((5, 1, 64_000), (2, 2, 100), (5, 1, 100))
    ]
    queue = replace(a_queue("a"), pilot=Shape(cpus=2, memory_mib=8000))
    (plan,) = plan_pilots(demands, [queue], PLENTY, [quota])
    assert plan.pilots == 3, "two jobs with two cores, and one with one"
    assert plan.reasons[-2:] == (
        "no pilot for jobs beyond a limit: the quota of vo/group",
        "a pilot there is too small for 5 jobs",
    )


def test_jobs_that_no_limit_counts_need_no_room() -> None:
    plans = plan_pilots([a_demand(3, 0)], [a_queue("a")], PLENTY, [LimitRoom("at most 0 jobs at a", 0, (0,))])
    assert pilots(*plans) == [3]


def test_idle_slot_is_not_counted_for_two_demands() -> None:
    queue = replace(a_queue(), supply=a_supply(0, 1, idle_slots(3, Amounts(cpus=4))))
    one_core = [a_demand(5, 0), a_demand(7, 0)]
    assert pilots(*plan_pilots(one_core, [queue])) == [0]
    assert pilots(*plan_pilots([*one_core, a_demand(1, 0)], [queue])) == [1]


def test_demand_of_single_queue_gets_its_idle_cores_first() -> None:
    queues = [a_queue("a", idle=2, running=2), a_queue("b", idle=2, running=2)]
    plans = plan_pilots([a_demand(2, 0, 1), a_demand(2, 0)], queues)
    assert pilots(*plans) == [0, 0]


def test_wide_pilot_serves_jobs_of_several_demands() -> None:
    demands = [a_demand(3, 0, cpus=2), a_demand(2, 0)]
    assert pilots(*plan_pilots(demands, [a_queue(cpus=8)])) == [1]


def test_sends_no_pilot_for_jobs_too_large_for_it() -> None:
    (plan,) = plan_pilots([a_demand(3, 0, cpus=8)], [a_queue(cpus=4)])
    assert plan.pilots == 0
    assert plan.reasons == ("a pilot there is too small for 3 jobs",)


def test_pilot_with_unknown_cores_counts_for_one_job() -> None:
    assert pilots(*plan_pilots([a_demand(3, 0, cpus=8)], [a_queue(cpus=None)])) == [3]


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        (a_queue(max_total=5, running=3, waiting=1), "no pilot for 8 jobs: MaxTotalJobs is 5"),
        (a_queue(max_waiting=2, waiting=1), "no pilot for 8 jobs: MaxWaitingJobs is 2"),
    ],
)
def test_respects_limits_of_queue_and_names_them(queue: QueueState, reason: str) -> None:
    (plan,) = plan_pilots([a_demand(10, 0)], [queue])
    assert plan.pilots == 1
    assert reason in plan.reasons


def test_unproven_queue_gets_few_pilots() -> None:
    (plan,) = plan_pilots([a_demand(1000, 0)], [a_queue(waiting=4)], Ramp(start=10))
    assert plan.pilots == 6
    assert any("no more than 10 may be without work until more are at work" in reason for reason in plan.reasons)


def test_ramp_grows_with_busy_pilots_only() -> None:
    busy, idle = a_queue("a", running=40), a_queue("b", running=40, idle=40)
    assert pilots(*plan_pilots([a_demand(1000, 0)], [busy], Ramp(10, 1))) == [40]
    assert pilots(*plan_pilots([a_demand(1000, 0)], [idle], Ramp(10, 1))) == [0]


def test_pilots_of_closed_queue_do_not_reduce_demand() -> None:
    plans = plan_pilots(
        [a_demand(2, 0, 1)], [a_queue("a", waiting=9, idle=9, closed="an operator has banned it"), a_queue("b")]
    )
    assert pilots(*plans) == [0, 2]
    assert plans[0].reasons == ("an operator has banned it",)


def test_pilots_of_paused_queue_reduce_demand() -> None:
    paused = a_queue("a", waiting=1, idle=1, paused="2 failures in a row")
    plans = plan_pilots([a_demand(3, 0, 1)], [paused, a_queue("b")])
    assert pilots(*plans) == [0, 1]
    assert plans[0].reasons == ("2 failures in a row", "idle slots and pilots on their way take 2 waiting jobs")


def test_keeps_minimum_of_idle_pilots_within_limits() -> None:
    queues = [
        a_queue("a", min_idle=2),
        a_queue("b", min_idle=2, waiting=1),
        a_queue("c", min_idle=2, running=2, idle=2),
        a_queue("d", min_idle=2, max_total=1),
    ]
    assert pilots(*plan_pilots([], queues)) == [2, 1, 0, 1]


def test_ramp_counts_unused_idle_pilots_as_waiting() -> None:
    idle_queue = a_queue(running=7, idle=7)
    assert pilots(*plan_pilots([a_demand(1000, 0)], [idle_queue], Ramp(10, 1))) == [3]


def test_ramp_counts_partly_free_pilot_as_busy() -> None:
    queue = replace(a_queue(cpus=8, running=10), supply=a_supply(0, 10, idle_slots(10, Amounts(cpus=2))))
    assert pilots(*plan_pilots([a_demand(1000, 0, cpus=4)], [queue], Ramp(10, 1))) == [10]


def test_minimum_of_idle_pilots_ignores_empty_returns() -> None:
    queue = a_queue(min_idle=2)
    queue = replace(queue, supply=QueueSupply(True, pilots_waiting=1, empty_returns=EmptyReturns(50, 9)))
    assert pilots(*plan_pilots([], [queue])) == [1]
    assert pilots(*plan_pilots([a_demand(100, 0)], [queue])) == [1]


def test_minimum_of_idle_pilots_is_added_to_demand() -> None:
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
    indexes = st.lists(st.integers(0, len(queues) - 1), min_size=1, unique=True)
    demand = st.builds(
        lambda waiting, cpus, queues: a_demand(waiting, *queues, cpus=cpus),
        st.integers(0, 30),
        st.integers(1, 16),
        indexes,
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
        present = queue.supply.pilots_waiting + queue.supply.pilots_running
        assert plan.pilots >= 0
        assert plan.reasons
        assert not (queue.blocked_reason and plan.pilots)
        assert has_room(queue, ramp) or plan.pilots == 0
        if queue.limits.max_total is not None:
            assert plan.pilots == 0 or present + plan.pilots <= queue.limits.max_total
        unproven = max(ramp.start, queue.supply.pilots_running)
        assert plan.pilots == 0 or plan.pilots + queue.supply.pilots_waiting <= unproven
    kept_ready = sum(queue.limits.min_idle for queue in queues)
    assert sum(pilots(*plans)) <= sum(demand.waiting for demand in demands) + kept_ready


@given(situations())
def test_more_idle_cores_never_need_more_pilots(
    situation: tuple[list[Demand], list[QueueState]],
) -> None:
    demands, queues = situation
    one_core = [replace(demand, amounts=ONE_CORE, queue_indexes=(0,)) for demand in demands]
    before = plan_pilots(one_core, queues[:1], PLENTY)
    supply = queues[0].supply
    with_idle_core = replace(queues[0], supply=replace(supply, idle=(*supply.idle, *idle_slots(1))))
    assert plan_pilots(one_core, [with_idle_core], PLENTY)[0].pilots <= before[0].pilots


def test_plans_hundreds_of_queues_and_demands() -> None:
    queues = [a_queue(str(number), cpus=8) for number in range(700)]
    demands = [a_demand(1000, *range(first, 700)) for first in range(100)]
    assert sum(pilots(*plan_pilots(demands, queues))) == 7000


def test_needs_as_many_pilots_as_dirac(shared_data: Path) -> None:
    facts = [case for case in _cases(shared_data) if case["kind"] == "pilots_needed"]
    assert facts
    for fact in facts:
        resource = fact["resource"]
        demands = [a_demand(jobs["waiting"], 0) for jobs in fact["jobs"] if jobs["vo"] == resource["vo"]]
        (plan,) = plan_pilots(demands, [a_queue(waiting=resource["waiting_pilots"])], PLENTY)
        assert plan.pilots == fact["expected"]["pilots"], fact["name"]


def _cases(shared_data: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((shared_data / "cases" / "dirac-matching.json").read_text())["cases"]
    return cases


def test_queue_facts_convert_units_and_ignore_text() -> None:
    facts = queue_facts({"cpus": "auto", "Memory": "4 GB", "MAXWALLTIME": 3600, "CEType": "Local"})
    assert facts.pilot == Shape(cpus=None, memory_mib=4096)
    assert (facts.wall_time_s, facts.ce_type, facts.max_total) == (3600, "local", None)
