"""The optimizer chain: checks, warnings and changes of each step; the first rejection ends the chain."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import InputFile, JobDescription, JobPolicy
from pilotage_server.core.jobs.attributes import description_attributes
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.optimizers import (
    OptimizerContext,
    Rejection,
    SubmitCandidate,
    check_chain,
    run_chain,
)
from support.jobs import a_description

CHAIN = JobLimits().optimizers


def accepted(description: JobDescription, context: OptimizerContext | None = None) -> SubmitCandidate:
    outcome = run_chain(CHAIN, SubmitCandidate("lhcb", description), context or OptimizerContext())
    assert isinstance(outcome, SubmitCandidate), outcome
    return outcome


def rejected(description: JobDescription) -> Rejection:
    outcome = run_chain(CHAIN, SubmitCandidate("lhcb", description), OptimizerContext())
    assert isinstance(outcome, Rejection)
    return outcome


def test_valid_job_is_accepted_without_hold() -> None:
    candidate = accepted(a_description(requirements={"Memory": "4 GB"}, request_cpus=2))
    assert candidate.hold_reason == ""
    assert candidate.warnings == ()
    assert candidate.requirements is not None
    assert candidate.needs is not None
    assert candidate.needs.cpus == 2


def test_faults_of_requirements_name_parameter() -> None:
    rejection = rejected(a_description(requirements={"Memory": -5, "Tags": ()}))
    assert rejection.optimizer == "requirements"
    assert {fault.where for fault in rejection.violations} == {"requirements.Memory", "requirements.Tags"}


def test_warns_about_urgent_job_that_may_not_be_repeated() -> None:
    (warning,) = accepted(a_description(attributes={"Urgent": True})).warnings
    assert warning == "Urgent asks for copies, but a job gets none without MayBeRepeated = true"
    assert accepted(a_description(attributes={"Urgent": True, "MayBeRepeated": True})).warnings == ()


@pytest.mark.parametrize(
    ("image", "own", "required"),
    [
        ("my.sif", None, "TARGET.HasSIF"),
        ("/cvmfs/x.sif", "Cpus > 1 || x", "TARGET.HasSIF && (Cpus > 1 || x)"),
        ("my.sif", "TARGET.hassif && Cpus > 1", "TARGET.hassif && Cpus > 1"),
        ("alpine:3.19", None, None),
    ],
)
def test_sif_image_requires_a_runtime_that_runs_it(image: str, own: str | None, required: str | None) -> None:
    candidate = accepted(a_description(image=image, requirements_expression=own))
    assert candidate.description.requirements_expression == required
    assert accepted(candidate.description).description == candidate.description


def test_first_rejection_ends_the_chain() -> None:
    assert rejected(a_description("", requirements={"Memory": -5})).optimizer == "sanity"


@pytest.mark.parametrize("field", ["requirements_expression", "rank"])
def test_accepts_expressions(field: str) -> None:
    candidate = accepted(a_description(**{field: "TARGET.Memory > 4000"}))
    assert (candidate.hold_reason, candidate.warnings) == ("", ())


@pytest.mark.parametrize("field", ["requirements_expression", "rank"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("TARGET.Memory >", "not a ClassAd expression"),
        ("random(10) > 5", "random"),
        ("(" * 51 + "true" + ")" * 51, "51 deep"),
        ("A" * 5000, "5000 bytes"),
    ],
)
def test_rejects_invalid_expression_with_reason(field: str, text: str, why: str) -> None:
    (fault,) = rejected(a_description(**{field: text})).violations
    assert fault.where == field
    assert why in fault.why


def test_warns_about_attribute_that_no_slot_publishes() -> None:
    text = 'TARGET.Memory > 1 && other.GlueCEPolicyMaxCPUTime > 60 && Cpus > 1 && slot9_State =?= "Owner"'
    (warning,) = accepted(a_description(requirements_expression=text)).warnings
    assert warning == "requirements_expression refers to GlueCEPolicyMaxCPUTime, which no slot publishes at present"


def test_published_and_own_attributes_get_no_warning() -> None:
    text = "BolognaBatchServer == True && MyOwn > 3 && MY.Absent =?= undefined && RequestCpus < Cpus && NumHolds < 3"
    description = a_description(requirements_expression=text, rank="bolognabatchserver", attributes={"myown": 4})
    published = frozenset({"bolognabatchserver"})
    assert accepted(description, OptimizerContext(published=published)).warnings == ()
    assert len(accepted(description).warnings) == 2


def test_warns_about_policy_attribute_that_no_job_has() -> None:
    policy = JobPolicy(
        periodic_hold="ImageSize > RequestMemory && TARGET.Cpus > 1", periodic_hold_reason='strcat("a", Ladder)'
    )
    description = a_description(policy=policy)
    of_hold = "policy.periodic_hold refers to Cpus, ImageSize, which no job's ad has"
    of_reason = "policy.periodic_hold_reason refers to Ladder, which no job's ad has"
    assert accepted(description).warnings == (of_hold, of_reason)
    assert accepted(description, OptimizerContext(owned=frozenset({"ladder"}))).warnings == (of_hold,)


def test_warns_that_site_without_scope_is_the_jobs_own() -> None:
    text = 'Site == "CERN"'
    (warning,) = accepted(a_description(requirements_expression=text, sites=("CERN",))).warnings
    assert warning.startswith("requirements_expression refers to Site, which is the job's own list of sites")
    assert accepted(a_description(requirements_expression=text)).warnings == ()
    assert accepted(a_description(rank=f"TARGET.{text}", sites=("CERN",))).warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "SubmitPool is undefined && CPUTime > 5 && JobRequirements.Memory > 5",
        "NumJobStarts > 3 && NumShadowStarts > JobRunCount + NumJobMatches || RemoteWallClockTime >= 3600",
        "JobStatus == 5 && (time() - EnteredCurrentStatus) > 60 || CurrentTime > QDate + 60",
        "HoldReasonCode =?= 3 && HoldReasonSubCode == 1 && NumHoldsByReason.JobPolicy < 3 && myOWN",
        'regexp("^a", Owner) && MY.RequestCpus > 1 && ExitCode =!= undefined && RemoteHost =!= LastRemoteHost',
    ],
)
def test_policy_on_attributes_of_job_ad_gets_no_warning(text: str) -> None:
    description = a_description(
        policy=JobPolicy(periodic_remove=text),
        attributes={"MyOwn": True},
        cpu_time=timedelta(seconds=9),
        requirements={"Memory": 5},
    )
    assert accepted(description).warnings == ()


def test_job_submitted_on_hold_is_held() -> None:
    assert accepted(a_description(hold=True)).hold_reason != ""


@pytest.mark.parametrize(
    "name",
    [
        *("OWNER", "submit_Site_Domain", "RemoteWallClockTime", "NumJobStarts", "SubmittorPrio", "SubmitterUserPrio"),
        *("RemoteUserPrio", "x509UserProxyVOName", "AccountingGroup", "HoldReason", "HoldReasonCode", "NumHolds"),
        *("JobStatus", "CurrentHosts", "MyType", "ClusterId", "QDate", "LastRemoteHost"),
    ],
)
def test_drops_server_attributes_with_warning_ignoring_case(name: str) -> None:
    candidate = accepted(a_description(attributes={name: 1, "Project": "p"}))
    assert candidate.description.attributes == {"Project": "p"}
    (warning,) = candidate.warnings
    assert warning == f"attribute {name} is set by the server; the value given is not used"


@pytest.mark.parametrize(
    "name", ["Requirements", "Rank", "RequestCpus", "requestmemory", "JobPrio", "Cmd", "SITE", "JobRequirements"]
)
def test_attribute_cannot_replace_field(name: str) -> None:
    assert description_attributes(a_description(attributes={name: "1"})) == description_attributes(a_description())


def test_drops_attribute_that_duplicates_field_with_warning() -> None:
    candidate = accepted(a_description(attributes={"RequestCpus": 8}))
    assert candidate.description.attributes == {}
    assert candidate.warnings == ("attribute RequestCpus is what request_cpus says; the value given is not used",)


def test_attribute_kept_by_reader_gets_no_warning() -> None:
    attributes = {"rank": "KFlops", "Requirements": True}
    candidate = accepted(a_description(rank="KFlops", attributes=attributes))
    assert candidate.warnings == ()
    assert description_attributes(candidate.description).keys() == description_attributes(a_description()).keys()


def test_owner_cannot_set_attributes_of_submit_policy() -> None:
    candidate = accepted(a_description(attributes={"Ladder": "gold"}), OptimizerContext(owned=frozenset({"ladder"})))
    assert candidate.description.attributes == {}
    assert "Ladder" in candidate.warnings[0]


def test_input_file_gets_uploaded_size() -> None:
    checksum = "ab" * 32
    description = a_description(input_files=(InputFile("a", source="/home/a", checksum=checksum, size=1),))
    candidate = accepted(description, OptimizerContext(stored={checksum: 77}))
    assert candidate.description.input_files[0].size == 77


def test_shorter_chain_skips_steps() -> None:
    outcome = run_chain(
        ("sanity",), SubmitCandidate("lhcb", a_description(requirements={"Memory": -5})), OptimizerContext()
    )
    assert isinstance(outcome, SubmitCandidate)


def test_error_for_unknown_step_lists_known_steps() -> None:
    check_chain(CHAIN)
    with pytest.raises(InvalidInputError, match=r"'sanety' is none of: sanity,"):
        check_chain(("sanety",))
