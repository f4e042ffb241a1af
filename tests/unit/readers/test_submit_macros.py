"""Submit files: macros, conditions and included files."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.job_texts import NOW, submit_error, submit_job, submit_jobs


def test_macros_are_replaced_and_leave_no_attribute() -> None:
    job = submit_job("dir = log\nfile = $(dir)/$(name:x)\noutput = $(file).out\nn = 7\narguments = $INT(n,%03d) $(n)")
    assert (job.stdout, job.arguments, job.attributes) == ("log/x.out", "007 7", {})


def test_the_environment_of_the_submitter_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TEST_WORD", "word")
    monkeypatch.delenv("PILOTAGE_TEST_NOTHING", raising=False)
    job = submit_job("arguments = $ENV(PILOTAGE_TEST_WORD) $ENV(PILOTAGE_TEST_NOTHING:no) $ENV(PILOTAGE_TEST_NOTHING)")
    assert job.arguments == "word no UNDEFINED"
    assert "$ENV(PILOTAGE_TEST_NOTHING) has no value here" in job.warnings


def test_a_macro_without_a_value_is_empty_and_warned_of() -> None:
    job = submit_job("output = out.$(i)")
    assert job.stdout == "out."
    assert "$(i) has no value here" in job.warnings


def test_the_date_of_submission_is_filled_in() -> None:
    job = submit_job("output = $(YEAR)-$(Month)-$(Day).$(SUBMIT_TIME).$(SUBMIT_FILE)")
    moment = NOW.astimezone()
    assert job.stdout == f"{moment:%Y-%m-%d}.{int(NOW.timestamp())}.job.sub"
    assert not any("no value" in warning for warning in job.warnings)


def test_what_a_slot_would_fill_in_stays_with_a_warning() -> None:
    job = submit_job("arguments = $$(Arch)")
    assert job.arguments == "$$(Arch)"
    assert any("$$(" in warning for warning in job.warnings)


def test_another_file_is_included(tmp_path: Path) -> None:
    (tmp_path / "common").write_text("request_cpus = 3\n")
    (job,) = submit_jobs("executable = a\ninclude : common\nqueue\n", tmp_path)
    assert job.request_cpus == 3


def test_what_an_included_file_includes_starts_at_the_submit_file_too(tmp_path: Path) -> None:
    (tmp_path / "outer").write_text("if true\n include : inner\nendif\n")
    (tmp_path / "inner").write_text("request_cpus = 3\n")
    (job,) = submit_jobs("executable = a\ninclude : outer\nqueue\n", tmp_path)
    assert job.request_cpus == 3


def test_no_command_runs_that_an_included_file_would_include(tmp_path: Path) -> None:
    (tmp_path / "common").write_text(f"\ninclude : touch {tmp_path}/ran |\n")
    error = submit_error("executable = a\ninclude : common\nqueue\n", tmp_path)
    assert error.startswith("job.sub:2: common:2: the output of a command is not included")
    assert not (tmp_path / "ran").exists()


def test_a_file_is_included_only_where_its_condition_holds(tmp_path: Path) -> None:
    text = "executable = a\nif false\ninclude : missing\nendif\ninclude ifexist : missing\nqueue\n"
    assert len(submit_jobs(text, tmp_path)) == 1


@pytest.mark.parametrize(
    ("included", "cause"),
    [
        ("missing", "not a submit command: include : missing"),
        (".", "is a directory"),
        ("itself", "include each other"),
        ("queueing", "cannot queue jobs"),
        ("/dev/zero", "file too large"),
    ],
)
def test_an_include_that_cannot_be_is_pointed_at(included: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "itself").write_text("include : itself\n")
    (tmp_path / "queueing").write_text("queue\n")
    error = submit_error(f"executable = a\ninclude : {included}\nqueue\n", tmp_path)
    assert error.startswith("job.sub:2: ")
    assert cause in error
