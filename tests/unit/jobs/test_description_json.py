"""Stored descriptions: the canonical text is total, and nothing is lost in it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import InputFile, JobDescription, JobPolicy
from pilotage_server.core.jobs.descriptions import (
    DescriptionGroup,
    Overrides,
    canonical_texts,
    description_from_json,
    description_to_json,
)

texts = st.text(st.characters(exclude_characters="\0"), max_size=12)  # NUL is refused wherever texts come from
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
    """Tell True from 1 and 1 from 1.0, which Python holds to be equal."""
    return json.dumps(section, sort_keys=True)


@given(descriptions)
def test_every_description_comes_back_as_it_was_types_of_values_included(description: JobDescription) -> None:
    back = description_from_json(description_to_json(description))
    assert back == description
    for name in ("requirements", "attributes"):
        section, section_back = getattr(description, name), getattr(back, name)
        if section is not None:
            assert typed(dict(section_back)) == typed(dict(section))


@given(descriptions)
def test_equal_descriptions_have_equal_texts_whatever_the_order_of_their_names(description: JobDescription) -> None:
    turned = replace(
        description,
        environment=dict(reversed(list(description.environment.items()))),
        attributes=dict(reversed(list(description.attributes.items()))),
    )
    assert description_to_json(turned) == description_to_json(description)


def test_an_empty_requirements_section_is_not_the_same_as_none() -> None:
    empty = JobDescription("/bin/true", requirements={})
    assert description_from_json(description_to_json(empty)).requirements == {}
    assert description_to_json(empty) != description_to_json(JobDescription("/bin/true"))


def test_what_stands_at_its_default_takes_no_room() -> None:
    assert description_to_json(JobDescription("/bin/true")) == '{"executable":"/bin/true"}'


@given(descriptions, st.lists(st.builds(Overrides, st.just(0), arguments=texts, name=texts), max_size=5))
def test_alike_descriptions_have_the_texts_that_each_has_alone(model: JobDescription, others: list[Overrides]) -> None:
    alike = DescriptionGroup(model, (Overrides(0, model.arguments, model.name), *others))
    assert list(canonical_texts(alike)) == [description_to_json(each.model) for each in alike.split()]
