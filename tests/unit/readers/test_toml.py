"""Jobs in TOML."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage_client.readers.draft import as_json
from support.job_texts import toml_error, toml_jobs


def test_table_is_a_job() -> None:
    (job,) = toml_jobs("""
        executable = "run.sh"
        arguments = ["a", "b c"]
        name = "n"
        stdout = "o"
        input_files = ["data/x", {name = "sub/y", source = "/tmp/y"}]
        output_files = "*.root"
        sites = "CERN"
        banned_sites = ["A", "B"]
        cpu_time = "2 h"
        wall_time = 90
        request_cpus = 2
        request_memory = "4 GB"
        request_disk = 1.5
        priority = -1
        hold = true
        count = 5
        requirements_expression = "Memory > 4"
        environment = {A = "1", B = 2}
        [requirements]
        Memory = 4000
        SoftwareTag = ["a", "b"]
        GPU = true
        [attributes]
        Flavour = "long"
    """)
    assert (job.executable, job.arguments, job.name, job.stdout) == ("run.sh", "a 'b c'", "n", "o")
    assert [(file.name, file.source) for file in job.input_files] == [("x", "data/x"), ("sub/y", "/tmp/y")]
    assert (job.output_files, job.sites, job.banned_sites) == (("*.root",), ("CERN",), ("A", "B"))
    assert (job.cpu_time, job.wall_time) == (timedelta(hours=2), timedelta(seconds=90))
    assert (job.request_cpus, job.request_memory_mib, job.request_disk_mib) == (2, 4096, 2)
    assert (job.priority, job.hold, job.count) == (-1, True, 5)
    assert job.requirements == {"Memory": 4000, "SoftwareTag": ("a", "b"), "GPU": True}
    assert (job.requirements_expression, job.environment) == ("Memory > 4", {"A": "1", "B": "2"})
    assert job.attributes == {"Flavour": "long"}


def test_list_of_tables_is_list_of_jobs() -> None:
    jobs = toml_jobs('[[job]]\nexecutable = "a"\n[[job]]\nexecutable = "b"\n[job.requirements]\nMemory = 1\n')
    assert [(job.executable, job.requirements) for job in jobs] == [("a", None), ("b", {"Memory": 1})]


def test_parameters_make_one_job_for_each_position() -> None:
    jobs = toml_jobs("""
        executable = "run"
        arguments = "--seed {seed} {other}"
        stdout = "{mode}.out"
        parameters = {seed = [1, 2], mode = ["fast", "slow"]}
        requirements = {Mode = "{mode}"}
    """)
    assert [job.arguments for job in jobs] == ["--seed 1 {other}", "--seed 2 {other}"]
    assert [job.stdout for job in jobs] == ["fast.out", "slow.out"]
    assert jobs[1].requirements == {"Mode": "slow"}


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ('executable = "a"\nrequest_memry = 4', 2, "did you mean request_memory?"),
        ('[[job]]\nexecutable = "a"\n\n[[job]]\nexecutable = "a"\nsites = 4', 6, "sites"),
        ('executable = "a"\n\n[requirements]\nMemory = []', 3, "empty list"),
        ('executable = "a"\n\n[requirements]\nMemory = {a = 1}', 3, "Memory"),
        ('executable = "a"\nrequest_memory = "4 XB"', 2, "request_memory"),
        ('executable = "a"\nwall_time = 1e300', 2, "wall_time"),
        ('executable = "a"\ncount = 0', 2, "less than 1"),
        ('executable = "a"\nrequest_cpus = "2"', 2, "whole number"),
        ('executable = "a"\narguments = "\'"', 2, "quotation"),
        ('executable = "a"\nrank = "x +"', 2, "rank"),
        ('executable = "a"\nhold = 1', 2, "true or false"),
        ('executable = "a"\n[parameters]\nx = [1, 2]\ny = [1]', 2, "one length"),
        ('executable = "a"\nparameters = 3', 2, "table of lists"),
        ('executable = "a"\nname = ', 2, "Invalid value"),
        ('executable = "a"\ncount = 99999999999', 2, "more than"),
        ('executable = "a"\nrequest_cpus = true', 2, "whole number"),
        ('executable = "a"\nrequest_memory = 1e300', 2, "more than"),
        ('executable = "a"\ninput_files = [{name = "b"}]', 2, "tables with name and source"),
        ('executable = "a"\nenvironment = {"A=B" = "1"}', 2, "name of a variable"),
        ('executable = "a"\npriority = ' + "9" * 5000, 1, "a number is too long"),
        ("a = " + "[" * 5000, 1, "nested too deeply"),
        ("name = 'x'", 1, "no executable"),
        ("[[job]]\nexecutable = 'a'\n[[job]]\nname = 'x'", 3, "no executable"),
        ("sites = 'x'\n[[job]]\nexecutable = 'a'", 1, "outside"),
        ("job = 3", 1, "table"),
    ],
)
def test_error_names_its_line(text: str, line: int, cause: str) -> None:
    error = toml_error(text)
    assert error.startswith(f"job.toml:{line}: ")
    assert cause in error


def test_dependencies_are_ids_or_names_of_the_file() -> None:
    jobs = toml_jobs("""
        [[job]]
        name = "a-{n}"
        executable = "run"
        parameters = {n = [1, 2]}
        after = 12
        [[job]]
        executable = "end"
        after_ok = ["a-1", "a-2", 7, "12.3", "12.0-99"]
        after_any = "a-1"
    """)
    assert [job.after for job in jobs] == [("12",), ("12",), ()]
    assert (jobs[2].after_ok, jobs[2].after_any) == (("a-1", "a-2", "7", "12.3", "12.0-99"), ("a-1",))


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ('"prepar"', 'after_ok: no job of this submission has the name "prepar"; did you mean prepare?'),
        (
            '["prepare", "12.x"]',
            "after_ok: 12.x: is not a job: give 12 for a cluster or a job, 12.3 or 12.0-99 for jobs of cluster 12, "
            "12-15 for job ids, w12 for a workflow",
        ),
        ('"12-15"', "after_ok: 12-15: is a range of job ids; give 12.0-99 for jobs of cluster 12, or each job alone"),
        ("12.3", 'after_ok must have quotes around the id of a job of a cluster: "12.3"'),
        ("{a = 1}", "after_ok must hold texts and numbers"),
        ('""', 'after_ok: no job of this submission has the name ""'),
    ],
)
def test_bad_dependency_is_an_error_with_its_line(value: str, cause: str) -> None:
    text = f'[[job]]\nname = "prepare"\nexecutable = "a"\n[[job]]\nexecutable = "b"\nafter_ok = {value}\n'
    assert toml_error(text) == f"job.toml:6: {cause}"


END_OR_FAILURE = frozenset({Occasion.END, Occasion.FAILURE})


def test_notify_has_targets_and_occasions() -> None:
    (job,) = toml_jobs("""
        executable = "run"
        notify = [
            {url = "https://example.org/{x}", on = ["end", "failure"], secret = "wine"},
            {mail = "alice@example.org", on = "hold"},
            {mail = true},
            {command = true},
        ]
    """)
    assert job.notify == (
        NewSubscription(RecipientKind.URL, "https://example.org/{x}", END_OR_FAILURE, "wine"),
        NewSubscription(RecipientKind.MAIL, "alice@example.org", frozenset({Occasion.HOLD})),
        NewSubscription(RecipientKind.MAIL),
        NewSubscription(RecipientKind.COMMAND),
    )
    assert as_json(job)["notify"][0] == {"url": "https://example.org/{x}", "on": ["end", "failure"]}


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ('"https://example.org"', "notify must be a table"),
        ("{on = 'end'}", "notify has no recipient; it has one of url, mail and command"),
        ("{url = 'https://a.org', mail = 'a@b.ch'}", "notify has url, mail; it has one of"),
        ("{urls = 'https://a.org'}", "notify has urls; it has one of"),
        ("{url = 'https://a.org', secret = ''}", "notify has an empty secret"),
        ("{url = true}", "notify must be a text"),
        ("{url = 'ftp://a.org'}", "notify 'ftp://a.org' is not a URL such as"),
        ("{command = 'rm'}", "notify names a command, which only the operator may choose"),
        ("{mail = 'a@b.ch', on = ['begin']}", "notify has begin under on, which is none of end, failure, hold"),
        ("{mail = 'a@b.ch', on = []}", "notify names no occasion"),
    ],
)
def test_invalid_notify_is_an_error_with_its_line(value: str, cause: str) -> None:
    assert toml_error(f'executable = "a"\nnotify = {value}\n').startswith(f"job.toml:2: {cause}")
