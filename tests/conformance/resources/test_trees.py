"""New versions of the tree: activation with its effects, trial, and refusal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidTreeError
from pilotage.resources.parameters import SHIPPED, ParameterDeclaration, ParameterType
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.queueing.tree_plan import PoolChange
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.explain import explain_job
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.put_tree import get_tree, put_tree, try_tree
from pilotage_server.operations.resources.pools import plan_refresh, refresh_pools
from pilotage_server.operations.resources.tree import parse_tree
from pilotage_server.storage.database.engine import Database
from support.pool_bench import BIG, FAR, OPERATOR, SMALL, PoolBench, a_new_tree, a_user, three_queues
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def declared_as(type_: ParameterType, section: dict[str, str | int], transaction: str | None = None) -> str:
    declarations = SHIPPED.extended([ParameterDeclaration("Memory", type_, transaction)])
    return pool_id(read_requirements(section, "cms", declarations))


def memory_is(type_: str) -> dict[str, dict[str, str]]:
    return {"Memory": {"type": type_}}


def test_version_is_0_before_the_first_tree(database: Database) -> None:
    bench = PoolBench(database)
    assert database.read(get_tree).version == 0
    assert bench.state.tree.queues == ()
    job = bench.submit(Memory=1000)
    assert bench.stored_queues(job.pool_id) == frozenset()


def test_tree_text_is_stored_unchanged(bench: PoolBench, clock: VirtualClock) -> None:
    text = "sites:\n  CERN:\n    ces:\n      ce01:\n        queues: {long: {Memory: 3000}}\n"
    effect = bench.put(parse_tree(text, "yaml"))
    stored = bench.database.read(get_tree)
    assert effect.version == stored.version == 2
    assert (stored.text, stored.format, stored.created, stored.created_by) == (text, "yaml", clock(), "olga")


def test_server_starts_with_active_tree(bench: PoolBench) -> None:
    bench.put(three_queues(big=16000))
    restarted = PoolBench(bench.database)
    assert restarted.state.tree.version == 2
    assert restarted.state.tree.queues == (BIG, SMALL, FAR)


def test_invalid_tree_is_refused_with_path_of_fault() -> None:
    with pytest.raises(InvalidTreeError, match=r"sites\.CERN\.ces\.ce01"):
        a_new_tree(sites={"CERN": {"ces": {"ce01": 3}}})


def test_new_tree_maps_all_pools(bench: PoolBench, clock: VirtualClock) -> None:
    big, small = bench.submit(Memory=6000), bench.submit(Memory=1000)
    clock.advance(minutes=1)
    effect = bench.put(three_queues(big=3000))
    assert effect.changes == (PoolChange(big.pool_id, gained=frozenset(), lost={BIG}),)
    assert bench.stored_queues(big.pool_id) == frozenset()
    assert {pool.tree_version for pool in bench.stored().values()} == {2}
    assert {pool.mapped for pool in bench.stored().values()} == {clock()}
    assert bench.state.mappings.queues(small.pool_id) == {BIG, SMALL, FAR}
    bench.check_consistency()


def test_new_tree_wakes_waiting_requests(bench: PoolBench) -> None:
    woken: list[str] = []
    bench.state.access_listeners.append(lambda: woken.append("now"))
    bench.put(three_queues())
    assert woken == ["now"]


def test_trial_has_effect_report_of_activation_and_changes_nothing(bench: PoolBench) -> None:
    bench.submit(Memory=6000)
    bench.submit(count=3, Memory=10_000)
    before = bench.stored()
    new = three_queues(big=12_000)
    tried = bench.attempt(new)
    assert tried.version == 2
    assert bench.state.tree.version == 1
    assert bench.stored() == before
    assert bench.put(new) == tried


def test_newly_runnable_and_stuck_jobs_are_counted(bench: PoolBench) -> None:
    bench.submit(a_user("lhcb"), count=3, Memory=6000)
    bench.submit(count=2, Memory=10_000)
    bench.submit(Memory=1000)
    assert (bench.attempt(three_queues(big=3000)).jobs_runnable, bench.attempt(three_queues(big=3000)).jobs_stuck) == (
        0,
        3,
    )
    assert bench.attempt(three_queues(big=12_000)).jobs_runnable == 2


def test_jobs_without_requirements_are_counted_as_stuck(bench: PoolBench) -> None:
    bench.submit(count=4)
    effect = bench.attempt(a_new_tree())
    assert effect.jobs_stuck == 4


def test_unknown_top_level_key_causes_a_warning(bench: PoolBench) -> None:
    assert "provenance" in bench.put(three_queues(provenance="a list")).warnings[0]


def test_redeclared_parameter_rekeys_pools_that_use_it(bench: PoolBench) -> None:
    job, other = bench.submit(Memory=2000), bench.submit(OS="el9")
    effect = bench.put(three_queues(parameters=memory_is("value")))
    moved = bench.job(job.id)
    assert effect.pools_rekeyed == 1
    assert moved.pool_id == declared_as(ParameterType.VALUE, {"Memory": 2000})
    assert moved.task_queue_id != job.task_queue_id
    assert bench.stored().keys() == {moved.pool_id, other.pool_id}
    assert bench.stored_queues(moved.pool_id) == {SMALL}
    assert effect.changes == (PoolChange(job.pool_id, gained=frozenset(), lost={BIG, FAR}),)
    assert bench.state.waiting.count(moved.task_queue_id) == 1
    bench.check_consistency()


def test_redeclaration_splits_pool_of_different_spellings(bench: PoolBench) -> None:
    number, text = bench.submit(count=2, Memory=2000), bench.submit(Memory="2000 MB")
    assert number.pool_id == text.pool_id
    bench.put(three_queues(parameters=memory_is("value")))
    assert bench.job(number.id).pool_id == declared_as(ParameterType.VALUE, {"Memory": 2000})
    assert bench.job(text.id).pool_id == declared_as(ParameterType.VALUE, {"Memory": "2000 MB"})
    assert bench.state.waiting.count(bench.job(number.id).task_queue_id) == 2
    bench.check_consistency()


def test_redeclaration_merges_pools_of_equal_meaning(bench: PoolBench) -> None:
    bench.put(three_queues(parameters=memory_is("value")))
    number, text = bench.submit(Memory=2000), bench.submit(Memory="2000 MB")
    assert number.pool_id != text.pool_id
    effect = bench.put(three_queues())
    pools = {bench.job(number.id).pool_id, bench.job(text.id).pool_id}
    assert pools == {declared_as(ParameterType.CAPACITY, {"Memory": 2000}, "MiB")} == bench.stored().keys()
    assert effect.pools_rekeyed == 2
    bench.check_consistency()


def test_jobs_with_invalidated_requirements_are_held_with_reason(bench: PoolBench) -> None:
    text = bench.submit(Memory="2000 MB")
    number = bench.submit(Memory=2000)
    effect = bench.put(three_queues(parameters=memory_is("flag")))
    held = bench.job(text.id)
    assert held.state is JobState.HELD
    assert "Memory" in held.reason
    assert "version 2" in held.reason
    assert any("held" in warning for warning in effect.warnings)
    assert effect.jobs_stuck == 2
    assert bench.job(number.id).state is JobState.HELD
    assert bench.stored_queues(held.pool_id) == frozenset()
    bench.check_consistency()


def test_explanation_names_invalidated_requirement(bench: PoolBench) -> None:
    job = bench.submit(Memory="2000 MB")
    bench.put(three_queues(parameters=memory_is("flag")))
    explanation = bench.read(lambda transaction, state: explain_job(transaction, state, a_user(), job.id))
    assert [(exclusion.parameter, exclusion.queues) for exclusion in explanation.exclusions] == [("Memory", 3)]
    assert explanation.eligible_queues == ()


def test_release_succeeds_once_requirements_are_valid_again(bench: PoolBench) -> None:
    job = bench.submit(Memory="2000 MB")
    bench.put(three_queues(parameters=memory_is("flag")))
    release = JobChange.RELEASE
    refused = bench.write(lambda transaction, state: change_jobs(transaction, state, a_user(), [job.id], release, ""))
    assert refused[0].state is JobState.HELD
    assert "Memory" in refused[0].refusal
    bench.put(three_queues())
    bench.write(lambda transaction, state: change_jobs(transaction, state, a_user(), [job.id], release, ""))
    released = bench.job(job.id)
    assert (released.state, released.pool_id) == (JobState.WAITING, job.pool_id)
    assert bench.stored_queues(job.pool_id) == {BIG, SMALL, FAR}
    bench.check_consistency()


def test_pool_keeps_its_id_for_unchanged_requirements(bench: PoolBench) -> None:
    bench.put(three_queues(parameters={"Scratch": {"type": "capacity", "unit": "MB"}}, defaults={"Scratch": 50}))
    text, number = bench.submit(Scratch="20 MB"), bench.submit(Scratch=20)
    assert text.pool_id == number.pool_id
    bench.put(three_queues(parameters={"Scratch": {"type": "capacity"}}, defaults={"Scratch": 50}))
    assert bench.job(number.id).pool_id == number.pool_id
    assert bench.stored()[number.pool_id].section == {"Scratch": 20}
    assert bench.stored_queues(number.pool_id) == {BIG, SMALL, FAR}
    assert bench.job(text.id).state is JobState.HELD
    bench.check_consistency()


def test_leased_job_keeps_lease_and_gets_new_pool(bench: PoolBench, clock: VirtualClock) -> None:
    job = bench.submit(Memory=2000)
    until = clock.advance(minutes=1)
    bench.write(
        lambda transaction, state: apply_transition(
            transaction,
            state,
            job,
            JobCause.MATCHED,
            reason="",
            actor="pilot:p",
            attempt=1,
            queue=SMALL,
            lease_until=until,
        )
    )
    bench.put(three_queues(parameters=memory_is("value")))
    leased = bench.job(job.id)
    assert (leased.state, leased.attempt, leased.queue) == (JobState.MATCHED, 1, SMALL)
    assert leased.pool_id == declared_as(ParameterType.VALUE, {"Memory": 2000})


def test_finished_jobs_keep_their_pool(bench: PoolBench) -> None:
    job = bench.submit(Memory=2000)
    bench.remove(job)
    bench.put(three_queues(parameters=memory_is("value")))
    assert bench.job(job.id).pool_id == job.pool_id
    assert bench.stored() == {}


def test_new_job_joins_rekeyed_jobs(bench: PoolBench) -> None:
    old = bench.submit(Memory=2000)
    bench.put(three_queues(parameters=memory_is("value")))
    new = bench.submit(Memory=2000)
    assert (new.pool_id, new.task_queue_id) == (bench.job(old.id).pool_id, bench.job(old.id).task_queue_id)
    bench.check_consistency()


def test_pool_created_after_trial_is_mapped_by_new_tree(bench: PoolBench) -> None:
    new = three_queues(big=3000)
    gone = bench.submit(Memory=500)
    plan = bench.read(lambda transaction, state: try_tree(transaction, state, new))
    created = bench.submit(Memory=2500)
    bench.remove(gone)
    bench.clean(hours=0)
    bench.write(lambda transaction, state: put_tree(transaction, state, OPERATOR, new, plan))
    assert bench.state.mappings.queues(created.pool_id) == {BIG, FAR} == bench.stored_queues(created.pool_id)
    bench.check_consistency()


def test_outdated_plan_is_made_again(bench: PoolBench) -> None:
    job = bench.submit(Memory=6000)
    new = three_queues(big=12_000)
    plan = bench.read(lambda transaction, state: try_tree(transaction, state, new))
    bench.put(three_queues(big=3000))
    effect = bench.write(lambda transaction, state: put_tree(transaction, state, OPERATOR, new, plan))
    assert effect.version == 3
    assert effect.changes == (PoolChange(job.pool_id, gained={BIG}, lost=frozenset()),)
    bench.check_consistency()


def test_jobs_submitted_after_trial_are_rekeyed(bench: PoolBench) -> None:
    new = three_queues(parameters=memory_is("value"))
    bench.submit(Memory=1000)
    plan = bench.read(lambda transaction, state: try_tree(transaction, state, new))
    late = bench.submit(Memory=2000)
    bench.write(lambda transaction, state: put_tree(transaction, state, OPERATOR, new, plan))
    assert bench.job(late.id).pool_id == declared_as(ParameterType.VALUE, {"Memory": 2000})
    bench.check_consistency()


def test_first_affected_job_after_trial_is_rekeyed(bench: PoolBench) -> None:
    new = three_queues(parameters=memory_is("value"))
    plan = bench.read(lambda transaction, state: try_tree(transaction, state, new))
    assert not plan.touches_jobs
    late = bench.submit(Memory=2000)
    effect = bench.write(lambda transaction, state: put_tree(transaction, state, OPERATOR, new, plan))
    assert bench.job(late.id).pool_id == declared_as(ParameterType.VALUE, {"Memory": 2000})
    assert effect.pools_rekeyed == 1
    bench.check_consistency()


def test_refresh_planned_before_new_tree_changes_nothing(bench: PoolBench) -> None:
    job = bench.submit(Memory=6000)
    planned = bench.read(lambda transaction, state: plan_refresh(transaction, state, timedelta(0)))
    bench.put(three_queues(big=3000))
    assert bench.write(lambda transaction, state: refresh_pools(transaction, state, planned)) == ()
    assert bench.state.mappings.queues(job.pool_id) == frozenset()
    bench.check_consistency()
