"""Environment variables of a job: sources, precedence, and input files named by attributes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.environment import JobIdentity, JobRunContext, input_file_of, job_environment

IDENTITY = JobIdentity("marker", 7, 3, 41, 2, "ann", "sky")
CONTEXT = JobRunContext(
    "/work", "/tmp", "/warning", "S/C/Q", "node", "slot1", cpus=4, memory_mib=800, gpu_ids=(), user="ann", path="/bin"
)
MACHINE = {"PATH": "/sbin", "LANG": "C", "HOME": "/root"}


def environment(description: JobDescription, context: JobRunContext = CONTEXT) -> dict[str, str]:
    return job_environment(description, IDENTITY, context, MACHINE)


def a_job(attributes: dict[str, str], *files: str, **environment: str) -> JobDescription:
    inputs = tuple(InputFile(name) for name in files)
    return JobDescription("run", attributes=attributes, input_files=inputs, environment=environment)


def test_job_overrides_machine_and_pilotage_overrides_job() -> None:
    variables = environment(a_job({}, LANG="de", OMP_NUM_THREADS="1", PILOTAGE_OWNER="eve", _CONDOR_SLOT="9"))
    assert (variables["LANG"], variables["OMP_NUM_THREADS"]) == ("de", "1")
    assert (variables["PILOTAGE_OWNER"], variables["_CONDOR_SLOT"]) == ("ann", "slot1")
    assert (variables["HOME"], variables["PATH"]) == ("/work", "/bin")


def test_unknown_sizes_are_omitted() -> None:
    unknown = replace(CONTEXT, cpus=None, memory_mib=None, gpu_ids=None)
    missing = {"OMP_NUM_THREADS", "PILOTAGE_CPUS", "PILOTAGE_MEMORY_MIB", "_CONDOR_JOB_AD", "CUDA_VISIBLE_DEVICES"}
    assert not missing & environment(JobDescription("run"), unknown).keys()


@pytest.mark.parametrize(("gpu_ids", "cuda", "nvidia"), [((), "", "void"), (("0", "3"), "0,3", "0,3")])
def test_job_sees_its_gpus_only(gpu_ids: tuple[str, ...], cuda: str, nvidia: str) -> None:
    variables = environment(a_job({}, CUDA_VISIBLE_DEVICES="7"), replace(CONTEXT, gpu_ids=gpu_ids))
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["NVIDIA_VISIBLE_DEVICES"]) == (cuda, nvidia)


def test_invalid_variable_names_are_omitted() -> None:
    variables = environment(JobDescription("run", environment={"": "x", "A=B": "y", "C": "z"}))
    assert variables["C"] == "z"
    assert not {"", "A=B"} & variables.keys()


def test_x509_user_proxy_points_to_input_file_only() -> None:
    assert environment(a_job({"x509UserProxy": "/tmp/x509up_u1"}, "x509up_u1"))["X509_USER_PROXY"] == "/work/x509up_u1"
    assert "X509_USER_PROXY" not in environment(a_job({"x509userproxy": "/etc/secret"}, "data"))
    variables = environment(a_job({"x509userproxy": "p"}, "p", X509_USER_PROXY="/else"))
    assert variables["X509_USER_PROXY"] == "/else"


@pytest.mark.parametrize(
    ("named", "found"),
    [("deep/token", "deep/token"), ("/home/ann/token", "token"), ("other", ""), ("", ""), ("deep/", "")],
)
def test_attribute_names_input_file_with_or_without_folders(named: str, found: str) -> None:
    assert input_file_of(a_job({"Named": named}, "deep/token", "token"), "named") == found


def test_attribute_that_is_no_text_names_no_file() -> None:
    job = JobDescription("run", attributes={"Named": 5}, input_files=(InputFile("5"),))
    assert input_file_of(job, "named") == ""
