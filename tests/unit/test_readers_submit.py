"""Submit files: macros, queue statements, commands, and where an error points."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_client.readers.read_error import ReadError
from support.job_texts import NOW, submit_error, submit_job, submit_jobs


def arguments_of(text: str, base_dir: Path | None = None) -> list[str]:
    return [job.arguments for job in submit_jobs(f"executable = run\n{text}", base_dir)]


def counts_of(text: str) -> list[int | None]:
    return [job.count for job in submit_jobs(f"executable = run\n{text}")]


# --- how many jobs, and what tells them apart


def test_jobs_that_are_alike_are_one_array() -> None:
    assert counts_of("queue 1000000") == [1_000_000]
    assert counts_of("queue") == counts_of("queue 1") == [None]


def test_jobs_whose_text_depends_on_their_number_are_one_description_each() -> None:
    assert arguments_of("arguments = $(Process) $(procid) $(Step)\nqueue 3") == ["0 0 0", "1 1 1", "2 2 2"]


def test_equal_jobs_of_several_statements_are_one_array() -> None:
    assert counts_of("queue 2\nqueue 3\narguments = x\nqueue") == [5, None]


def test_values_change_between_queue_statements_and_numbers_go_on() -> None:
    text = "arguments = a$(Process)\nqueue 2\narguments = b$(Process)\nqueue\n"
    assert arguments_of(text) == ["a0", "a1", "b2"]


def test_another_executable_begins_to_count_anew() -> None:
    jobs = submit_jobs("arguments = $(Process)\nexecutable = a\nqueue 2\nexecutable = b\nqueue\n")
    assert [(job.executable, job.arguments) for job in jobs] == [("a", "0"), ("a", "1"), ("b", "0")]


def test_the_id_of_the_cluster_is_left_for_the_server_in_one_spelling() -> None:
    assert arguments_of("arguments = $(CLUSTER).$(ClusterId).$(Process)\nqueue") == ["$(Cluster).$(Cluster).0"]


def test_items_of_a_list_fill_their_variable() -> None:
    assert arguments_of("arguments = $(x) $(Row)\nqueue x in (a, b c)") == ["a 0", "b 1", "c 2"]
    assert arguments_of("arguments = $(Item)\nqueue in (a b)") == ["a", "b"]
    assert arguments_of("arguments = $(x)\nqueue x in (\n a\n # no\n b\n)") == ["a", "b"]


def test_items_from_lines_fill_several_variables() -> None:
    text = "arguments = $(x)-$(y)\nqueue x, y from (\n  1 one\n\n  # not this\n  2, number two\n)"
    assert arguments_of(text) == ["1-one", "2-number two"]


def test_items_come_from_a_file_beside_the_submit_file(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a 1\n\n# comment\nb 2\n")
    assert arguments_of("queue arguments from list.txt", tmp_path) == ["a 1", "b 2"]


def test_several_jobs_for_each_item() -> None:
    assert arguments_of("N = 2\narguments = $(x)$(Step)\nqueue $(N) x in (a b)") == ["a0", "a1", "b0", "b1"]
    assert counts_of("queue 5 arguments in (a b)") == [5, 5]


def test_a_slice_chooses_items_as_in_python() -> None:
    assert arguments_of("queue arguments in [1:] (a b c)") == ["b", "c"]
    assert arguments_of("queue arguments in [::2] (a b c)") == ["a", "c"]


def test_items_are_what_matches_a_pattern(tmp_path: Path) -> None:
    for name in ("run_a", "run_b"):
        (tmp_path / name).mkdir()
    (tmp_path / "run_c").touch()
    assert arguments_of("queue arguments matching run_*", tmp_path) == ["run_a/", "run_b/", "run_c"]
    assert arguments_of("queue arguments matching files (run_*)", tmp_path) == ["run_c"]
    assert arguments_of("queue arguments matching dirs run_a run_*", tmp_path) == ["run_a/", "run_b/"]


def test_a_queue_statement_under_a_condition_that_does_not_hold_queues_nothing() -> None:
    text = "if defined NOBODY\n arguments = a\n queue\nelse\n arguments = b\n queue\nendif\n"
    assert arguments_of(text) == ["b"]


# --- macros


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
    assert error.startswith("job.sub:2: common:2: what a command prints is not included")
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


# --- commands


def test_sizes_have_the_units_of_condor_submit() -> None:
    plain = submit_job("request_memory = 2000\nrequest_disk = 1025\nrequest_cpus = 2\nrequest_gpus = 1")
    assert (plain.request_memory_mib, plain.request_disk_mib) == (2000, 2)
    assert (plain.request_cpus, plain.request_gpus) == (2, 1)
    units = submit_job("RequestMemory = 1.5 GB\nrequest_disk = 2 TB")
    assert (units.request_memory_mib, units.request_disk_mib) == (1536, 2 * 1024 * 1024)


def test_an_amount_may_be_written_as_arithmetic() -> None:
    job = submit_job("request_memory = 2 * 1024\nrequest_cpus = (4 + 4)\nallowed_execute_duration = 2 * 3600")
    assert (job.request_memory_mib, job.request_cpus, job.wall_time) == (2048, 8, timedelta(hours=2))


def test_a_size_that_is_an_expression_is_kept_with_a_warning() -> None:
    job = submit_job("request_memory = ifThenElse(x, 1, 2)")
    assert job.request_memory_mib is None
    assert job.attributes == {"request_memory": "ifThenElse(x, 1, 2)"}
    assert any("expression" in warning for warning in job.warnings)


def test_an_own_attribute_that_is_a_size_counts_before_the_command() -> None:
    job = submit_job("+RequestMemory = 10240\nrequest_memory = 1")
    assert (job.request_memory_mib, job.attributes) == (10240, {})


def test_own_attributes_keep_their_types() -> None:
    job = submit_job('+Flavour = "long"\nMY.Runtime = 60\n+Flag = true\n+List = {1, "x"}\n+Later = time() + 5')
    assert job.attributes == {"Flavour": "long", "Runtime": 60, "Flag": True, "List": (1, "x"), "Later": "time() + 5"}
    assert [warning for warning in job.warnings if "expression" in warning] == [
        "Later is an expression and is kept as its text"
    ]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("one \\\"two\\\" 'three'", "one '\"two\"' ''\"'\"'three'\"'\"''"),
        ('"3 simple arguments"', "3 simple arguments"),
        ("\"one 'two with spaces' 3\"", "one 'two with spaces' 3"),
        ("\"one \"\"two\"\" 'spacey ''quoted'' argument'\"", "one '\"two\"' 'spacey '\"'\"'quoted'\"'\"' argument'"),
        ("\"a '' b\"", "a '' b"),
        ("  a   b  ", "a b"),
    ],
)
def test_arguments_of_both_syntaxes_are_one_string(written: str, arguments: str) -> None:
    assert submit_job(f"arguments = {written}").arguments == arguments


def test_the_environment_is_read_in_both_syntaxes() -> None:
    assert submit_job("environment = A=1;B=x y").environment == {"A": "1", "B": "x y"}
    assert submit_job('environment = "A=1 B=\'x y\' C=""q"""').environment == {"A": "1", "B": "x y", "C": '"q"'}


