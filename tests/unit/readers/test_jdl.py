"""JDL of three dialects: what is repaired, what each attribute means, where an error points."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.jdl import read_jdl
from support.job_texts import jdl_error, jdl_job

SMALL = """[
  # a comment
  Executable = "run.sh";  // another
  Arguments = "a 'b c' %s";
  InputSandbox = { "run.sh", "LFN:/x/y" };
  Requirements = [ Memory = 4000; OS = { "el9", "el8" } ];
  Parameters = { 1, 2, "three" };
  Rank = other.Speed;
]
"""


def line_of_error(text: str) -> int | None:
    try:
        return None if read_jdl(text, "job.jdl") else 0
    except ReadError as error:
        return error.line or 0


def test_the_brackets_around_the_whole_may_be_left_out() -> None:
    assert jdl_job('Executable = "/bin/ls"; StdOutput = "o";') == jdl_job('[ Executable="/bin/ls"; StdOutput="o" ];')


def test_comments_of_all_kinds_are_left_out() -> None:
    text = '# "x\nExecutable = "/bin/a#b//c"; // it\'s\n/* Executable = "no"; */ StdError = "e"; # end\n'
    job = jdl_job(text)
    assert (job.executable, job.stderr) == ("/bin/a#b//c", "e")


def test_words_without_quotes_are_texts() -> None:
    job = jdl_job(
        "Executable = run-it.sh; OutputSandbox = { std.err, out/*.log }; JobName = 'quoted'; Site = X.CERN.ch;"
    )
    assert job.executable == "run-it.sh"
    assert job.output_files == ("std.err", "out/*.log")
    assert (job.name, job.sites) == ("quoted", ("X.CERN.ch",))


def test_an_address_without_quotes_is_no_comment() -> None:
    assert jdl_job("Executable = a; X = gsiftp://host/path;").attributes["X"] == "gsiftp://host/path"


def test_a_comma_after_the_last_element_is_left_out() -> None:
    assert jdl_job('Executable = "a"; OutputSandbox = { "x", "y", };').output_files == ("x", "y")


def test_doubled_braces_are_one_list() -> None:
    assert jdl_job('Executable = "a"; OutputSandbox = {{ "x", "y" }};').output_files == ("x", "y")


def test_a_requirements_section_keeps_types_and_spelling() -> None:
    text = 'Executable = "a"; Requirements = [ SoftwareTag = { "V1", "v2" }; Memory = 4000; GPU = true; F = 1.5; ];'
    assert jdl_job(text).requirements == {"SoftwareTag": ("V1", "v2"), "Memory": 4000, "GPU": True, "F": 1.5}


def test_a_requirements_expression_stands_in_the_place_of_a_section_or_beside_it() -> None:
    expression = 'other.GlueCEStateStatus == "Production"'
    alone = jdl_job(f'Executable = "a"; Requirements = {expression};')
    beside = jdl_job(f'Executable = "a"; Requirements = [ Memory = 4 ]; RequirementsExpression = {expression};')
    assert (alone.requirements, alone.requirements_expression) == (None, expression)
    assert (beside.requirements, beside.requirements_expression) == ({"Memory": 4}, expression)


def test_a_requirement_that_is_always_true_asks_for_nothing() -> None:
    job = jdl_job('Executable = "a"; requirements = true;')
    assert (job.requirements_expression, job.attributes, job.warnings) == (None, {"requirements": True}, ())


def test_keywords_and_sizes_are_read() -> None:
    job = jdl_job("""
        Executable = "a"; Site = { "A", "B" }; BannedSites = "C, D"; Platform = "x86_64"; CPUTime = "24 h";
        NumberOfProcessors = "4"; MinRAM = 2048; GPUNumber = 1; Priority = "3"; TTL = "3600";
        Workdirectorysize = { "5000MB" };
    """)
    assert (job.sites, job.banned_sites, job.platforms) == (("A", "B"), ("C", "D"), ("x86_64",))
    assert (job.cpu_time, job.wall_time) == (timedelta(days=1), timedelta(hours=1))
    assert (job.request_cpus, job.request_memory_mib, job.request_disk_mib, job.request_gpus) == (4, 2048, 5000, 1)
    assert job.priority == 3


def test_the_number_of_processors_counts_before_the_least_number() -> None:
    assert jdl_job('Executable="a"; NumberOfProcessors=8; MinNumberOfProcessors=2;').request_cpus == 8
    assert jdl_job('Executable="a"; MinNumberOfProcessors=2;').request_cpus == 2


def test_tags_of_a_job_are_required_of_a_place() -> None:
    job = jdl_job('Executable = "a"; Tags = { "GPU" }; Requirements = [ tags = { "GPU", "SSD" } ]; WholeNode = "yes";')
    assert job.requirements == {"Tags": ("GPU", "SSD", "WholeNode")}


@pytest.mark.parametrize("tags", [("8Processors", "MultiProcessor"), ("2Processors", "8Processors", "4Processors")])
def test_largest_processor_tag_requests_that_many_cpus(tags: tuple[str, ...]) -> None:
    listed = ", ".join(f'"{tag}"' for tag in tags)
    job = jdl_job(f'Executable = "a"; Tags = {{ {listed} }};')
    assert (job.requirements, job.request_cpus) == (None, 8)
    assert job.attributes["Tags"] == tags


def test_the_environment_is_taken_apart_and_what_no_shell_expands_is_warned_of() -> None:
    job = jdl_job('Executable = "a"; Environment = { "A=1", "B=x=y", "P=$PATH:/bin" };')
    assert job.environment == {"A": "1", "B": "x=y", "P": "$PATH:/bin"}
    assert any("$PATH" in warning for warning in job.warnings)


def test_local_input_files_are_named_as_in_the_folder_and_remote_ones_are_kept() -> None:
    job = jdl_job('Executable = "a"; InputSandbox = { "data/x.txt", "file:///tmp/y", "LFN:/vo/z", "SB:S|/q" };')
    assert [(file.name, file.source) for file in job.input_files] == [("x.txt", "data/x.txt"), ("y", "/tmp/y")]
    assert job.attributes["InputSandbox"] == ("LFN:/vo/z", "SB:S|/q")
    assert any("LFN:/vo/z" in warning for warning in job.warnings)


def test_outputs_of_alien_are_the_patterns_without_archives_and_places() -> None:
    text = 'Executable = "a"; Output = { "log.zip:*.log,stdout@disk=1", "x*.root@ALICE::CERN::EOS,ALICE::T0" };'
    assert jdl_job(text).output_files == ("*.log", "stdout", "x*.root")


def test_what_has_no_meaning_here_is_kept_and_warned_of() -> None:
    job = jdl_job('Executable = "a"; RetryCount = 3; usertags = [ bug = "1" ]; Split = "se"; X = { 1, other.Y };')
    assert job.attributes == {"RetryCount": 3, "usertags": '[ bug = "1" ]', "Split": "se", "X": (1, "other.Y")}
    for name in job.attributes:
        assert any(warning.startswith(name) for warning in job.warnings)


def test_what_convert_has_no_key_for_is_kept_as_it_was_written() -> None:
    written = 'JobName = "n"; StdInput = "i"; Rank = other.Speed; TTL = "3600"; Priority = "3";'
    job = jdl_job(f'Executable = "a"; {written}')
    assert (job.name, job.stdin, job.rank, job.priority) == ("n", "i", "other.Speed", 3)
    assert job.attributes == {"JobName": "n", "StdInput": "i", "Rank": "other.Speed", "TTL": "3600", "Priority": "3"}
    assert job.warnings == ()


def test_a_tag_of_more_processors_than_any_machine_has_is_a_tag() -> None:
    tag = f"{'9' * 5000}Processors"
    assert jdl_job(f'Executable = "a"; Tags = {{ "{tag}" }};').requirements == {"Tags": (tag,)}


def test_an_empty_attribute_is_kept_without_a_warning() -> None:
    job = jdl_job('Executable = "a"; MyProxyServer = " "; InputData = "";')
    assert (job.attributes, job.warnings) == ({"MyProxyServer": " ", "InputData": ""}, ())


def test_of_an_attribute_given_twice_the_last_counts_and_a_warning_tells_the_first() -> None:
    job = jdl_job('Executable = "a";\nFoo = "one";\nfoo = "two";')
    assert job.attributes == {"foo": "two"}
    assert any("line 2 said one" in warning for warning in job.warnings)


def test_submission_arguments_of_alien_stay_with_a_warning() -> None:
    job = jdl_job('Executable = "a"; Arguments = "$1 $2";')
    assert job.arguments == "$1 $2"
    assert any("$1, $2" in warning for warning in job.warnings)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ('[\nExecutable = "a";\nX = {\n 1 2 };\n]', 3, "X"),
        ('Executable = "a";\nInputSandbox = {"x"}\nMyProxy = "b";', 2, "semicolon"),
        ('Executable = "a";\n\nRetryCount = <jdlRetryCount>;', 3, "template"),
        ('[\nType = "job";\n\n$HEADER\n\nExecutable = "a"; ]', 4, "$HEADER"),
        ("Dear all,\nthis is no job", 1, "Dear all"),
        ('[\nNodes = {};\nType = "DAG";\n]', 3, "not supported"),
        ('[\nExecutable = "a";\nRequirements = [\n  Memory = 4;\n  OS = {};\n];\n]', 5, "empty list"),
        ('[\nExecutable = "a";\nRequirements = [\n  Memory = ;\n];\n]', 4, "Memory"),
        ('[\nExecutable = "a";\nRank = other.x +;\n]', 3, "Rank"),
        ('\n[ Executable = "a";', 2, "not closed"),
        ('[ Executable = "a"; ]\nmore', 2, "after the bracket"),
        ('Executable = "a";\nX = }', 2, "closes nothing"),
        ('Executable = "a";\nArguments = "\'";', 2, "quotation"),
        ('Executable = "a";\nEnvironment = {"A"};', 2, "NAME=VALUE"),
        ('Executable = "a";\nCPUTime = "soon";', 2, "CPUTime"),
        ('Executable = "a";\nCPUTime = 1e300;', 2, "CPUTime"),
        ('Executable = "a";\nNumberOfProcessors = -1;', 2, "less than 0"),
        ('Executable = "a";\nPriority = "high";', 2, "whole number"),
        ('Executable = "a";\nPriority = 99999999999;', 2, "more than"),
        ('Executable = "a";\nNumberOfProcessors = "' + "9" * 5000 + '";', 2, "whole number"),
        ('Executable = "a";\nX = ' + "9" * 5000 + ";", 2, "64 bits"),
        ('Executable = "a";\nMinRAM = "1e900";', 2, "MinRAM"),
        ('Executable = "a";\nX = ' + "[a=" * 1000 + "1" + "]" * 1000 + ";", 2, "nest deeper"),
        ('Executable = "a";\nStdOutput = undefined;', 2, "StdOutput must be one text"),
        ('Executable = "a";\nOutputSandbox = { out, ERROR };', 2, "OutputSandbox must be a list of texts"),
        ('\nStdOutput = "o";', 2, "no Executable"),
        ('StdOutput = "o";\nExecutable = "";', 2, "empty"),
        ("", 1, "no Executable"),
    ],
)
def test_an_error_points_at_the_first_line_of_the_statement_at_fault(text: str, line: int, cause: str) -> None:
    error = jdl_error(text)
    assert error.startswith(f"job.jdl:{line}: ")
    assert cause in error


@given(st.integers(0, len(SMALL)), st.integers(0, 12), st.text(alphabet="[]{}()\"'=;,#/*%$_\\\n aX1.-", max_size=6))
def test_a_damaged_text_gives_jobs_or_an_error_with_its_line(start: int, length: int, inserted: str) -> None:
    damaged = SMALL[:start] + inserted + SMALL[start + length :]
    line = line_of_error(damaged)
    assert line is None or 1 <= line <= damaged.count("\n") + 1
