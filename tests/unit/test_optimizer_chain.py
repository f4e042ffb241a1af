"""The optimizer chain: what each step makes of a job, and that the first rejection ends it."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import InputFile, JobDescription
from pilotage_server.core.job_limits import JobLimits
from pilotage_server.core.optimizers import Candidate, Rejection, Surroundings, check_chain, run_chain
from support.submissions import a_description

CHAIN = JobLimits().optimizers


def accepted(description: JobDescription, surroundings: Surroundings | None = None) -> Candidate:
    outcome = run_chain(CHAIN, Candidate("lhcb", description), surroundings or Surroundings())
    assert isinstance(outcome, Candidate), outcome
    return outcome


def rejected(description: JobDescription) -> Rejection:
    outcome = run_chain(CHAIN, Candidate("lhcb", description), Surroundings())
    assert isinstance(outcome, Rejection)
    return outcome


def test_a_plain_job_goes_through_and_waits() -> None:
    candidate = accepted(a_description(requirements={"Memory": "4 GB"}, request_cpus=2))
    assert candidate.hold_reason == ""
    assert candidate.warnings == ()
    assert candidate.requirements is not None
    assert candidate.needs is not None
    assert candidate.needs.cpus == 2


def test_faults_of_requirements_are_named_by_their_parameter() -> None:
    rejection = rejected(a_description(requirements={"Memory": -5, "Tags": ()}))
    assert rejection.optimizer == "requirements"
    assert {fault.where for fault in rejection.violations} == {"requirements.Memory", "requirements.Tags"}


def test_the_first_rejection_ends_the_chain() -> None:
    assert rejected(a_description("", requirements={"Memory": -5})).optimizer == "sanity"


@pytest.mark.parametrize("field", ["requirements_expression", "rank"])
def test_a_job_with_an_expression_is_held_with_the_field_named(field: str) -> None:
    reason = accepted(a_description(**{field: "TARGET.Memory > 4000"})).hold_reason
    assert field in reason
    assert "ClassAd" in reason


def test_an_empty_expression_holds_nothing() -> None:
    assert accepted(a_description(requirements_expression="  ")).hold_reason == ""


def test_a_job_that_its_owner_wants_held_is_held() -> None:
    assert accepted(a_description(hold=True)).hold_reason != ""


def test_attributes_of_the_server_are_taken_away_with_a_warning_whatever_their_letter_case() -> None:
    candidate = accepted(a_description(attributes={"OWNER": "root", "submit_Site_Domain": "x", "Project": "p"}))
    assert candidate.description.attributes == {"Project": "p"}
    assert len(candidate.warnings) == 2
    assert "OWNER" in candidate.warnings[0]


def test_the_size_of_an_input_file_is_the_one_that_was_uploaded() -> None:
    checksum = "ab" * 32
    description = a_description(input_files=(InputFile("a", source="/home/a", checksum=checksum, size=1),))
    candidate = accepted(description, Surroundings(stored={checksum: 77}))
    assert candidate.description.input_files[0].size == 77


def test_a_shorter_chain_leaves_steps_out() -> None:
    outcome = run_chain(("sanity",), Candidate("lhcb", a_description(requirements={"Memory": -5})), Surroundings())
    assert isinstance(outcome, Candidate)


def test_a_chain_with_an_unknown_step_is_refused_with_the_known_ones_named() -> None:
    check_chain(CHAIN)
    with pytest.raises(InvalidInputError, match=r"'sanety' is none of: sanity,"):
        check_chain(("sanety",))
