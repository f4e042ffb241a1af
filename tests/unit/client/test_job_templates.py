"""Job templates: what they put on top of a job, and what they never take away."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pilotage.classads.evaluation import Ad, compile_expression, evaluate
from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription, JobPolicy
from pilotage_client.cli.main import main
from pilotage_client.readers.draft import ReadError
from pilotage_client.templates import JobTemplate, apply_template, find_template, read_template, with_change
from pilotage_server.core.jobs.attributes import description_attributes
from support.job_texts import jdl_job, submit_job, toml_jobs

JOB = JobDescription("/bin/ls")


def is_true(expression: str | None, **slot: bool | str) -> bool:
    assert expression is not None
    return evaluate(compile_expression(expression), Ad({}), Ad(slot)) is True


def test_requirements_are_anded_to_the_jobs_own() -> None:
    template = JobTemplate("t", requirements_expression="TARGET.B")
    own = JobDescription("/bin/ls", requirements_expression="TARGET.A || TARGET.C  // either")
    both = apply_template(template, own).requirements_expression
    assert is_true(both, A=False, B=True, C=True)
    assert not is_true(both, A=True, B=False, C=True)
    assert not is_true(both, A=False, B=True, C=False)
    assert apply_template(template, JOB).requirements_expression == "TARGET.B"
    assert apply_template(JobTemplate("t"), own).requirements_expression == own.requirements_expression


def test_a_requirements_section_stays_beside_the_templates_expression() -> None:
    own = JobDescription("/bin/ls", requirements={"Memory": 4000})
    after = apply_template(JobTemplate("t", requirements_expression="TARGET.B"), own)
    assert (after.requirements, after.requirements_expression) == ({"Memory": 4000}, "TARGET.B")


def test_policies_are_ored_to_the_jobs_own() -> None:
    template = JobTemplate("t", policy=JobPolicy(periodic_remove="A", periodic_hold="B", periodic_hold_reason='"b"'))
    own = JobDescription("/bin/ls", policy=JobPolicy(periodic_remove="C && D", periodic_release="E"))
    assert apply_template(template, own).policy == JobPolicy(
        periodic_hold="B", periodic_hold_reason='"b"', periodic_release="E", periodic_remove="(C && D) || (A)"
    )


def test_an_attribute_kept_as_it_was_written_follows_the_policy() -> None:
    own = submit_job("periodic_remove = A")
    after = apply_template(JobTemplate("t", policy=JobPolicy(periodic_remove="B")), own)
    assert after.attributes["periodic_remove"] == after.policy.periodic_remove == "(A) || (B)"


def test_attributes_are_the_templates_and_the_owner_is_told_where_his_were_others() -> None:
    template = JobTemplate("kind", attributes={"App": "ALICE", "Long": True, "New": 1})
    own = JobDescription("/bin/ls", attributes={"APP": "LHCb", "long": True, "Mine": 7})
    after = apply_template(template, own)
    assert after.attributes == {"Mine": 7, "App": "ALICE", "Long": True, "New": 1}
    assert after.warnings == ("App is set by the job template kind, not by the job",)


@pytest.mark.parametrize(
    "job", [submit_job("queue 1", queue=""), jdl_job('Executable = "a";'), *toml_jobs('executable="a"')]
)
def test_jobs_of_every_language_take_a_template(job: JobDescription) -> None:
    after = apply_template(find_template("bologna-short"), job)
    assert after.attributes["BolognaBatchJob"] is True
    assert after.requirements_expression == "TARGET.BolognaBatchServer == True"


def test_an_edit_changes_a_policy_and_what_was_kept_of_it() -> None:
    own = submit_job("periodic_remove = A\nperiodic_hold = B")
    after = with_change(with_change(own, "periodic_remove=C"), "periodic_hold=")
    assert after.policy == JobPolicy(periodic_remove="C")
    assert {name: value for name, value in after.attributes.items() if name.startswith("periodic")} == {
        "periodic_remove": "C"
    }


# The shipped ones, as DESIGN §13 repairs what the seed's scripts did


def test_a_short_job_is_taken_out_at_exactly_an_hour_even_if_it_says_that_it_is_long() -> None:
    after = apply_template(
        find_template("bologna-short"), JobDescription("/bin/ls", attributes={"LongRunningJob": True})
    )
    assert after.attributes == {"BolognaBatchJob": True, "JobUniverse": 5, "LongRunningJob": False}
    remove = compile_expression(after.policy.periodic_remove or "")

    def is_removed(ran_s: float) -> bool:
        return evaluate(remove, Ad({"RemoteWallClockTime": ran_s, "LongRunningJob": False})) is True

    assert [is_removed(ran_s) for ran_s in (0.0, 3599.9, 3600.0, 4000.0)] == [False, False, True, True]


def test_a_long_job_is_never_taken_out() -> None:
    after = apply_template(find_template("bologna-long"), JOB)
    assert after.policy == JobPolicy()
    assert after.attributes == {"BolognaBatchJob": True, "JobUniverse": 5, "LongRunningJob": True}


def test_a_job_of_alice_goes_to_the_servers_of_alice_alone() -> None:
    after = apply_template(find_template("bologna-alice"), JOB)
    assert after.attributes["App"] == "ALICE"
    assert is_true(after.requirements_expression, BolognaBatchServer=True, BolognaBatchGroup="ALICE")
    assert not is_true(after.requirements_expression, BolognaBatchServer=True)


@pytest.mark.parametrize("name", ["bologna-short", "bologna-long", "bologna-alice"])
def test_each_shipped_template_makes_vanilla_jobs_as_the_scripts_did(name: str) -> None:
    after = apply_template(find_template(name), submit_job("universe = standard"))
    assert description_attributes(after)["JobUniverse"] == 5


@pytest.mark.parametrize("name", ["bologna-short", "bologna-long", "bologna-alice"])
def test_each_shipped_template_says_what_its_jobs_are(name: str) -> None:
    template = find_template(name)
    assert template.name == name
    assert template.about.endswith(".")


# Finding and reading


def test_a_site_has_templates_of_its_own_which_go_before_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "bologna-long.toml").write_text('about = "ours"')
    (tmp_path / "other.toml").write_text('about = "other"')
    assert find_template("bologna-long", [tmp_path]).about == "ours"
    assert find_template("other", [tmp_path]).about == "other"
    assert find_template(str(tmp_path / "other.toml")).about == "other"


def test_an_unknown_template_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text("")
    with pytest.raises(InvalidInputError, match=r"unknown job template shorter; known are: bologna-.*, ours"):
        find_template("shorter", [tmp_path])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('about = "x"\nexecutable = "a"\n', "2: executable is not a key of a job template"),
        ("about = 3\n", "1: about must be a text"),
        ('\nrequirements_expression = "1 +"\n', "2: requirements_expression is not an expression"),
        ("[policy]\nperiodic_remove = 3\n", "1: policy must be a text"),
        ("[attributes]\nA = {x = 1}\n", "1: attributes has neither a plain value"),
        ("about = \n", "is not TOML"),
    ],
)
def test_a_file_that_is_no_template_is_an_error_with_its_place(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ReadError) as refused:
        read_template(path)
    assert error in str(refused.value)


def test_a_template_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no such file"):
        find_template(str(tmp_path / "absent.toml"))


def test_a_submission_under_an_unknown_template_is_a_wrong_request(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('executable = "/bin/true"')
    command = ["submit", str(job), "--template", "nothing", "--server", "127.0.0.1:1", "--token-file"]
    token = tmp_path / "token"
    token.write_text("t")
    result = CliRunner().invoke(main, [*command, str(token)])
    assert result.exit_code == 2
    assert "known are: bologna-alice, bologna-long, bologna-short" in result.stderr
