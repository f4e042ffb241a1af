"""Explanations of waiting jobs (`why JOB`), and the demand that site directors read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import NotFoundError
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.demand import DemandAnswer, IdleSlots
from pilotage.values.leadership import Leadership, ServedQueues
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.rules import Lifetime
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.resources.bans import BanOrder, ban
from pilotage_server.operations.resources.queues import list_queues
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, a_busy_slot, a_slot, a_tree, an_idle_slot
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

SMALL, FAR = "CERN/ce01/small", "FNAL/ce02/far"


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> Grid:
    tree = a_tree(LONG, SMALL, FAR)
    queues = tree["sites"]["CERN"]["ces"]["ce01"]["queues"]
    queues["long"] |= {"Memory": 8000}
    queues["small"] |= {"Memory": 2000, "Disk": 10}
    tree["sites"]["FNAL"]["VOs"] = ["cms"]
    grid = Grid(sqlite_database, clock)
    grid.put(tree)
    return grid


def demand(grid: Grid, *queues: str) -> DemandAnswer:
    """Return the demand for these queues."""
    return grid.read(
        lambda transaction, state: get_demand(transaction, state, [QueueId.parse(queue) for queue in queues])
    )


def test_why_names_the_parameters_that_exclude_queues(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 4000, "Disk": 100})
    why = grid.why(job_id)
    assert (why.queues_total, why.queues_of_vo, why.eligible_queues) == (3, 2, ())
    assert [(exclusion.parameter, exclusion.queues, exclusion.queues_alone) for exclusion in why.exclusions] == [
        ("Disk", 2, 1),
        ("Memory", 1, 0),
    ]
    assert why.exclusions[0].example == "CERN/ce01/long: Disk: it is not stated for this queue"
    assert why.summary == (
        "It waits because none of the 2 queues that VO lhcb may use can run it: Disk 100 MiB alone excludes 1 of them."
    )


def test_why_of_the_only_queue_does_not_count_it(grid: Grid) -> None:
    grid.put({"sites": {"FNAL": {"ces": {"ce": {"queues": {"q": {"Memory": 1000}}}}}}})
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    assert grid.why(job_id).summary == (
        "It waits because the only queue that VO lhcb may use cannot run it: Memory 4000 MiB excludes it."
    )


def test_exclusion_example_names_requested_and_offered_value_and_queue(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    (exclusion,) = grid.why(job_id).exclusions
    assert (exclusion.parameter, exclusion.asked, exclusion.queues, exclusion.queues_alone) == (
        "Memory",
        "4000 MiB",
        1,
        1,
    )
    assert all(part in exclusion.example for part in (SMALL, "2000", "4000", "queue"))


def test_why_says_that_the_vo_may_use_no_queue(grid: Grid) -> None:
    grid.put({"sites": {"FNAL": {"VOs": ["cms"], "ces": {"ce": {"queues": {"q": {}}}}}}})
    (job_id,) = grid.submit()
    assert grid.why(job_id).summary == "It waits because VO lhcb may use no queue (1 in all)."


def test_summary_of_a_single_queue_is_in_the_singular(grid: Grid) -> None:
    grid.put({"sites": {"HOME": {"ces": {"ce": {"queues": {"q": {"CPUs": 2, "Memory": 100}}}}}}})
    (one_reason,) = grid.submit(request_cpus=64)
    (two_reasons,) = grid.submit(request_cpus=64, request_memory_mib=4000)
    only = "It waits because the only queue that VO lhcb may use cannot run it"
    assert grid.why(one_reason).summary == f"{only}: CPUs 64 excludes it."
    assert grid.why(two_reasons).summary == f"{only}: CPUs and Memory exclude it."


def test_job_with_eligible_queues_waits_for_a_pilot(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    no_pilot = "It waits for a pilot: 1 queue can run it, but no pilot is there"
    unserved = f"{LONG}: no site director serves this queue"
    assert grid.why(job_id).summary == f"{no_pilot} ({unserved})."
    for served in (ServedQueues(("FNAL/*/*",)), ServedQueues(("cern/*/*",), ("slurm",))):
        direct(grid, served)
        assert unserved in grid.why(job_id).summary
    direct(grid, ServedQueues(), bounds=("FNAL/*/*",))
    assert unserved in grid.why(job_id).summary
    direct(grid, ServedQueues(("*/*/*",)))
    assert grid.why(job_id).summary == f"{no_pilot}."
    grid.clock.advance(timedelta(minutes=2))  # the director has died
    assert unserved in grid.why(job_id).summary
    grid.start_pilot()
    assert grid.why(job_id).summary.endswith("no pilot is there, 1 pilot on the way.")


def test_no_pilot_is_sent_for_jobs_that_are_longer_than_what_a_pilot_has_for_them(grid: Grid) -> None:
    """What a pilot has is computed by the pilot's own rules: its glidein lives for `MaxWallTime`."""
    grid.put(a_tree(LONG, MaxWallTime="1 h"))
    direct(grid, ServedQueues())
    longest = Lifetime(ends_boot_s=3600.0).time_left_s(Now(grid.clock(), 0.0))
    assert longest == 3540
    too_long, fits = [grid.submit(wall_time=timedelta(seconds=longest + more))[0] for more in (1, 0)]
    assert [each.waiting for each in demand(grid, LONG).demands] == [1]
    assert grid.why(too_long).summary.endswith(
        f"({LONG}: MaxWallTime: a pilot there ends jobs 60 s before its own end, so that it has 3540 s for a job; "
        "3541 s asked)."
    )
    slot = a_slot("slot1")._replace(time_left=timedelta(seconds=longest))
    assert grid.start_pilot().claim(slot) == [fits]


