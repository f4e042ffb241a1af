"""Keywords and sizes of a job against a queue, and all verdicts together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Ban, Eligible, NoAccess, Refused, active_bans, full_verdict, job_fit
from pilotage.resources.requirements import JobNeeds, job_needs
from pilotage.resources.tree import QueueId
from support.trees import THE_QUEUE, a_queue, a_tree_of_one_queue, asking, effective_queue

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FREE = JobNeeds()


def a_job(**stated: object) -> JobNeeds:
    """Return the needs of a job that states this."""
    return job_needs(JobDescription(executable="/bin/true", **stated))  # type: ignore[arg-type]


def parameters(verdict: object) -> list[str]:
    """Return the parameters that a verdict, which must be Refused, names."""
    assert isinstance(verdict, Refused), verdict
    return [refusal.parameter for refusal in verdict.refusals]


@pytest.mark.parametrize(
    "needs",
    [
        a_job(),
        a_job(sites=("Elsewhere", "cern")),
        a_job(sites=("ANY",)),
        a_job(banned_sites=("FNAL",)),
        a_job(platforms=("x86_64-EL9",)),
        a_job(platforms=("any", "slc6")),
        a_job(cpu_time=timedelta(seconds=5000)),
        a_job(request_cpus=8, request_memory_mib=16000, request_disk_mib=100, request_gpus=0),
    ],
)
def test_needs_that_the_queue_meets_fit(needs: JobNeeds) -> None:
    queue = a_queue(Platform=["x86_64-el9"], CPUTime=5000, CPUs=8, Memory="16 GB", Disk=100, GPUs=0)
    assert job_fit(needs, queue) == Eligible()


@pytest.mark.parametrize(
    ("needs", "parameter"),
    [
        (a_job(sites=("FNAL",)), "Site"),
        (a_job(banned_sites=("fnal", "Cern")), "BannedSite"),
        (a_job(platforms=("slc6",)), "Platform"),
        (a_job(cpu_time=timedelta(seconds=5000.5)), "CPUTime"),
        (a_job(request_cpus=9), "CPUs"),
        (a_job(request_memory_mib=16385), "Memory"),
        (a_job(request_disk_mib=101), "Disk"),
        (a_job(request_gpus=1), "GPUs"),
    ],
)
def test_a_need_that_the_queue_states_otherwise_refuses(needs: JobNeeds, parameter: str) -> None:
    queue = a_queue(Platform="x86_64-el9", CPUTime=5000, CPUs=8, Memory="16 GB", Disk=100, GPUs=0)
    assert parameters(job_fit(needs, queue)) == [parameter]


def test_a_queue_that_states_no_counterpart_is_unrestricted_in_it() -> None:
    demanding = a_job(platforms=("slc6",), cpu_time=timedelta(days=99), request_cpus=999, request_memory_mib=10**9)
    assert job_fit(demanding, a_queue()) == Eligible()
    assert job_fit(demanding, a_queue(CPUs="auto", Platform=[], Memory="all", CPUTime="long")) == Eligible()


def test_a_declared_platform_runs_the_jobs_of_those_it_is_compatible_with() -> None:
    tree = a_tree_of_one_queue({"Platform": "el9"}, platforms={"EL9": ["el8", "el7"], "el7": "slc6"})
    queue = effective_queue(tree, THE_QUEUE, None)
    assert [job_fit(a_job(platforms=(asked,)), queue) == Eligible() for asked in ("el9", "EL8", "slc6")] == [
        True,
        True,
        False,
    ]


def test_jobs_that_differ_in_order_and_letter_case_alone_have_the_same_needs() -> None:
    assert a_job(sites=("CERN", "FNAL")) == a_job(sites=("fnal", "cern", "CERN"))
    assert hash(a_job(platforms=("EL9",))) == hash(a_job(platforms=("el9",)))


def test_cpu_time_is_never_rounded() -> None:
    assert a_job(cpu_time=timedelta(seconds=5000)).cpu_time_s == 5000
    assert a_job(cpu_time=timedelta(milliseconds=1500)).cpu_time_s == 1.5


def test_a_ban_covers_what_lies_in_it_whatever_the_letter_case() -> None:
    assert Ban("cern", None, None, "power cut").covers(THE_QUEUE)
    assert Ban("CERN", "CE01", "long", "broken").covers(THE_QUEUE)
    assert not Ban("CERN", "ce02", None, "broken").covers(THE_QUEUE)
    assert not Ban("CERN", "ce01", "short", "broken").covers(THE_QUEUE)
    assert not Ban("FNAL", None, None, "broken").covers(QueueId("CERN", "FNAL", "FNAL"))


def test_a_ban_ends_at_its_end() -> None:
    hour = timedelta(hours=1)
    ban = Ban("CERN", None, None, "power cut", until=NOON)
    assert active_bans([ban], THE_QUEUE, NOON - hour) == (ban,)
    assert active_bans([ban], THE_QUEUE, NOON) == ()
    for_good = Ban("CERN", None, None, "closed")
    assert active_bans([ban, for_good], THE_QUEUE, NOON + hour) == (for_good,)


def test_the_full_verdict_tells_requirements_needs_and_bans_together() -> None:
    queue = a_queue(Memory=1000)
    ban = Ban("CERN", "ce01", None, "new kernel", until=NOON + timedelta(hours=1))
    verdict = full_verdict(asking(OS="el9"), a_job(request_memory_mib=2000), queue, [ban], NOON)
    assert parameters(verdict) == ["OS", "Memory", "Ban"]
    assert isinstance(verdict, Refused)
    assert verdict.refusals[-1].why == "CERN/ce01 is banned until 2026-05-01T13:00:00+00:00: new kernel"
    assert full_verdict(None, FREE, queue, [], NOON) == Eligible()


def test_the_full_verdict_tells_a_vo_without_access_nothing_more() -> None:
    ban = Ban("CERN", None, None, "secret")
    assert isinstance(full_verdict(None, FREE, a_queue(VOs=["atlas"]), [ban], NOON), NoAccess)
