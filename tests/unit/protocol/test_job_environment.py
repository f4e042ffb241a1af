"""What a job finds in its environment, and whose word counts."""

from __future__ import annotations

import pytest

from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.environment import JobIdentity, JobRunContext, input_file_of, job_environment

IDENTITY = JobIdentity("marker", 7, 3, 41, 2, "ann", "sky")
PLACE = JobRunContext("/work", "/tmp", "/warning", "S/C/Q", "node", "slot1", cpus=4, memory_mib=800)
MACHINE = {"PATH": "/bin", "LANG": "C", "HOME": "/root"}


def environment(description: JobDescription, place: JobRunContext = PLACE) -> dict[str, str]:
    return job_environment(description, IDENTITY, place, MACHINE)


def a_job(attributes: dict[str, str], *files: str, **environment: str) -> JobDescription:
    brought = tuple(InputFile(name) for name in files)
    return JobDescription("run", attributes=attributes, input_files=brought, environment=environment)


def test_the_owner_wins_over_the_machine_and_what_we_say_over_the_owner() -> None:
    said = environment(a_job({}, LANG="de", OMP_NUM_THREADS="1", PILOTAGE_OWNER="eve", _CONDOR_SLOT="9"))
    assert (said["LANG"], said["OMP_NUM_THREADS"]) == ("de", "1")
    assert (said["PILOTAGE_OWNER"], said["_CONDOR_SLOT"]) == ("ann", "slot1")
    assert (said["HOME"], said["PATH"]) == ("/work", "/bin")


def test_sizes_that_nobody_knows_are_not_told() -> None:
    said = environment(
        JobDescription("run"), JobRunContext("/w", "/t", "/x", "q", "n", "s", cpus=None, memory_mib=None)
    )
    assert not {"OMP_NUM_THREADS", "PILOTAGE_CPUS", "PILOTAGE_MEMORY_MIB", "_CONDOR_JOB_AD"} & said.keys()


def test_a_variable_without_a_name_is_left_out() -> None:
    said = environment(JobDescription("run", environment={"": "x", "A=B": "y", "C": "z"}))
    assert said["C"] == "z"
    assert not {"", "A=B"} & said.keys()


def test_a_job_that_brings_its_proxy_finds_it_and_no_other_file_can_be_one() -> None:
    assert environment(a_job({"x509UserProxy": "/tmp/x509up_u1"}, "x509up_u1"))["X509_USER_PROXY"] == "/work/x509up_u1"
    assert "X509_USER_PROXY" not in environment(a_job({"x509userproxy": "/etc/secret"}, "data"))
    owners = environment(a_job({"x509userproxy": "p"}, "p", X509_USER_PROXY="/else"))
    assert owners["X509_USER_PROXY"] == "/else"


@pytest.mark.parametrize(
    ("named", "found"),
    [("deep/token", "deep/token"), ("/home/ann/token", "token"), ("other", ""), ("", ""), ("deep/", "")],
)
def test_an_attribute_names_an_input_file_with_or_without_folders(named: str, found: str) -> None:
    assert input_file_of(a_job({"Named": named}, "deep/token", "token"), "named") == found


def test_an_attribute_that_is_no_text_names_no_file() -> None:
    job = JobDescription("run", attributes={"Named": 5}, input_files=(InputFile("5"),))
    assert input_file_of(job, "named") == ""
