"""Submit files: the meaning of each command, unsupported commands, and positions of errors."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.condor.quoting import split_arguments
from pilotage.notifications import Occasion, RecipientKind
from pilotage_client.readers.draft import ReadError
from support.job_texts import refusals, submit_error, submit_job, submit_jobs


def test_sizes_have_units_of_condor_submit() -> None:
    unitless = submit_job("request_memory = 2000\nrequest_disk = 1025\nrequest_cpus = 2\nrequest_gpus = 1")
    assert (unitless.request_memory_mib, unitless.request_disk_mib) == (2000, 2)
    assert (unitless.request_cpus, unitless.request_gpus) == (2, 1)
    with_units = submit_job("RequestMemory = 1.5 GB\nrequest_disk = 2 TB")
    assert (with_units.request_memory_mib, with_units.request_disk_mib) == (1536, 2 * 1024 * 1024)


def test_accepts_arithmetic_in_amounts() -> None:
    job = submit_job("request_memory = 2 * 1024\nrequest_cpus = (4 + 4)\nallowed_execute_duration = 2 * 3600")
    assert (job.request_memory_mib, job.request_cpus, job.wall_time) == (2048, 8, timedelta(hours=2))


def test_amounts_are_expressions_over_own_attributes() -> None:
    lines = [
        "request_cpus = MY.Cores",
        "RequestMemory = floor(MY.Bytes / 1048576)",
        "+Bytes = 300000000",
        "MY.Cores = 4",
    ]
    job = submit_job("\n".join(lines))
    assert (job.request_cpus, job.request_memory_mib, job.ignored) == (4, 286, ())
    job = submit_job("request_cpus = MY.Cores\n+Cores = 4\n+RequestCpus = 2")
    assert job.request_cpus == 2


@pytest.mark.parametrize(
    "expression", ["MY.Missing", "TARGET.Cpus", "MY.Text", "ifThenElse(MemoryUsage > 1, 2, 1)", "time()"]
)
def test_amounts_that_may_change_are_refused(expression: str) -> None:
    error = submit_error(f'executable = a\n+Text = "x"\nrequest_memory = {expression}\nqueue')
    assert "over more than the job's own attributes" in str(error)


def test_custom_size_attribute_overrides_command() -> None:
    job = submit_job("+RequestMemory = 10240\nrequest_memory = 1")
    assert (job.request_memory_mib, job.attributes) == (10240, {})


def test_custom_attributes_of_htcondor_have_the_effect_of_their_commands() -> None:
    job = submit_job("+AllowedExecuteDuration = 60\nMY.JobLeaseDuration = 90")
    assert (job.wall_time, job.lease) == (timedelta(seconds=60), timedelta(seconds=90))


def test_custom_attributes_keep_types() -> None:
    job = submit_job('+Flavour = "long"\nMY.Runtime = 60\n+Flag = true\n+List = {1, "x"}\n+None = undefined')
    assert job.attributes == {"Flavour": "long", "Runtime": 60, "Flag": True, "List": (1, "x"), "None": "undefined"}
    assert job.warnings == ()


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
def test_accepts_arguments_in_both_syntaxes(written: str, arguments: str) -> None:
    assert submit_job(f"arguments = {written}").arguments == arguments


def test_accepts_environment_in_both_syntaxes() -> None:
    assert submit_job("environment = A=1;B=x y").environment == {"A": "1", "B": "x y"}
    assert submit_job('environment = "A=1 B=\'x y\' C=""q"""').environment == {"A": "1", "B": "x y", "C": '"q"'}


def test_requirements_and_rank_are_expressions() -> None:
    job = submit_job('requirements = (OpSys == "LINUX") && regexp("^a\\.b", Name)\nrank = Mips')
    assert job.requirements_expression == '(OpSys == "LINUX") && regexp("^a\\\\.b", Name)'
    assert (job.requirements, job.rank) == (None, "Mips")