def test_requirements_and_rank_are_expressions() -> None:
    job = submit_job('requirements = (OpSys == "LINUX") && regexp("^a\\.b", Name)\nrank = Mips')
    assert job.requirements_expression == '(OpSys == "LINUX") && regexp("^a\\\\.b", Name)'
    assert (job.requirements, job.rank) == (None, "Mips")


def test_files_that_travel_are_named_as_in_the_folder() -> None:
    job = submit_job(
        "transfer_input_files = a/b.txt, data/, osdf:///x/y\ninput = in/c.txt\ntransfer_output_files = o/, p"
    )
    assert [(file.name, file.source) for file in job.input_files] == [
        ("b.txt", "a/b.txt"),
        (".", "data/"),
        ("c.txt", "in/c.txt"),
    ]
    assert (job.stdin, job.output_files) == ("c.txt", ("o/", "p"))
    assert job.attributes == {"transfer_input_files": ("osdf:///x/y",), "input": "in/c.txt"}


@pytest.mark.parametrize(
    ("commands", "come_back"),
    [
        ("", True),
        ("should_transfer_files = IF_NEEDED", True),
        ("should_transfer_files = no", False),
        ('+ShouldTransferFiles = "NO"', False),
        ("transfer_output_files = a", False),
        ('transfer_output_files = ""', False),
    ],
)
def test_new_files_come_back_where_an_owner_names_no_output_files(commands: str, come_back: bool) -> None:
    assert submit_job(commands).new_files_come_back is come_back


def test_what_happens_here_anyway_is_kept_without_a_warning() -> None:
    text = "universe = vanilla\nShouldTransferFiles = YES\nwhen_to_transfer_output = ON_EXIT\ngetenv = False\n"
    job = submit_job(f'{text}initialdir = sub\nnotification = never\ntransfer_output_files = ""')
    assert len(job.attributes) == 7
    assert job.warnings == ()


@pytest.mark.parametrize(
    "command",
    [
        "universe = docker",
        "docker_image = debian",
        "getenv = True",
        "should_transfer_files = NO",
        "log = x.log",
        "periodic_remove = JobStatus == 5",
        "max_retries = 3",
        "x509userproxy = /tmp/x509",
        "accounting_group = group_a",
        'transfer_output_remaps = "a = b"',
        "gpus_minimum_memory = 2GB",
        "reqest_memory = 4",
    ],
)
def test_what_cannot_be_honoured_is_kept_and_warned_of(command: str) -> None:
    job = submit_job(f'{command}\ntransfer_output_files = ""')
    name, _, value = command.partition(" = ")
    assert job.attributes[name] == value
    assert [warning for warning in job.warnings if warning.startswith(f"{name} ")]


def test_a_command_given_twice_is_warned_of_but_not_a_macro() -> None:
    job = submit_job('m = 1\nm = 2\nrequest_cpus = 1\nRequestCpus = $(m)\ntransfer_output_files = ""')
    assert job.request_cpus == 2
    assert job.warnings == ("requestcpus is given twice: line 5 counts, line 4 said 1",)


