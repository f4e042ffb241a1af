"""The fit of a job's keywords and sizes with a queue, and the full verdict."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Ban, Eligible, NoAccess, Refused, full_verdict, job_fit
from pilotage.resources.requirements import JobNeeds, job_needs
from support.trees import THE_QUEUE, a_queue, effective_queue, one_queue_tree, requirements_of

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FREE = JobNeeds()
STATED: dict[str, Any] = {
    "CPUTime": 5000,
    "MaxWallTime": "40 min",
    "CPUs": 8,
    "Memory": "16 GB",
    "Disk": 100,
    "GPUs": 0,
}


def a_job(**fields: object) -> JobNeeds:
    """Return the needs of a job with these fields."""
    return job_needs(JobDescription(executable="/bin/true", **fields))  # type: ignore[arg-type]


def parameters(verdict: object) -> list[str]:
    """Return the parameters that a verdict names; it must be Refused."""
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
        a_job(wall_time=timedelta(minutes=40)),
        a_job(request_cpus=8, request_memory_mib=16000, request_disk_mib=100, request_gpus=0),
    ],
)
def test_satisfied_needs_fit(needs: JobNeeds) -> None:
    queue = a_queue(Platform=["x86_64-el9"], **STATED)
    assert job_fit(needs, queue) == Eligible()


@pytest.mark.parametrize(
    ("needs", "parameter"),
    [
        (a_job(sites=("FNAL",)), "Site"),
        (a_job(banned_sites=("fnal", "Cern")), "BannedSite"),
        (a_job(platforms=("slc6",)), "Platform"),
        (a_job(cpu_time=timedelta(seconds=5000.5)), "CPUTime"),
        (a_job(wall_time=timedelta(hours=8)), "MaxWallTime"),
        (a_job(request_cpus=9), "CPUs"),
        (a_job(request_memory_mib=16385), "Memory"),
        (a_job(request_disk_mib=101), "Disk"),
        (a_job(request_gpus=1), "GPUs"),
    ],
)
def test_unsatisfied_need_refuses(needs: JobNeeds, parameter: str) -> None:
    queue = a_queue(Platform="x86_64-el9", **STATED)
    assert parameters(job_fit(needs, queue)) == [parameter]


def test_queue_without_parameter_is_unrestricted() -> None:
    demanding = a_job(platforms=("slc6",), cpu_time=timedelta(days=99), request_cpus=999, request_memory_mib=10**9)
    assert job_fit(demanding, a_queue()) == Eligible()
    assert job_fit(demanding, a_queue(CPUs="auto", Platform=[], Memory="all", CPUTime="long")) == Eligible()


def test_platform_runs_jobs_of_compatible_platforms() -> None:
    tree = one_queue_tree({"Platform": "el9"}, platforms={"EL9": ["el8", "el7"], "el7": "slc6"})
    queue = effective_queue(tree, THE_QUEUE, None)
    assert [job_fit(a_job(platforms=(asked,)), queue) == Eligible() for asked in ("el9", "EL8", "slc6")] == [
        True,
        True,
        False,
    ]


def test_needs_ignore_order_and_case() -> None:
    assert a_job(sites=("CERN", "FNAL")) == a_job(sites=("fnal", "cern", "CERN"))
    assert hash(a_job(platforms=("EL9",))) == hash(a_job(platforms=("el9",)))


def test_cpu_time_is_not_rounded() -> None:
    assert a_job(cpu_time=timedelta(seconds=5000)).cpu_time_s == 5000
    assert a_job(cpu_time=timedelta(milliseconds=1500)).cpu_time_s == 1.5


def test_full_verdict_combines_requirements_needs_and_bans() -> None:
    queue = a_queue(Memory=1000)
    ban = Ban("CERN", "ce01", None, "new kernel", until=NOON + timedelta(hours=1))
    verdict = full_verdict(requirements_of(OS="el9"), a_job(request_memory_mib=2000), queue, [ban], NOON)
    assert parameters(verdict) == ["OS", "Memory", "Ban"]
    assert isinstance(verdict, Refused)
    assert verdict.refusals[-1].why == "CERN/ce01 is banned until 2026-05-01T13:00:00+00:00: new kernel"
    assert full_verdict(None, FREE, queue, [], NOON) == Eligible()


def test_full_verdict_reveals_nothing_without_access() -> None:
    ban = Ban("CERN", None, None, "secret")
    assert isinstance(full_verdict(None, FREE, a_queue(VOs=["atlas"]), [ban], NOON), NoAccess)