def test_transferred_files_have_names_in_job_folder() -> None:
    job = submit_job(
        "transfer_input_files = a/b.txt, data/, osdf:///x/y\ninput = in/c.txt\ntransfer_output_files = o/, p",
        ignore_unsupported=True,
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
def test_new_files_come_back_without_transfer_output_files(commands: str, come_back: bool) -> None:
    assert submit_job(commands, ignore_unsupported=True).new_files_come_back is come_back


def test_keeps_redundant_commands_without_warning() -> None:
    text = "universe = vanilla\nShouldTransferFiles = YES\nwhen_to_transfer_output = ON_EXIT\ngetenv = False\n"
    job = submit_job(f'{text}initialdir = sub\nnotification = never\ntransfer_output_files = ""')
    assert len(job.attributes) == 7
    assert job.warnings == ()


@pytest.mark.parametrize(
    "command",
    [
        "universe = java",
        "universe = docker",
        "docker_image = osdf:///x/y.sif",
        "ContainerImage = oras://x/y",
        "docker_network_type = none",
        "should_transfer_files = NO",
        "when_to_transfer_output = ON_EXIT_OR_EVICT",
        "x509userproxy = /tmp/x509",
        'transfer_output_remaps = "a = b"',
        "transfer_input_files = osdf:///x/y",
        "gpus_minimum_memory = 2GB",
        "request_fpgas = 1",
        "request_memory = ifThenElse(x, 1, 2)",
        "cron_hour = 3",
        "nice_user = true",
        "arguments = $$(Arch)",
        "input = a\ntransfer_input = false",
        "retry_request_memory = 4GB",
        "transfer_common_input = a.txt",
        "want_job_networking = false",
        "max_retries = many",
    ],
)
def test_refuses_command_that_asks_for_more(command: str) -> None:
    text = f"executable = a\n{command}\nqueue"
    line = text.count("\n")
    name, _, value = command.split("\n")[-1].partition(" = ")
    (fault,) = refusals(submit_error(text))
    assert fault.startswith(f"job.sub:{line}: {name} = {value}: ")
    (job,) = submit_jobs(text, ignore_unsupported=True)
    assert job.ignored == (f"{name} = {value}",)
    assert [warning for warning in job.warnings if warning.startswith(f"{name} is ignored: ")]


@pytest.mark.parametrize(
    "attribute",
    [
        "MY.JobUniverse = 7",
        '+Cmd = "b"',
        "+Wish = {a, 2}",
        "+Wish = [ a = 1 ]",
        "+Wish = {1, {2}}",
        "+Later = time() + 5",
        "+IsNoopJob = true",
        "+SuccessCheckpointExitCode = 85",
        "MY.WantIOProxy = true",
    ],
)
def test_refuses_custom_attribute_that_asks_for_more(attribute: str) -> None:
    name, _, value = attribute.removeprefix("+").removeprefix("MY.").partition(" = ")
    (fault,) = refusals(submit_error(f"executable = a\n{attribute}\nqueue"))
    assert fault.startswith(f"job.sub:2: {name} = {value}: ")
    job = submit_job(attribute, ignore_unsupported=True)
    assert (job.attributes[name], job.ignored) == (value, (f"{name} = {value}",))


@pytest.mark.parametrize(
    "command",
    [
        "nice_user = false",
        "max_retries = 0",
        "universe = 5",
        "on_exit_hold = False",
        "x509userproxy = UNDEFINED",
        "docker_image =",
        "transfer_input = false",
        "input = /dev/null\ntransfer_input = false",
        "transfer_input = true",
        "transfer_output = true",
        "want_job_networking = true",
        "dag_node_name = A",
    ],
)
def test_accepts_command_that_asks_for_nothing(command: str) -> None:
    job = submit_job(command)
    assert (job.ignored, job.warnings, job.input_files) == ((), (), ())


@pytest.mark.parametrize("command", ["email_attributes = Rank", "stream_output = True", "transfer_output = no"])
def test_keeps_harmless_command_with_warning(command: str) -> None:
    job = submit_job(f'{command}\ntransfer_output_files = ""')
    name, _, value = command.partition(" = ")
    assert (job.attributes[name], job.ignored) == (value, ())
    assert [warning for warning in job.warnings if warning.startswith(f"{name} ")]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("reqest_memory", "; did you mean request_memory?"), ("colour", ""), ("executible", "; did you mean executable?")],
)
def test_unknown_command_gets_a_warning_with_the_nearest_name(name: str, hint: str) -> None:
    job = submit_job(f"{name} = 4")
    assert job.attributes == {name: "4"}
    assert job.warnings == (f"{name} has no meaning here and is kept as an attribute{hint}",)


def test_all_faults_are_named_at_once() -> None:
    commands = "request_cpus = {a}\ndocker_image = osdf:///a.sif\n+Wish = {a}\nhold = maybe\ntransfer_input = a.txt"
    error = submit_error(f"executable = a\n{commands}\nqueue 1000")
    assert error == (
        "job.sub:2: request_cpus: {a} is not a number; "
        "job.sub:3: docker_image = osdf:///a.sif: osdf:// is not supported: name an image of a registry (docker://), "
        "a file or a folder; "
        "job.sub:4: Wish = {a}: it is an expression, and a job's attributes are plain values or lists of these; "
        "job.sub:5: hold: maybe is neither true nor false; "
        "job.sub:6: transfer_input: a.txt is neither true nor false"
    )


def test_lines_that_are_no_commands_are_named_with_the_other_faults() -> None:
    error = submit_error("executable = a\nfoo bar\nrequest_cpus = {a}\nbaz\nqueue\nqux")
    assert error == (
        "job.sub:2: not a submit command: foo bar; job.sub:3: request_cpus: {a} is not a number; "
        "job.sub:4: not a submit command: baz"
    )


def test_fault_of_many_jobs_is_named_once() -> None:
    (fault,) = refusals(submit_error("executable = a\nrequest_foo = $(x)\nqueue x from (\n 1\n 2\n 3\n)"))
    assert fault.startswith("job.sub:2: request_foo = 1: ")


