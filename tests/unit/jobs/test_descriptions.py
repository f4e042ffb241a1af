"""Stored job descriptions: the canonical JSON text, and the macros of array jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import InputFile, JobDescription, JobPolicy, render_text
from pilotage_server.core.jobs.descriptions import (
    DescriptionGroup,
    Overrides,
    canonical_texts,
    description_from_json,
    description_to_json,
    render,
)
from support.jobs import a_description, a_job

texts = st.text(st.characters(exclude_characters="\0"), max_size=12)  # NUL is refused in all input
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = scalars | st.lists(scalars, max_size=3).map(tuple)
sections = st.dictionaries(texts, values, max_size=4)
times = st.timedeltas(timedelta(0), timedelta(days=36_500))
lists = st.lists(texts, max_size=3).map(tuple)
files = st.builds(
    InputFile,
    name=texts,
    source=st.none() | texts,
    checksum=st.none() | texts,
    size=st.integers(0, 2**60),
    executable=st.booleans(),
)
descriptions = st.builds(
    JobDescription,
    executable=texts,
    arguments=texts,
    name=texts,
    environment=st.dictionaries(texts, texts, max_size=3),
    stdin=st.none() | texts,
    stdout=st.none() | texts,
    stderr=st.none() | texts,
    input_files=st.lists(files, max_size=2).map(tuple),
    output_files=lists,
    new_files_come_back=st.booleans(),
    requirements=st.none() | sections,
    requirements_expression=st.none() | texts,
    rank=st.none() | texts,
    sites=lists,
    banned_sites=lists,
    platforms=lists,
    cpu_time=st.none() | times,
    wall_time=st.none() | times,
    lease=st.none() | times,
    retries=st.none() | st.integers(0, 100),
    success_exit_code=st.none() | st.integers(-9, 300),
    retry_until=st.none() | texts,
    retry_exit_codes=st.lists(st.integers(-9, 300), max_size=3).map(tuple),
    retry_delay=st.none() | times,
    retry_memory=st.none() | st.floats(1, 100),
    request_cpus=st.none() | st.integers(0, 100),
    request_memory_mib=st.none() | st.integers(0, 2**53),
    request_disk_mib=st.none() | st.integers(0, 2**53),
    request_gpus=st.none() | st.integers(0, 8),
    priority=st.integers(-5, 5),
    hold=st.booleans(),
    attributes=sections,
    count=st.none() | st.integers(1, 10**6),
    policy=st.builds(JobPolicy, *[st.none() | texts] * 5),
    warnings=lists,
)


def typed(section: object) -> object:
    """Return a text in which True, 1 and 1.0 differ."""
    return json.dumps(section, sort_keys=True)


@given(descriptions)
def test_description_round_trips_with_types_of_values(description: JobDescription) -> None:
    restored = description_from_json(description_to_json(description))
    assert restored == description
    for name in ("requirements", "attributes"):
        section, section_restored = getattr(description, name), getattr(restored, name)
        if section is not None:
            assert typed(dict(section_restored)) == typed(dict(section))


@given(descriptions)
def test_text_does_not_depend_on_the_order_of_names(description: JobDescription) -> None:
    reversed_order = replace(
        description,
        environment=dict(reversed(list(description.environment.items()))),
        attributes=dict(reversed(list(description.attributes.items()))),
    )
    assert description_to_json(reversed_order) == description_to_json(description)


def test_empty_requirements_section_differs_from_none() -> None:
    empty = JobDescription("/bin/true", requirements={})
    assert description_from_json(description_to_json(empty)).requirements == {}
    assert description_to_json(empty) != description_to_json(JobDescription("/bin/true"))


def test_default_values_are_omitted() -> None:
    assert description_to_json(JobDescription("/bin/true")) == '{"executable":"/bin/true"}'


streams = st.none() | texts


@given(
    descriptions,
    st.lists(st.builds(Overrides, st.just(0), arguments=texts, name=texts, stdout=streams, stderr=streams), max_size=5),
)
def test_texts_of_a_group_equal_the_texts_of_its_descriptions(model: JobDescription, others: list[Overrides]) -> None:
    group = DescriptionGroup(model, (Overrides.of(0, model), *others))
    assert list(canonical_texts(group)) == [description_to_json(single.model) for single in group.split()]


def test_job_macros_ignore_letter_case() -> None:
    assert render_text("$(Cluster).$(PROCESS).$(clusterid).$(procId)", 7, 3) == "7.3.7.3"


def test_other_macros_and_dollars_are_unchanged() -> None:
    assert render_text("$(Step) $Process $1 $$(Cluster) $(Process", 7, 3) == "$(Step) $Process $1 $7 $(Process"


def test_macros_are_expanded_in_all_texts_of_the_job() -> None:
    description = a_description(
        "run_$(Process).sh",
        arguments="--seed $(Process)",
        name="sim-$(Cluster)",
        environment={"SEED": "$(Process)"},
        stdin="in.$(Process)",
        stdout="out.$(Process)",
        stderr="err.$(Process)",
        input_files=(InputFile("data.$(Process)"),),
        output_files=("result.$(Process)",),
        attributes={"Part": "$(Process)", "Weight": 3},
        count=10,
    )
    rendered = render(description, a_job(id=14, cluster=10, process=4))
    assert rendered.executable == "run_4.sh"
    assert rendered.arguments == "--seed 4"
    assert rendered.name == "sim-10"
    assert rendered.environment["SEED"] == "4"
    assert (rendered.stdin, rendered.stdout, rendered.stderr) == ("in.4", "out.4", "err.4")
    assert rendered.input_files[0].name == "data.4"
    assert rendered.output_files == ("result.4",)
    assert rendered.attributes == {"Part": "4", "Weight": 3}
    assert rendered.count is None


def test_environment_has_the_numbers_of_the_job() -> None:
    description = a_description(environment={"PILOTAGE_JOB_ID": "1", "HOME": "/h"})
    environment = render(description, a_job(id=14, cluster=10, process=4, attempt=2)).environment
    assert environment["PILOTAGE_JOB_ID"] == "14"
    assert environment["PILOTAGE_CLUSTER_ID"] == "10"
    assert environment["PILOTAGE_ARRAY_INDEX"] == "4"
    assert environment["PILOTAGE_ATTEMPT"] == "2"
    assert environment["HOME"] == "/h"