def test_names_times_and_priorities_are_read() -> None:
    job = submit_job(
        "batch_name = cards\npriority = 5\nhold = true\nallowed_execute_duration = 60\njob_lease_duration = 90"
    )
    assert (job.name, job.priority, job.hold) == ("cards", 5, True)
    assert (job.wall_time, job.lease) == (timedelta(minutes=1), timedelta(seconds=90))
    assert job.attributes == {
        "batch_name": "cards",
        "priority": "5",
        "hold": "true",
        "allowed_execute_duration": "60",
        "job_lease_duration": "90",
    }


def test_null_devices_are_no_files() -> None:
    job = submit_job("input = /dev/null\noutput = /dev/null")
    assert (job.stdin, job.stdout, job.input_files) == ("/dev/null", "/dev/null", ())


# --- errors


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("executable = a\n\n{customSubmitAttributes}\nqueue", 3, "customSubmitAttributes"),
        ("executable =\nqueue", 1, "empty"),
        ("arguments = a\nqueue", 2, "no executable"),
        ("executable = a\narguments = b", 2, "no queue statement"),
        ("", 1, "no queue statement"),
        ("executable = a\nqueue x from missing.txt", 2, "missing.txt"),
        ("executable = a\nqueue x matching missing*", 2, "nothing matches"),
        ("executable = a\nqueue x from cat list |", 2, "command"),
        ("executable = a\nqueue many", 2, "not a number"),
        ("executable = a\nqueue -1", 2, "out of range"),
        ("executable = a\nqueue 1 2", 2, "not a number"),
        ("executable = a\nqueue 0", 2, "no job"),
        ("executable = a\nqueue x in (\n a b", 2, "no end"),
        ("executable = a\nqueue x in ()", 2, "no items"),
        ("executable = a\nqueue x in [a] (b)", 2, "slice"),
        ("executable = a\narguments = $(Process)\nqueue 100000000", 3, "more than"),
        ("executable = a\narguments = \\\n  'x' \\\n  \"y\nqueue", 2, "double quote"),
        ('executable = a\nenvironment = "A"\nqueue', 2, "NAME=VALUE"),
        ("executable = a\nrequirements = (x ==\nqueue", 2, "requirements"),
        ("executable = a\n+X = {1,\nqueue", 2, "X"),
        ("executable = a\nrequest_cpus = -1\nqueue", 2, "less than 0"),
        ("executable = a\nrequest_cpus = " + "9" * 5000 + "\nqueue", 2, "whole number"),
        ("executable = a\nrequest_cpus = 4 # cores\nqueue", 2, "not a ClassAd expression"),
        ("executable = a\nrequest_memory = 5 XB\nqueue", 2, "no unit XB"),
        ("executable = a\npriority = 99999999999\nqueue", 2, "more than"),
        ("executable = a\njob_lease_duration = 99999999999999\nqueue", 2, "more than"),
        ("executable = a\n+X = " + "9" * 5000 + "\nqueue", 2, "64 bits"),
        ("executable = a\n+ = 3\nqueue", 2, "+NAME = VALUE"),
        ("executable = a\nqueue " + "9" * 5000, 2, "not a number of jobs"),
        ("executable = a\nqueue 2147483647\nqueue 2147483647", 3, "in all"),
        ("executable = a\nA = $(B)\nB = $(A)\nqueue", 2, "circle"),
        ("executable = a\nB = $(A)\nqueue A in ($(B))", 2, "circle"),
        ("executable = a\nif defined x\nqueue", 2, "endif"),
        ("executable = a\nendif\nqueue", 2, "without an if"),
        ("executable = a\narguments @=end\n x\nqueue", 2, "no end"),
        ("executable = a\ninclude command : echo x = 1\nqueue", 2, "command"),
        ("executable = a\nqueue\nfoo bar\nqueue", 3, "foo bar"),
    ],
)
def test_an_error_points_at_the_first_line_of_the_statement_at_fault(text: str, line: int, cause: str) -> None:
    error = submit_error(text)
    assert error.startswith(f"job.sub:{line}: ")
    assert cause in error


SMALL = """executable = run
dir = log
if defined Scene
  output = $(dir)/$(Scene).out
else
  output = $(dir)/none.$(Process)
endif
request_memory = 2 \\
  GB
environment = "A=1 B='x y'"
requirements = OpSys == "LINUX"
+Flavour = "long"
queue 2 arguments from (
  1 2
  3
)
"""


def line_of_error(text: str) -> int | None:
    try:
        return None if submit_jobs(text) else 0
    except ReadError as error:
        return error.line or 0


@given(st.integers(0, len(SMALL)), st.integers(0, 12), st.text(alphabet="$()=+\"'{}[]\\\n #,:@|aX1.-", max_size=6))
def test_a_damaged_text_gives_jobs_or_an_error_with_its_line(start: int, length: int, inserted: str) -> None:
    damaged = SMALL[:start] + inserted + SMALL[start + length :]
    line = line_of_error(damaged)
    assert line is None or 1 <= line <= damaged.count("\n") + 1
