"""The quick checks of arguments agree with splitting and full validation."""

from __future__ import annotations

from dataclasses import replace

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
def test_fault_is_found_exactly_when_splitting_fails(text: str) -> None:
    fault = quoting_fault(text)
    if fault:
        with pytest.raises(ValueError, match=fault):
            split_arguments(text)
    else:
        split_arguments(text)


@given(st.lists(arguments.filter(lambda text: "\0" not in text)))
def test_joined_arguments_have_no_fault(raw: list[str]) -> None:
    assert quoting_fault(join_arguments(raw)) == ""


@given(
    arguments,
    st.sampled_from(("", "sim", "\0", "n" * 1000, "n" * 1001)),
    st.sampled_from((None, "out", "/dev/null", "../out", "a/b", "")),
)
def test_quick_check_of_overrides_agrees_with_full_validation(text: str, name: str, stream: str | None) -> None:
    model = JobDescription("run", arguments=text, name=name)
    for each in (replace(model, stdout=stream), replace(model, stderr=stream)):
        faults = description_faults(each, FEW_CHARACTERS, {})
        assert are_valid_overrides([Overrides.of(0, each)], FEW_CHARACTERS) == (not faults)
