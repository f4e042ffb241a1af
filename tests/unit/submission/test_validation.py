"""Validation of job descriptions: every fault is found and names its field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from pilotage.job_description import InputFile, JobPolicy
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.jobs import a_description

CHECKSUM = "ab" * 32


def faults(stored: Mapping[str, int] | None = None, **fields: Any) -> list[str]:
    found = description_faults(a_description(**fields), JobLimits(), stored or {})
    assert all(fault.why for fault in found)
    return [fault.where for fault in found]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"executable": ""}, "executable"),
        ({"executable": "  "}, "executable"),
        ({"executable": "../run.sh"}, "executable"),
        ({"executable": "run\0.sh"}, "executable"),
        ({"arguments": "it's"}, "arguments"),
        ({"name": "n" * 1001}, "name"),
        ({"environment": {"A=B": "1"}}, "environment.A=B"),
        ({"attributes": {"maybeRepeated": "true"}}, "attributes.maybeRepeated"),
        ({"attributes": {"MayBeRepeated": True, "Urgent": 1}}, "attributes.Urgent"),
        ({"environment": {"": "1"}}, "environment."),
        ({"environment": {"A": "\0"}}, "environment.A"),
        ({"stdin": "/etc/passwd"}, "stdin"),
        ({"stdout": "../out"}, "stdout"),
        ({"stdout": "a/" * 100 + "x"}, "stdout"),
        ({"output_files": ("*/" * 100 + "x",)}, "output_files[0]"),
        ({"stderr": "logs/"}, "stderr"),
        ({"output_files": ("good", "/etc/shadow")}, "output_files[1]"),
        ({"output_files": ("a/../../b",)}, "output_files[0]"),
        ({"output_files": ("/",)}, "output_files[0]"),
        ({"output_files": tuple(f"f{number}" for number in range(10_001))}, "output_files"),
        ({"request_cpus": 0}, "request_cpus"),
        ({"request_gpus": -1}, "request_gpus"),
        ({"request_memory_mib": -1}, "request_memory_mib"),
        ({"request_disk_mib": 2**60}, "request_disk_mib"),
        ({"priority": 2**31}, "priority"),
        ({"max_starts": 0}, "max_starts"),
        ({"retries": -1}, "retries"),
        ({"retry_until": "ExitCode == 3"}, "retry_until"),
        ({"retry_exit_codes": (3,)}, "retry_exit_codes"),
        ({"retry_delay": timedelta(seconds=5)}, "retry_delay_s"),
        ({"retries": 1, "retry_delay": timedelta(days=8)}, "retry_delay_s"),
        ({"retries": 1, "retry_until": "ExitCode =="}, "retry_until"),
        ({"retries": 1, "retry_exit_codes": (3, 0)}, "retry_exit_codes"),
        ({"retries": 1, "success_exit_code": 4, "retry_exit_codes": (4,)}, "retry_exit_codes"),
        ({"retries": 1, "retry_exit_codes": tuple(range(1, 300))}, "retry_exit_codes"),
        ({"retries": 1, "max_starts": 1}, "max_starts"),
        ({"retry_memory": 2.0}, "retry_memory"),
        ({"retry_memory": 1.0, "request_memory_mib": 100}, "retry_memory"),
        ({"retry_memory": 1.01, "request_memory_mib": 100}, "retry_memory"),
        ({"retry_memory": 101.0, "request_memory_mib": 100}, "retry_memory"),
        ({"policy": JobPolicy(on_exit_hold="ExitCode >")}, "policy.on_exit_hold"),
        ({"cpu_time": timedelta(seconds=-1)}, "cpu_time_s"),
        ({"wall_time": timedelta(0)}, "wall_time_s"),
        ({"lease": timedelta(seconds=1)}, "lease_s"),
        ({"lease": timedelta(days=2)}, "lease_s"),
        ({"count": 0}, "count"),
        ({"count": -3}, "count"),
        ({"count": 1_000_001}, "count"),
        ({"requirements_expression": "x" * 4097}, "requirements_expression"),
        ({"requirements_expression": "TARGET.Memory >"}, "requirements_expression"),
        ({"rank": "1; evil = 2"}, "rank"),
        ({"rank": "é" * 2049}, "rank"),
        ({"attributes": {"": 1}}, "attributes."),
        ({"attributes": {"JobUniverse": "1" * 5000}}, "attributes.JobUniverse"),
        ({"attributes": {"jobuniverse": "1" * 5000 + "$(Process)"}}, "attributes.jobuniverse"),
        ({"attributes": {"Universe": "1000"}}, "attributes.Universe"),
        ({"attributes": {"a\nb": 1}}, "attributes.a\nb"),
        ({"sites": ("CERN", " ")}, "sites[1]"),
        ({"sites": ("CERN",), "banned_sites": ("cern",)}, "sites"),
    ],
)
def test_fault_names_its_field(fields: dict[str, Any], where: str) -> None:
    assert faults(**fields) == [where]


@pytest.mark.parametrize(
    "fields",
    [
        {"executable": "run.sh"},
        {"executable": "bin/run.sh"},
        {"arguments": "'a b' c"},
        {"stdout": "a/" * 99 + "x"},
        {"stdin": "in/data.txt", "stdout": "/dev/null", "stderr": "err"},
        {"output_files": ("*.root", "results/", "a..b")},
        {"request_cpus": 1, "request_gpus": 0, "request_memory_mib": 0, "request_disk_mib": 0},
        {"count": 1_000_000},
        {"cpu_time": timedelta(0), "wall_time": timedelta(seconds=1)},
        {"sites": ("CERN", "RAL"), "banned_sites": ("CERN",)},
        {"sites": ("ANY",), "banned_sites": ("any",)},
        {"rank": "x" * 4096},
        {"retries": 0, "max_starts": 1},
        {"retries": 5, "max_starts": 3, "retry_until": "3", "retry_exit_codes": (1, 2), "success_exit_code": 4},
        {"retry_delay": timedelta(seconds=5), "policy": JobPolicy(on_exit_remove="ExitCode == 0")},
        {"retry_memory": 1.5, "request_memory_mib": 100},
    ],
)
def test_valid_fields_have_no_fault(fields: dict[str, Any]) -> None:
    assert faults(**fields) == []


def test_finds_all_faults() -> None:
    assert faults(executable="", count=0, stdout="/x") == ["executable", "stdout", "count"]


@pytest.mark.parametrize(
    ("file", "where"),
    [
        (InputFile("a", checksum=None), "input_files[0].checksum"),
        (InputFile("a", checksum="XY"), "input_files[0].checksum"),
        (InputFile("a", checksum="cd" * 32), "input_files[0].checksum"),
        (InputFile("/a", checksum=CHECKSUM), "input_files[0].name"),
        (InputFile("", checksum=CHECKSUM), "input_files[0].name"),
        (InputFile("x" * 256, checksum=CHECKSUM), "input_files[0].name"),
        (InputFile("a/" * 100 + "x", checksum=CHECKSUM), "input_files[0].name"),
    ],
)
def test_input_file_needs_relative_name_and_uploaded_content(file: InputFile, where: str) -> None:
    assert faults({CHECKSUM: 5}, input_files=(file,)) == [where]


def test_repeated_input_name_is_a_fault_of_both_files() -> None:
    assert faults({CHECKSUM: 5}, input_files=inputs("a", "a")) == ["input_files[0].name", "input_files[1].name"]


def inputs(*names: str) -> tuple[InputFile, ...]:
    return tuple(InputFile(name, checksum=CHECKSUM) for name in names)


def test_input_names_equal_in_one_array_job_are_a_fault() -> None:
    files = inputs("data$(Process)", "data7")
    assert faults({CHECKSUM: 5}, input_files=files, count=7) == []
    assert faults({CHECKSUM: 5}, input_files=files, count=8) == ["input_files[1].name"]
    (fault,) = description_faults(a_description(input_files=files, count=1_000_000), JobLimits(), {CHECKSUM: 5})
    assert fault.why == "data7 and data$(Process) are one name in the job of $(Process) 7"


@pytest.mark.parametrize(
    ("names", "where"),
    [
        (("a$(process)", "a0"), ["input_files[1].name"]),  # a single job is job 0 of its array
        (("a$(process)", "a1"), []),
        (("a$(Process)", "b", "a$(ProcId)", "a0"), ["input_files[2].name", "input_files[3].name"]),
        (("a$(Cluster)", "a$(clusterid)"), ["input_files[1].name"]),
        (("a$(Cluster)", "a$(Process)", "a1"), []),
    ],
)
def test_input_names_are_compared_after_macro_expansion(names: tuple[str, ...], where: list[str]) -> None:
    assert faults({CHECKSUM: 5}, input_files=inputs(*names)) == where