def direct(grid: Grid, served: ServedQueues, bounds: tuple[str, ...] = ()) -> None:
    """Let a site director lead for a minute that serves these queues."""
    director = Leadership("site director of queues", "replica")
    length = timedelta(minutes=1)
    grid.write(lambda transaction, _: take_leadership(transaction, director, length, "host", served, bounds))


def problems(grid: Grid) -> dict[str, str]:
    """Return what `pilotage queues` shows against the pilots of each queue."""
    views = grid.read(lambda transaction, state: list_queues(transaction, state, an_operator(), "cms"))
    return {str(view.id): view.pilot_problem for view in views if view.pilot_problem}


def test_why_and_queues_repeat_the_refusal_of_the_batch_system(grid: Grid) -> None:
    direct(grid, ServedQueues())
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    assert problems(grid) == {}
    refused = "slurm: sbatch: Invalid account"
    grid.glidein(GlideinReport(grid.start_pilot().stamp, "", PilotState.ENDED, refused))
    assert grid.why(job_id).summary.endswith(f"({LONG}: the batch system refused the last pilot: {refused}).")
    assert problems(grid) == {LONG: f"the batch system refused the last pilot: {refused}"}
    grid.clock.advance(timedelta(seconds=1))
    grid.glidein_ended(grid.start_pilot())
    assert problems(grid) == {LONG: "the last pilot ended before it called: exit code 1"}
    grid.clock.advance(timedelta(seconds=1))
    grid.start_pilot().show(an_idle_slot())
    assert problems(grid) == {}


def test_pilot_that_runs_without_a_call_is_not_on_the_way(grid: Grid) -> None:
    direct(grid, ServedQueues())
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    pilot = grid.start_pilot()

    def report(state: PilotState) -> None:
        grid.glidein(GlideinReport(pilot.stamp, "42", state))

    report(PilotState.SUBMITTED)
    grid.pass_time(minutes=30)
    assert grid.why(job_id).summary.endswith("1 pilot on the way.")
    report(PilotState.RUNNING)
    assert grid.why(job_id).summary.endswith("1 pilot on the way.")
    grid.pass_time(minutes=3)
    direct(grid, ServedQueues())
    assert "on the way" not in grid.why(job_id).summary
    assert "1 pilot runs in the batch system and cannot reach the server" in grid.why(job_id).summary
    assert "cannot reach the server" in problems(grid)[LONG]
    report(PilotState.SUBMITTED)  # Slurm has requeued it
    assert grid.why(job_id).summary.endswith("1 pilot on the way.")
    report(PilotState.RUNNING)
    pilot.show(an_idle_slot())
    grid.pass_time(minutes=3)
    direct(grid, ServedQueues())
    assert problems(grid) == {}