def test_streams_have_second_names() -> None:
    job = submit_job("stdin = in/a\nstdout = out\nstderr = err")
    assert (job.stdin, job.stdout, job.stderr) == ("a", "out", "err")


def test_shell_runs_a_command_line() -> None:
    (job,) = submit_jobs("shell = cat 'a b' | wc -l > n\nqueue")
    assert (job.executable, split_arguments(job.arguments)) == ("/bin/sh", ["-c", "cat 'a b' | wc -l > n"])
    assert job.attributes == {"transfer_executable": "false"}
    assert "either shell, or executable" in submit_error("executable = a\nshell = b\nqueue")


@pytest.mark.parametrize(
    ("getenv", "copied"),
    [
        ("true", {"AA", "AB", "B"}),
        ("A*", {"AA", "AB"}),
        ("A*, !AB, b", {"AA", "B"}),
        ("!A*", {"B"}),
        ("false", set()),
        ("PILOTAGE_TOKEN", set()),
    ],
)
def test_getenv_copies_the_submitters_environment(
    getenv: str, copied: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"AA": "1", "AB": "2", "B": "x y", "PILOTAGE_TOKEN": "secret"}
    monkeypatch.setattr(os, "environ", own)
    assert submit_job(f"getenv = {getenv}").environment == {name: own[name] for name in copied}
    assert submit_job(f"getenv = {getenv}\nenvironment = B=mine").environment["B"] == "mine"
    assert submit_job(f"environment = B=mine\ngetenv = {getenv}").environment["B"] == "mine"


def test_accounting_group_becomes_attribute_with_warning() -> None:
    job = submit_job('accounting_group = group_a\naccounting_group_user = ann\ntransfer_output_files = ""')
    assert (job.attributes["AcctGroup"], job.attributes["AcctGroupUser"]) == ("group_a", "ann")
    assert [warning.partition(" ")[0] for warning in job.warnings] == ["accounting_group", "accounting_group_user"]


def test_repeated_command_gets_warning_but_not_macro() -> None:
    job = submit_job('m = 1\nm = 2\nrequest_cpus = 1\nRequestCpus = $(m)\ntransfer_output_files = ""')
    assert job.request_cpus == 2
    assert job.warnings == ("requestcpus is given twice: line 5 counts, line 4 said 1",)


def test_reads_names_times_and_priorities() -> None:
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


def test_null_device_is_not_transferred() -> None:
    job = submit_job("input = /dev/null\noutput = /dev/null")
    assert (job.stdin, job.stdout, job.input_files) == ("/dev/null", "/dev/null", ())


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
        ("executable = a\narguments = $(Step)\nqueue 100000000", 3, "more than"),
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
        ("executable = a\nmax_retries = {2}\nqueue", 2, "max_retries: {2} is not a number"),
        ("executable = a\nmax_retries = true\nqueue", 2, "max_retries: true is not a number"),
        ("executable = a\nqueue\nfoo bar\nqueue", 3, "foo bar"),
        ("executable = a\nqueu 2\nqueue", 2, "not a submit command: queu 2; did you mean queue?"),
    ],
)
def test_error_names_first_line_of_bad_statement(text: str, line: int, cause: str) -> None:
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
def test_damaged_text_gives_jobs_or_error_with_line(start: int, length: int, inserted: str) -> None:
    damaged = SMALL[:start] + inserted + SMALL[start + length :]
    line = line_of_error(damaged)
    assert line is None or 1 <= line <= damaged.count("\n") + 1


@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ("notification = Complete", [("", {Occasion.END})]),
        ("notify_user = a@x.ch\nnotification = ERROR", [("a@x.ch", {Occasion.FAILURE, Occasion.HOLD})]),
        ("notification = always\nnotify_user = bob", [("bob", {Occasion.END, Occasion.HOLD})]),
        (
            'notification = complete\nnotify_user = "a@x.ch, b@x.ch"',
            [("a@x.ch", {Occasion.END}), ("b@x.ch", {Occasion.END})],
        ),
        ("notification = Never\nnotify_user = a@x.ch", []),
        ("notification =", []),
        ("notify_user = a@x.ch", []),
    ],
)
def test_notification_asks_for_mail(commands: str, wanted: list[tuple[str, set[Occasion]]]) -> None:
    job = submit_job(commands)
    assert [(each.address, set(each.occasions)) for each in job.notify] == wanted
    assert all(each.kind is RecipientKind.MAIL for each in job.notify)
    assert (job.ignored, job.warnings) == ((), ())


@pytest.mark.parametrize(
    ("commands", "fault"),
    [
        ("notification = Sometimes", "notification: Sometimes is none of Always, Complete, Error, Never"),
        ("notification = Error\nnotify_user = -oX@x.ch", "notify_user: '-oX@x.ch' is not a mail address"),
    ],
)
def test_invalid_notification_is_an_error(commands: str, fault: str) -> None:
    with pytest.raises(ReadError, match=fault):
        submit_job(commands)
