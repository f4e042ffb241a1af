"""Submit files: what each command asks for, and what cannot be honoured."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.job_texts import submit_job


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
        "on_exit_remove = ExitCode == 0",
        "max_retries = 3",
        "x509userproxy = /tmp/x509",
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


def test_an_accounting_group_is_a_wish_that_the_servers_policy_can_see() -> None:
    job = submit_job('accounting_group = group_a\naccounting_group_user = ann\ntransfer_output_files = ""')
    assert (job.attributes["AcctGroup"], job.attributes["AcctGroupUser"]) == ("group_a", "ann")
    assert [warning.partition(" ")[0] for warning in job.warnings] == ["accounting_group", "accounting_group_user"]


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