def test_wall_time_excludes_queues_that_end_earlier(grid: Grid) -> None:
    tree = a_tree(LONG, SMALL)
    tree["sites"]["CERN"]["ces"]["ce01"]["queues"]["small"]["MaxWallTime"] = "40 min"
    grid.put(tree)
    (job_id,) = grid.submit(wall_time=timedelta(hours=8))
    why = grid.why(job_id)
    assert [str(outlook.queue) for outlook in why.eligible_queues] == [LONG]
    assert why.exclusions[0].example == f"{SMALL}: MaxWallTime: 2400 s is less than 28800 s (stated by queue)"
    assert [each.queue_indexes for each in demand(grid, SMALL, LONG).demands] == [(1,)]


def test_why_counts_the_jobs_ahead_at_busy_slots(grid: Grid) -> None:
    grid.start_pilot().show(a_busy_slot())
    grid.submit(count=4)
    (job_id,) = grid.submit()
    why = grid.why(job_id)
    assert why.jobs_ahead == 4
    assert "1 pilot there, and all their slots are busy, and 4 jobs go first" in why.summary


def test_why_names_a_slot_that_is_too_small(grid: Grid) -> None:
    grid.start_pilot().show(an_idle_slot(cpus=2), ends=grid.clock() + timedelta(hours=1))
    (wide,) = grid.submit(request_cpus=4)
    (long_,) = grid.submit(wall_time=timedelta(hours=2))
    assert "(cpus: 2 free, 4 asked)" in grid.why(wide).summary
    assert "wall time: 3600 s left, 7200 s asked" in grid.why(long_).summary


def test_job_with_a_free_slot_waits_for_its_turn(grid: Grid) -> None:
    grid.start_pilot().show(an_idle_slot())
    (job_id,) = grid.submit()
    why = grid.why(job_id)
    assert why.summary == "It waits for its turn: 2 queues can run it, 1 pilot there, 1 free slot."
    assert (why.eligible_queues[0].queue, why.eligible_queues[0].free_slots) == (QueueId.parse(LONG), 1)


def test_why_explains_the_order_by_recent_use(grid: Grid) -> None:
    grid.submit(a_user("alice"))
    grid.start_pilot().take()
    grid.clock.advance(timedelta(hours=2))
    (job_id,) = grid.submit(a_user("alice"))
    grid.submit(a_user("bob"), count=3)
    why = grid.why(job_id)
    assert why.jobs_ahead == 3
    assert "has recently used 1.94 core hours; 1 other account with work for the same queues" in why.order


def test_why_does_not_count_draining_pilots(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot())
    (job_id,) = grid.submit()
    grid.drain(pilot)
    assert grid.why(job_id).summary == "It waits for a pilot: 2 queues can run it, but no pilot is there."


def test_why_names_a_pool_without_mapping(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    mapping = grid.state.mappings.get(grid.job(job_id).pool_id)
    assert mapping is not None
    grid.state.mappings.remove([mapping])
    assert [queue.obstacle for queue in grid.why(job_id).eligible_queues] == ["its pool has no mapping at present"]
    assert grid.start_pilot().claim() == []


def test_banned_queue_is_an_exclusion_with_its_reason(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    order = BanOrder(TreeNode("CERN", "ce01", "long"), "cooling is broken")
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), order))
    why = grid.why(job_id)
    assert why.eligible_queues == ()
    assert any("cooling is broken" in exclusion.example for exclusion in why.exclusions if exclusion.parameter == "Ban")
    assert grid.start_pilot().claim() == []


def test_why_says_where_a_job_runs_or_ran(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot())
    match = pilot.take()
    place = f"slot1 of node-of-{pilot.stamp} at {LONG}, attempt 1"
    assert grid.why(job_id).summary == f"It is matched to {place} and has not started yet."
    pilot.start(match)
    assert grid.why(job_id).summary == f"It runs on {place}."
    pilot.finish(match, exit_code=2)
    assert grid.why(job_id).summary == f"It failed on {place}: exit code 2."


