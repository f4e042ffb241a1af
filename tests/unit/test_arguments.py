"""What can be wrong with arguments is told at a glance just as by taking them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.arguments import join_arguments, quoting_fault, split_arguments
from pilotage.job_description import JobDescription
from pilotage_server.core.alike import Own
from pilotage_server.core.job_limits import JobLimits
from pilotage_server.core.sanity import faults_of, is_fine

arguments = st.text(st.sampled_from(" ab'\"\\\n$\0"), max_size=12)
FEW_CHARACTERS = JobLimits(max_text=8)


@given(arguments)
def test_a_fault_is_told_just_where_arguments_cannot_be_split(text: str) -> None:
    fault = quoting_fault(text)
    if fault:
        with pytest.raises(ValueError, match=fault):
            split_arguments(text)
    else:
        split_arguments(text)


@given(st.lists(arguments.filter(lambda text: "\0" not in text)))
def test_arguments_that_were_joined_have_no_fault(given: list[str]) -> None:
    assert quoting_fault(join_arguments(given)) == ""


@given(arguments, st.sampled_from(("", "sim", "\0", "n" * 1000, "n" * 1001)))
def test_what_is_fine_has_no_faults_and_the_other_way_round(text: str, name: str) -> None:
    faults = faults_of(JobDescription("run", arguments=text, name=name), FEW_CHARACTERS, {})
    assert is_fine(Own(0, text, name), FEW_CHARACTERS) == (not faults)
