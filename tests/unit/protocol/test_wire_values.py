"""Conversion of values, queues, times and job descriptions to the wire and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pilotage.errors import InvalidInputError, InvalidJobError
from pilotage.job_description import InputFile, JobDescription, JobPolicy
from pilotage.jobs.wire import description_from_wire, description_to_wire
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import (
    enum_from_wire,
    enum_to_wire,
    length_from_wire,
    queue_from_wire,
    queue_to_wire,
    section_from_wire,
    section_to_wire,
    time_from_wire,
    time_to_wire,
    value_from_wire,
    value_to_wire,
)
from pilotage.v1 import jobs_pb2, values_pb2
from pilotage_server.rpc.jobs.wire import MAX_DESCRIPTION_BYTES, submission_from_wire, submitted_from_wire

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
names = texts.filter(lambda text: bool(text.strip()))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = scalars | st.lists(scalars, max_size=5).map(tuple)
sections = st.dictionaries(names, values, max_size=5)
lengths = st.none() | st.integers(0, 10**15).map(lambda micros: timedelta(microseconds=micros))
sizes = st.none() | st.integers(0, 2**31 - 1)
counts = st.none() | st.integers(1, 2**31 - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
times = st.integers(0, 2 * 10**17).map(lambda micros: EPOCH + timedelta(microseconds=micros))
variables = st.dictionaries(names.filter(lambda name: "=" not in name), texts, max_size=4)
files = st.lists(
    st.builds(
        InputFile,
        name=st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True),
        checksum=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        size=st.integers(0, 2**40),
        executable=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda file: file.name,
).map(tuple)
descriptions = st.builds(
    JobDescription,
    executable=names,
    arguments=texts,
    name=texts,
    environment=variables,
    stdin=st.none() | texts,
    stdout=st.none() | texts,
    stderr=st.none() | texts,
    input_files=files,
    output_files=st.lists(texts, max_size=3).map(tuple),
    requirements=st.none() | sections,
    requirements_expression=st.none() | texts,
    rank=st.none() | texts,
    sites=st.lists(texts, max_size=3).map(tuple),
    banned_sites=st.lists(texts, max_size=3).map(tuple),
    platforms=st.lists(texts, max_size=3).map(tuple),
    cpu_time=lengths,
    wall_time=lengths,
    lease=lengths,
    request_cpus=counts,
    request_memory_mib=sizes,
    request_disk_mib=sizes,
    request_gpus=sizes,
    priority=st.integers(-(2**31), 2**31 - 1),
    new_files_come_back=st.booleans(),
    hold=st.booleans(),
    attributes=sections,
    count=counts,
    policy=st.builds(JobPolicy, *[st.none() | texts] * 5),
    warnings=st.lists(texts, max_size=3).map(tuple),
)


@given(descriptions)
def test_description_survives_round_trip(description: JobDescription) -> None:
    sent = description_to_wire(description).SerializeToString()

    assert description_from_wire(jobs_pb2.JobDescription.FromString(sent)) == description


@given(sections)
def test_section_keeps_type_of_every_value(section: dict[str, object]) -> None:
    message = jobs_pb2.JobDescription()
    section_to_wire(section, message.attributes)

    received = section_from_wire(message.attributes)

    assert {name: (type(value), value) for name, value in received.items()} == {
        name: (type(value), value) for name, value in section.items()
    }


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_all_kinds_of_lists_are_one_list_on_the_wire(kind: Any) -> None:
    given = {"Tags": kind(["a", "b"]), "Sizes": kind([1, 2])}
    description = JobDescription("a", requirements=given, attributes=given, sites=kind(["A", "B"]))

    received = description_from_wire(description_to_wire(description))

    assert received.requirements == received.attributes == {"Tags": ("a", "b"), "Sizes": (1, 2)}
    assert received.sites == ("A", "B")


def test_set_is_sorted() -> None:
    names = {f"tag{number:02}" for number in range(30)}
    description = JobDescription("a", requirements={"Tags": names | {7, 2.5}}, platforms=names)  # type: ignore[arg-type, dict-item]

    received = description_from_wire(description_to_wire(description))

    assert received.requirements == {"Tags": (2.5, 7, *sorted(names))}
    assert received.platforms == tuple(sorted(names))


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("requirements", {"Memory": None}, "requirements.Memory: None is neither a number"),
        ("requirements", {"Tags": ["a", {"b"}]}, "requirements.Tags: .* nor a list of these"),
        ("requirements", ["Memory"], "requirements: is of type list"),
        ("attributes", {"When": EPOCH}, "attributes.When: .* is neither a number"),
        ("sites", "CERN", "sites: 'CERN' is not a list of texts"),
        ("banned_sites", {1, 2}, "banned_sites: .* is not a list of texts"),
        ("request_cpus", "4", "request_cpus: '4' is not a whole number"),
        ("cpu_time", 60, "cpu_time: 60 is not a timedelta"),
        ("policy", JobPolicy(periodic_hold_subcode=3), r"policy\.periodic_hold_subcode: 3 is not a text"),  # type: ignore[arg-type]
        ("policy", None, "policy: None is not a JobPolicy"),
        ("input_files", ["data.txt"], r"input_files\[0\]: 'data.txt' is not an InputFile"),
        ("environment", {"A": 1}, "environment: .* is not a mapping of names to texts"),
        ("name", "\ud800", "name: .* is not a text"),
    ],
)
def test_wrong_type_names_its_field(field: str, value: object, fault: str) -> None:
    wrong: dict[str, Any] = {field: value}

    with pytest.raises(InvalidJobError, match=fault):
        description_to_wire(JobDescription("a", **wrong))


def test_empty_requirements_differ_from_none() -> None:
    without = description_from_wire(description_to_wire(JobDescription("a")))
    empty = description_from_wire(description_to_wire(JobDescription("a", requirements={})))

    assert without.requirements is None
    assert empty.requirements == {}


def test_reports_every_fault_of_description_with_its_path() -> None:
    message = jobs_pb2.JobDescription(
        request_cpus=0, cpu_time_s=-1, sites=["CERN", "x\0y"], wall_time_s=float("nan"), count=-5
    )
    message.requirements["Memory"].CopyFrom(values_pb2.Value())
    message.environment["A=B"] = "1"
    message.input_files.add(name="../secret", checksum="abc", size=-1)

    with pytest.raises(InvalidJobError) as error:
        description_from_wire(message)

    assert {violation.where for violation in error.value.violations} == {
        "executable",
        "request_cpus",
        "cpu_time_s",
        "wall_time_s",
        "sites[1]",
        "count",
        "requirements.Memory",
        "environment.A=B",
        "input_files[0].name",
        "input_files[0].checksum",
        "input_files[0].size",
    }


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../../b", "a\0b"])
def test_input_file_outside_job_folder_is_rejected(name: str) -> None:
    message = jobs_pb2.JobDescription(executable="a")
    message.input_files.add(name=name, checksum="0" * 64)

    with pytest.raises(InvalidJobError, match="folder"):
        description_from_wire(message)


def test_duplicate_input_file_is_rejected() -> None:
    message = jobs_pb2.JobDescription(executable="a")
    for _ in range(2):
        message.input_files.add(name="data", checksum="0" * 64)

    with pytest.raises(InvalidJobError, match="two files data"):
        description_from_wire(message)


def test_input_file_that_is_not_stored_is_rejected() -> None:
    with pytest.raises(InvalidJobError, match=r"input_files\[0\]: data has not been stored yet"):
        description_to_wire(JobDescription("a", input_files=(InputFile("data", source="/here/data"),)))


def test_nested_list_is_rejected() -> None:
    inner = values_pb2.Value(list=values_pb2.ValueList(values=[values_pb2.Value(integer=1)]))
    with pytest.raises(InvalidInputError, match=r"\[1\]: lists do not nest"):
        value_from_wire(values_pb2.Value(list=values_pb2.ValueList(values=[values_pb2.Value(flag=True), inner])))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_number_must_be_finite(number: float) -> None:
    with pytest.raises(InvalidInputError, match="finite"):
        value_from_wire(values_pb2.Value(number=number))


def test_integer_beyond_64_bits_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="64 bits"):
        value_to_wire(2**63)


def test_boolean_stays_boolean() -> None:
    assert value_from_wire(value_to_wire(True)) is True


@given(names, names, names)
def test_queue_survives_round_trip(site: str, ce: str, queue: str) -> None:
    queue_id = QueueId(site.replace("/", ""), ce.replace("/", ""), queue)
    assume(queue_id.site and queue_id.ce)
    assert queue_from_wire(queue_to_wire(queue_id)) == queue_id


def test_incomplete_queue_is_rejected_with_all_faults() -> None:
    with pytest.raises(InvalidInputError) as error:
        queue_from_wire(values_pb2.QueueId(site="a/b"))
    assert {violation.where for violation in error.value.violations} == {"site", "ce", "queue"}


@given(times)
def test_time_survives_round_trip_with_utc(time: datetime) -> None:
    message = time_to_wire(time)
    assert message is not None
    assert time_from_wire(message) == time


def test_unknown_time_is_unset() -> None:
    assert not jobs_pb2.Job(ended=time_to_wire(None)).HasField("ended")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e12])
def test_invalid_duration_is_rejected(seconds: float) -> None:
    with pytest.raises(InvalidInputError):
        length_from_wire(seconds)


@pytest.mark.parametrize("name", ["WAITING", "RUNNING", "REMOVED", ""])
def test_state_survives_round_trip_as_short_name(name: str) -> None:
    assert enum_from_wire(jobs_pb2.JobState, enum_to_wire(jobs_pb2.JobState, name)) == name


def test_unknown_state_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="4711"):
        enum_from_wire(jobs_pb2.JobState, 4711)


def test_reports_all_faults_of_description_group_by_field() -> None:
    valid = jobs_pb2.JobDescription(executable="x")
    faulty = jobs_pb2.JobDescription(executable="x", arguments="\0", name="\0")
    negative = jobs_pb2.JobDescription(executable="x", arguments="\0", cpu_time_s=-1.0)

    with pytest.raises(InvalidJobError) as error:
        submission_from_wire([valid, faulty, negative])

    assert {violation.where for violation in error.value.violations} == {
        "descriptions[1].arguments",
        "descriptions[1].name",
        "descriptions[2].arguments",
        "descriptions[2].cpu_time_s",
    }


def a_large_job(size: int) -> jobs_pb2.JobDescription:
    message = jobs_pb2.JobDescription(executable="x", environment=dict.fromkeys("ABC", "v" * (size // 4)))
    message.arguments = "a" * (size - message.ByteSize() - 5)
    message.arguments += "a" * (size - message.ByteSize())
    return message


def test_oversized_description_is_rejected() -> None:
    largest = a_large_job(MAX_DESCRIPTION_BYTES)
    too_large = jobs_pb2.JobDescription.FromString(largest.SerializeToString())
    too_large.arguments += "a"

    with pytest.raises(InvalidJobError) as error:
        submission_from_wire([largest, too_large])

    why = "takes 2097153 bytes, and at most 2097152 are allowed: put large texts into input files"
    assert [(violation.where, violation.why) for violation in error.value.violations] == [("descriptions[1]", why)]
    assert submission_from_wire([largest])[0].model == submitted_from_wire(largest)


def test_edited_job_has_same_size_limit() -> None:
    with pytest.raises(InvalidJobError, match="at most 2097152"):
        submitted_from_wire(a_large_job(MAX_DESCRIPTION_BYTES + 1))


def test_description_with_10000_input_files_is_accepted() -> None:
    files = [jobs_pb2.InputFile(name=f"{number:0100}", checksum="0" * 64, size=2**40) for number in range(10_000)]
    assert submitted_from_wire(jobs_pb2.JobDescription(executable="x", input_files=files)).input_files