def test_why_explains_a_held_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.change(JobChange.HOLD, job_id)
    assert grid.why(job_id).summary.startswith("It is held until it is released: ")
    assert "so it is wanted" in grid.why(job_id).summary


def test_why_rejects_the_jobs_of_others(grid: Grid) -> None:
    (job_id,) = grid.submit(a_user("alice"))
    with pytest.raises(NotFoundError):
        grid.why(job_id, a_user("mallory"))


def test_demand_counts_each_job_once_with_all_its_queues(grid: Grid) -> None:
    grid.submit(count=5, request_cpus=2)
    grid.submit(count=3, requirements={"Memory": 4000}, cpu_time=timedelta(hours=1))
    grid.submit(a_user(vo="cms"), count=2, sites=("FNAL",))
    answer = demand(grid, FAR, LONG, SMALL)
    assert [(each.vo, each.waiting, each.queue_indexes) for each in answer.demands] == [
        ("lhcb", 5, (1, 2)),
        ("lhcb", 3, (1,)),
        ("cms", 2, (0,)),
    ]
    assert [(each.amounts, each.cpu_time_s) for each in answer.demands[:2]] == [(Amounts(2), None), (Amounts(1), 3600)]


def test_demand_and_match_agree(grid: Grid) -> None:
    ids = grid.submit(count=2, requirements={"Memory": 4000}) + grid.submit(request_memory_mib=3000)
    for queue in (LONG, SMALL):
        wanted = sum(each.waiting for each in demand(grid, queue).demands)
        taken = [job for _ in ids for job in grid.start_pilot(queue).claim(a_slot(memory_mib=10_000))]
        assert len(taken) == wanted


def test_supply_counts_pilots_and_idle_cores(grid: Grid) -> None:
    grid.start_pilot()
    grid.start_pilot().show(an_idle_slot("a", cpus=3), a_busy_slot("b"))
    draining = grid.start_pilot()
    draining.show(an_idle_slot())
    grid.drain(draining)
    supply, unknown = demand(grid, LONG, "CERN/ce01/none").supplies
    assert (supply.known, supply.pilots_waiting, supply.pilots_running) == (True, 1, 2)
    assert supply.idle == (IdleSlots(Amounts(3), 1),)
    assert supply.parameters["Memory"] == 8000
    assert not unknown.known


def test_ban_comes_first_if_it_closes_all_queues_that_fit(grid: Grid) -> None:
    tree = a_tree(LONG, SMALL, *(f"SITE{number}/ce/q" for number in range(5)))
    grid.put(tree)
    (wanting_site,) = grid.submit(sites=("CERN",))
    (wanting_both,) = grid.submit(sites=("CERN", "SITE1"))
    order = BanOrder(TreeNode("CERN"), "power cut")
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), order))

    why = grid.why(wanting_site)
    assert [(each.parameter, each.queues_alone) for each in why.exclusions] == [("Ban", 2), ("Site", 5)]
    assert why.summary == (
        "It waits because the 2 queues that could run it are banned, such as CERN/ce01/long: Ban: CERN is banned: "
        "power cut."
    )
    assert [each.parameter for each in grid.why(wanting_both).exclusions] == ["Site", "Ban"]


def test_other_cause_comes_before_a_ban_that_closes_nothing_that_fits(grid: Grid) -> None:
    order = BanOrder(TreeNode("CERN", "ce01", "small"), "broken")
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), order))
    (job_id,) = grid.submit(requirements={"Memory": 9000})

    why = grid.why(job_id)

    assert [(each.parameter, each.queues, each.queues_alone) for each in why.exclusions] == [
        ("Memory", 2, 1),
        ("Ban", 1, 0),
    ]
    assert "Memory 9000 MiB alone excludes 1" in why.summary


def test_banned_queue_has_no_demand(grid: Grid) -> None:
    grid.submit()
    order = BanOrder(TreeNode("CERN"), "power cut")
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), order))
    answer = demand(grid, LONG)
    assert (answer.demands, answer.supplies[0].banned) == ((), True)
