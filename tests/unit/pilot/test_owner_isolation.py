"""A pilot that runs the jobs of one owner at a time: what its requests name, and when another owner's job may come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotage.values.accounts import OwnerId
from pilotage.values.attempts import Outcome
from pilotage.values.isolation import Isolation
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import ForgetAttempt, PrepareJob, RecallRequest, RequestJobs
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import PilotBench, a_job

ONE_OWNER = PilotRules(isolation=Isolation.OWNER)
OF_ANN = OwnerId("lhcb", "ann")


def a_job_of(owner: str, number: int) -> GrantedJob:
    return replace(a_job(number), owner=owner, vo="lhcb")


def last_request(bench: PilotBench) -> RequestJobs:
    return [each for each in bench.instructions if isinstance(each, RequestJobs)][-1]


def bound_to(call: RequestJobs) -> set[OwnerId | None]:
    return {slot.bound_to for slot in call.slots}


@pytest.fixture
def bench() -> PilotBench:
    return PilotBench(rules=ONE_OWNER)


def test_request_names_the_owner_of_held_jobs(bench: PilotBench) -> None:
    ann, bob = a_job_of("ann", 1), a_job_of("bob", 2)
    first = bench.take(RequestJobs)[0]
    assert {(slot.isolation, slot.bound_to) for slot in first.slots} == {(Isolation.OWNER, None)}
    bench.feed(ev.JobsGranted(first.request_id, (ann,)))
    second = bench.take(RequestJobs)[0]
    assert {slot.bound_to for slot in second.slots} == {OF_ANN}
    bench.feed(ev.JobsGranted(second.request_id, (bob,)))
    assert bench.outcome(bob) is Outcome.DECLINED
    assert [order.job for order in bench.take(PrepareJob)] == [ann]


def test_second_owner_in_one_answer_is_declined(bench: PilotBench) -> None:
    ann, bob, more = a_job_of("ann", 1), a_job_of("bob", 2), a_job_of("ann", 3)
    bench.grant(ann, bob, more)
    assert [order.job for order in bench.take(PrepareJob)] == [ann, more]
    assert bench.outcome(bob) is Outcome.DECLINED


def test_owner_holds_the_pilot_until_the_folder_is_gone(bench: PilotBench) -> None:
    ann = a_job_of("ann", 1)
    bench.run(ann)
    bench.exit(ann)
    bench.feed(ev.OutputStored(ann.key))
    assert bench.take(ForgetAttempt) == [ForgetAttempt(ann.key, reports_removal=True)]
    bench.answer_recalled()
    assert bound_to(last_request(bench)) == {OF_ANN}
    bench.feed(ev.JobsGranted(last_request(bench).request_id))  # it was for the claim of Ann, which ends now
    bench.pass_time(2)
    assert bound_to(last_request(bench)) == {OF_ANN}
    bench.feed(ev.FolderRemoved(ann.key))
    bench.answer_recalled()
    assert bound_to(last_request(bench)) == {None}


def test_one_request_is_in_flight_and_later_free_slots_replace_it(bench: PilotBench) -> None:
    jobs = [a_job_of("ann", number) for number in (1, 2)]
    bench.run(*jobs)
    waiting = bench.one(RequestJobs)
    bench.exit(jobs[0])
    bench.feed(ev.OutputStored(jobs[0].key))
    assert bench.take(RequestJobs) == []
    assert [recall.request_id for recall in bench.take(RecallRequest)] == [waiting.request_id]
    bench.feed(ev.JobsGranted(waiting.request_id))
    (again,) = bench.take(RequestJobs)
    assert sum(slot.free.cpus for slot in again.slots) == 3


def test_other_levels_name_no_owner_and_report_no_removal() -> None:
    bench = PilotBench(rules=PilotRules(isolation=Isolation.UID))
    ann, bob = a_job_of("ann", 1), a_job_of("bob", 2)
    bench.run(ann, bob)
    bench.exit(ann)
    bench.feed(ev.OutputStored(ann.key))
    assert bench.take(ForgetAttempt) == [ForgetAttempt(ann.key)]
    offers = [slot for call in bench.take(RequestJobs) for slot in call.slots]
    assert {(slot.isolation, slot.bound_to) for slot in offers} == {(Isolation.UID, None)}
