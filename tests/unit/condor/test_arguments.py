"""What can be wrong with arguments is told at a glance just as by taking them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.condor.quoting import join_arguments, quoting_fault, split_arguments
from pilotage.job_description import JobDescription
from pilotage_server.core.jobs.descriptions import Overrides
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import are_valid_overrides, description_faults

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
    faults = description_faults(JobDescription("run", arguments=text, name=name), FEW_CHARACTERS, {})
    assert are_valid_overrides(Overrides(0, text, name), FEW_CHARACTERS) == (not faults)
