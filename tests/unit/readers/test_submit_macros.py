"""Submit files: macros, conditions and included files."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.job_texts import NOW, submit_error, submit_job, submit_jobs


def test_macros_are_expanded_and_not_kept_as_attributes() -> None:
    job = submit_job("dir = log\nfile = $(dir)/$(name:x)\noutput = $(file).out\nn = 7\narguments = $INT(n,%03d) $(n)")
    assert (job.stdout, job.arguments, job.attributes) == ("log/x.out", "007 7", {})


def test_env_macro_reads_environment_of_submitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TEST_VALUE", "value")
    monkeypatch.delenv("PILOTAGE_TEST_NOTHING", raising=False)
    job = submit_job("arguments = $ENV(PILOTAGE_TEST_VALUE) $ENV(PILOTAGE_TEST_NOTHING:no) $ENV(PILOTAGE_TEST_NOTHING)")
    assert job.arguments == "value no UNDEFINED"
    assert "$ENV(PILOTAGE_TEST_NOTHING) has no value here" in job.warnings


def test_undefined_macro_is_empty_with_warning() -> None:
    job = submit_job("output = out.$(i)")
    assert job.stdout == "out."
    assert "$(i) has no value here" in job.warnings


def test_date_macros_expand_to_submission_time() -> None:
    job = submit_job("output = $(YEAR)-$(Month)-$(Day).$(SUBMIT_TIME).$(SUBMIT_FILE)")
    now = NOW.astimezone()
    assert job.stdout == f"{now:%Y-%m-%d}.{int(NOW.timestamp())}.job.sub"
    assert not any("no value" in warning for warning in job.warnings)


def test_slot_macro_is_refused_at_its_line() -> None:
    error = submit_error("executable = a\narguments = $$(Arch)\nqueue")
    assert error.startswith("job.sub:2: arguments = $$(Arch): $$(…) is not replaced")
    assert submit_job("arguments = $$(Arch)", ignore_unsupported=True).ignored == ("arguments = $$(Arch)",)


def test_error_statement_refuses_the_file_unless_it_is_skipped() -> None:
    text = "executable = a\nif $(Bad:false)\n  error : $(Bad) is bad\nendif\nwarning : take care\n{}queue"
    assert submit_jobs(text.format(""))[0].warnings == ("line 5 says: take care",)
    assert submit_error("Bad = 1\n" + text.format("")) == "job.sub:4: the file says: error: 1 is bad"


def test_includes_other_file(tmp_path: Path) -> None:
    (tmp_path / "common").write_text("request_cpus = 3\n")
    (job,) = submit_jobs("executable = a\ninclude : common\nqueue\n", tmp_path)
    assert job.request_cpus == 3


def test_nested_include_is_relative_to_submit_file(tmp_path: Path) -> None:
    (tmp_path / "outer").write_text("if true\n include : inner\nendif\n")
    (tmp_path / "inner").write_text("request_cpus = 3\n")
    (job,) = submit_jobs("executable = a\ninclude : outer\nqueue\n", tmp_path)
    assert job.request_cpus == 3


def test_include_command_in_included_file_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "common").write_text(f"\ninclude : touch {tmp_path}/ran |\n")
    error = submit_error("executable = a\ninclude : common\nqueue\n", tmp_path)
    assert error.startswith("job.sub:2: common:2: the output of a command is not included")
    assert not (tmp_path / "ran").exists()


def test_include_respects_conditions(tmp_path: Path) -> None:
    text = "executable = a\nif false\ninclude : missing\nendif\ninclude ifexist : missing\nqueue\n"
    assert len(submit_jobs(text, tmp_path)) == 1


@pytest.mark.parametrize(
    ("included", "cause"),
    [
        ("missing", "include : missing: there is no such file"),
        ("invalid", "include : invalid: a line of this file is no submit command"),
        (".", "is a directory"),
        ("itself", "include each other"),
        ("queueing", "cannot queue jobs"),
        ("/dev/zero", "file too large"),
    ],
)
def test_error_names_line_of_bad_include(included: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "itself").write_text("include : itself\n")
    (tmp_path / "invalid").write_text("x = 1\nfoo bar\n")
    (tmp_path / "queueing").write_text("queue\n")
    error = submit_error(f"executable = a\ninclude : {included}\nqueue\n", tmp_path)
    assert error.startswith("job.sub:2: ")
    assert cause in error
