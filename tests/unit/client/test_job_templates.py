"""Job templates: how they combine with a job, which ones exist, and how they are read."""

from __future__ import annotations

import dataclasses
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


def test_requirements_are_and_combined() -> None:
    template = JobTemplate("t", requirements_expression="TARGET.B")
    job = JobDescription("/bin/ls", requirements_expression="TARGET.A || TARGET.C  // either")
    combined = apply_template(template, job).requirements_expression
    assert is_true(combined, A=False, B=True, C=True)
    assert not is_true(combined, A=True, B=False, C=True)
    assert not is_true(combined, A=False, B=True, C=False)
    assert apply_template(template, JOB).requirements_expression == "TARGET.B"
    assert apply_template(JobTemplate("t"), job).requirements_expression == job.requirements_expression


def test_requirements_section_of_job_is_kept() -> None:
    job = JobDescription("/bin/ls", requirements={"Memory": 4000})
    after = apply_template(JobTemplate("t", requirements_expression="TARGET.B"), job)
    assert (after.requirements, after.requirements_expression) == ({"Memory": 4000}, "TARGET.B")


def test_policies_are_or_combined() -> None:
    added = JobPolicy(periodic_remove="A", periodic_hold="B", periodic_hold_reason='"b"')
    template = JobTemplate("t", policy=dataclasses.replace(added, on_exit_hold="F", on_exit_remove="G"))
    own = JobPolicy(periodic_remove="C && D", periodic_release="E", on_exit_hold="H", on_exit_remove="I")
    assert apply_template(template, JobDescription("/bin/ls", policy=own)).policy == JobPolicy(
        periodic_hold="B",
        periodic_hold_reason='"b"',
        periodic_release="E",
        periodic_remove="(C && D) || (A)",
        on_exit_hold="(H) || (F)",
        on_exit_remove="I",
    )


def test_policy_command_kept_as_attribute_follows_the_policy() -> None:
    job = submit_job("periodic_remove = A")
    after = apply_template(JobTemplate("t", policy=JobPolicy(periodic_remove="B")), job)
    assert after.attributes["periodic_remove"] == after.policy.periodic_remove == "(A) || (B)"


def test_template_attributes_override_those_of_job_with_a_warning() -> None:
    template = JobTemplate("kind", attributes={"App": "ALICE", "Long": True, "New": 1})
    job = JobDescription("/bin/ls", attributes={"APP": "LHCb", "long": True, "Mine": 7})
    after = apply_template(template, job)
    assert after.attributes == {"Mine": 7, "App": "ALICE", "Long": True, "New": 1}
    assert after.warnings == ("App is set by the job template kind, not by the job",)


@pytest.mark.parametrize(
    "job", [submit_job("queue 1", queue=""), jdl_job('Executable = "a";'), *toml_jobs('executable="a"')]
)
def test_template_applies_to_jobs_of_every_language(job: JobDescription) -> None:
    after = apply_template(find_template("bologna-short"), job)
    assert after.attributes["BolognaBatchJob"] is True
    assert after.requirements_expression == "TARGET.BolognaBatchServer == True"


def test_edit_changes_policy_and_the_attribute_kept_for_it() -> None:
    job = submit_job("periodic_remove = A\nperiodic_hold = B")
    after = with_change(with_change(job, "periodic_remove=C"), "periodic_hold=")
    assert after.policy == JobPolicy(periodic_remove="C")
    assert {name: value for name, value in after.attributes.items() if name.startswith("periodic")} == {
        "periodic_remove": "C"
    }


# Shipped templates


def test_short_job_is_removed_after_an_hour_even_if_marked_long() -> None:
    after = apply_template(
        find_template("bologna-short"), JobDescription("/bin/ls", attributes={"LongRunningJob": True})
    )
    assert after.attributes == {"BolognaBatchJob": True, "JobUniverse": 5, "LongRunningJob": False}
    remove = compile_expression(after.policy.periodic_remove or "")

    def is_removed(ran_s: float) -> bool:
        return evaluate(remove, Ad({"RemoteWallClockTime": ran_s, "LongRunningJob": False})) is True

    assert [is_removed(ran_s) for ran_s in (0.0, 3599.9, 3600.0, 4000.0)] == [False, False, True, True]


def test_long_job_is_never_removed() -> None:
    after = apply_template(find_template("bologna-long"), JOB)
    assert after.policy == JobPolicy()
    assert after.attributes == {"BolognaBatchJob": True, "JobUniverse": 5, "LongRunningJob": True}


def test_job_of_alice_runs_only_on_servers_of_alice() -> None:
    after = apply_template(find_template("bologna-alice"), JOB)
    assert after.attributes["App"] == "ALICE"
    assert is_true(after.requirements_expression, BolognaBatchServer=True, BolognaBatchGroup="ALICE")
    assert not is_true(after.requirements_expression, BolognaBatchServer=True)


@pytest.mark.parametrize("name", ["bologna-short", "bologna-long", "bologna-alice"])
def test_shipped_template_makes_vanilla_jobs(name: str) -> None:
    after = apply_template(find_template(name), submit_job("universe = standard", ignore_unsupported=True))
    assert description_attributes(after)["JobUniverse"] == 5


@pytest.mark.parametrize("name", ["bologna-short", "bologna-long", "bologna-alice"])
def test_shipped_template_has_a_description(name: str) -> None:
    template = find_template(name)
    assert template.name == name
    assert template.about.endswith(".")


# Search and syntax


def test_site_templates_take_precedence_over_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "bologna-long.toml").write_text('about = "ours"')
    (tmp_path / "other.toml").write_text('about = "other"')
    assert find_template("bologna-long", [tmp_path]).about == "ours"
    assert find_template("other", [tmp_path]).about == "other"
    assert find_template(str(tmp_path / "other.toml")).about == "other"


def test_unknown_template_error_names_the_known_ones(tmp_path: Path) -> None:
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
def test_invalid_template_error_names_the_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ReadError) as refused:
        read_template(path)
    assert error in str(refused.value)


def test_missing_template_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no such file"):
        find_template(str(tmp_path / "absent.toml"))


def test_submission_with_unknown_template_has_exit_code_2(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('executable = "/bin/true"')
    command = ["submit", str(job), "--template", "nothing", "--server", "127.0.0.1:1", "--token-file"]
    token = tmp_path / "token"
    token.write_text("t")
    result = CliRunner().invoke(main, [*command, str(token)])
    assert result.exit_code == 2
    assert "known are: bologna-alice, bologna-long, bologna-short" in result.stderr
