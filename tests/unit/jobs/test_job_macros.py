"""The texts of one job of an array."""

from __future__ import annotations

from pilotage.job_description import InputFile, render_text
from pilotage_server.core.jobs.descriptions import render
from support.jobs import a_description, a_job


def test_numbers_of_the_job_are_filled_in_whatever_the_letter_case() -> None:
    assert render_text("$(Cluster).$(PROCESS).$(clusterid).$(procId)", 7, 3) == "7.3.7.3"


def test_other_macros_and_dollars_stay_as_they_are() -> None:
    assert render_text("$(Step) $Process $1 $$(Cluster) $(Process", 7, 3) == "$(Step) $Process $1 $7 $(Process"


def test_all_texts_that_the_job_works_with_are_rendered() -> None:
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


def test_every_job_finds_its_numbers_in_its_environment_whatever_its_owner_set() -> None:
    description = a_description(environment={"PILOTAGE_JOB_ID": "1", "HOME": "/h"})
    environment = render(description, a_job(id=14, cluster=10, process=4, attempt=2)).environment
    assert environment["PILOTAGE_JOB_ID"] == "14"
    assert environment["PILOTAGE_CLUSTER_ID"] == "10"
    assert environment["PILOTAGE_ARRAY_INDEX"] == "4"
    assert environment["PILOTAGE_ATTEMPT"] == "2"
    assert environment["HOME"] == "/h"
