"""Claims: a slot is kept for one account over several jobs, until its worklife ends or no job comes."""

from __future__ import annotations

from dataclasses import replace

from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import ForgetAttempt, PrepareJob, RequestJobs, StoreOutput
from pilotage_pilot.core.slots.states import Claim
from support.pilot_bench import PilotBench, a_job, transient

ALICE = Account("", "", "alice")


def claim_of(bench: PilotBench, name: str) -> Claim:
    """Return the claim on a slot."""
    slot = bench.machine.payloads.slots.book.get(name)
    assert slot is not None
    assert slot.machine.claim is not None
    return slot.machine.claim


def end(bench: PilotBench, job_id: int) -> None:
    """End a job and store its files."""
    job = a_job(job_id)
    bench.exit(job)
    bench.feed(ev.OutputStored(job.key))


def test_six_jobs_of_one_account_reuse_two_claims() -> None:
    bench = PilotBench(cpus=2)
    bench.run(a_job(1), a_job(2))
    claims = {name: claim_of(bench, name).since for name in ("slot1_1", "slot1_2")}
    for ended, started in ((1, 3), (2, 4), (3, 5), (4, 6)):
        slot = bench.machine.payloads.slots.of(a_job(ended).key)
        assert slot is not None
        end(bench, ended)
        call = bench.one(RequestJobs)
        assert [(offer.name, offer.claim) for offer in call.slots] == [(slot.name, ALICE)]
        bench.pass_time(1)
        bench.feed(ev.JobsGranted(call.request_id, (job := a_job(started, slot=slot.name),)))
        bench.feed(ev.JobPrepared(job.key))
        bench.feed(ev.PayloadStarted(job.key))
    assert {name: claim_of(bench, name).since for name in claims} == claims
    assert [claim_of(bench, name).activations for name in claims] == [3, 3]


def test_request_with_claimed_slot_is_no_long_poll() -> None:
    bench = PilotBench(cpus=1)
    bench.run(a_job(1))
    end(bench, 1)
    assert bench.one(RequestJobs).wait_s == 0


def test_claim_without_next_job_ends_and_frees_cores() -> None:
    bench = PilotBench(cpus=2)
    bench.run(a_job(1, cpus=2))
    end(bench, 1)
    assert bench.state_and_activity() == ["Unclaimed/Idle", "Claimed/Idle"]
    bench.grant()
    assert bench.state_and_activity() == ["Unclaimed/Idle"]
    call = bench.one(RequestJobs)
    assert [(offer.name, offer.free.cpus, offer.claim) for offer in call.slots] == [("slot1", 2, None)]
    assert call.wait_s > 0


def test_claim_outlives_failed_request() -> None:
    bench = PilotBench(cpus=1)
    bench.run(a_job(1))
    end(bench, 1)
    call = bench.one(RequestJobs)
    bench.feed(ev.RequestFailed(call.request_id, transient()))
    bench.pass_time(1)
    assert bench.one(RequestJobs).request_id == call.request_id
    assert bench.slot("slot1_1").state == "Claimed"


def test_claim_outlives_answer_with_node_attributes_only() -> None:
    bench = PilotBench(cpus=1)
    bench.run(a_job(1))
    end(bench, 1)
    call = bench.one(RequestJobs)
    bench.feed(ev.JobsGranted(call.request_id, node_attributes=ev.NodeAttributes(1, {})))
    bench.pass_time(0)
    assert [(offer.name, offer.claim) for offer in bench.one(RequestJobs).slots] == [("slot1_1", ALICE)]


def test_job_of_other_account_gets_new_claim() -> None:
    bench = PilotBench(cpus=1)
    bench.run(a_job(1))
    end(bench, 1)
    bench.pass_time(1)
    bench.grant(bob := a_job(2, slot="slot1_1", owner="bob"))
    assert bench.take(PrepareJob)[-1].job == bob
    claim = claim_of(bench, "slot1_1")
    assert (claim.holder.owner, claim.since, claim.activations) == ("bob", bench.now, 0)


def test_smaller_job_resizes_claimed_slot() -> None:
    bench = PilotBench(cpus=4)
    bench.run(a_job(1, cpus=4))
    end(bench, 1)
    bench.grant(a_job(2, cpus=1, slot="slot1_1"))
    assert bench.slot("slot1_1").amounts.cpus == 1
    assert bench.one(RequestJobs).slots[0].free.cpus == 3


def test_job_without_gpu_frees_gpu_of_claim() -> None:
    bench = PilotBench(cpus=1, gpus=1)
    bench.run(replace(a_job(1), amounts=Amounts(1, gpus=1)))
    end(bench, 1)
    bench.grant(a_job(2, slot="slot1_1"))
    assert (bench.slot("slot1_1").amounts.gpus, bench.slot("slot1").free.gpus) == (0, 1)


def test_expired_claim_is_not_reused() -> None:
    bench = PilotBench(cpus=1)
    bench.run(replace(a_job(1), lease_s=100_000))
    bench.pass_time(1201)
    end(bench, 1)
    assert bench.state_and_activity() == ["Unclaimed/Idle"]
    assert [offer.claim for offer in bench.one(RequestJobs).slots] == [None]


def test_job_for_claim_that_expired_during_request_is_accepted() -> None:
    bench = PilotBench(cpus=1)
    bench.run(replace(a_job(1), lease_s=100_000))
    bench.pass_time(1190)
    end(bench, 1)
    call = bench.one(RequestJobs)
    bench.pass_time(20)
    assert bench.state_and_activity() == ["Unclaimed/Idle"]
    assert bench.take(RequestJobs) == [], "a slot in an open request is not offered again"
    bench.feed(ev.JobsGranted(call.request_id, (job := a_job(2, slot="slot1_1"),)))
    assert bench.take(PrepareJob)[-1].job == job


def test_second_job_for_one_slot_is_declined() -> None:
    bench = PilotBench(cpus=2)
    bench.run(a_job(1, cpus=2))
    bench.pass_time(1)
    end(bench, 1)
    bench.grant(a_job(2, slot="slot1_1"), too_much := a_job(3, slot="slot1_1"))
    assert bench.outcome(too_much) is Outcome.DECLINED


def test_offered_claim_lacks_disk_of_unstored_files() -> None:
    bench = PilotBench(cpus=1)
    job = replace(a_job(1), amounts=Amounts(1, 100, 6000))
    bench.run(job)
    assert StoreOutput(job.key) in bench.exit(job)
    bench.pass_time(0.1)
    call = bench.one(RequestJobs)
    assert [offer.free for offer in call.slots] == [Amounts(1, 100, 0)]
    bench.feed(ev.JobsGranted(call.request_id))
    assert bench.one(RequestJobs).slots[0].free == Amounts(1, 8000, 4000)
    assert ForgetAttempt(job.key) in bench.feed(ev.OutputStored(job.key))
    bench.pass_time(1)
    assert bench.slot("slot1").free.disk_mib == 10_000
