"""JDL in three dialects: tolerated syntax, meaning of the attributes, positions of errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.jdl import read_jdl
from support.job_texts import jdl_error, jdl_job, refusals

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


def test_outer_brackets_are_optional() -> None:
    assert jdl_job('Executable = "/bin/ls"; StdOutput = "o";') == jdl_job('[ Executable="/bin/ls"; StdOutput="o" ];')


def test_skips_comments_of_all_kinds() -> None:
    text = '# "x\nExecutable = "/bin/a#b//c"; // it\'s\n/* Executable = "no"; */ StdError = "e"; # end\n'
    job = jdl_job(text)
    assert (job.executable, job.stderr) == ("/bin/a#b//c", "e")


def test_unquoted_words_are_strings() -> None:
    job = jdl_job(
        "Executable = run-it.sh; OutputSandbox = { std.err, out/*.log }; JobName = 'quoted'; Site = X.CERN.ch;"
    )
    assert job.executable == "run-it.sh"
    assert job.output_files == ("std.err", "out/*.log")
    assert (job.name, job.sites) == ("quoted", ("X.CERN.ch",))


def test_double_slash_in_unquoted_url_is_no_comment() -> None:
    assert jdl_job("Executable = a; X = gsiftp://host/path;").attributes["X"] == "gsiftp://host/path"


def test_accepts_trailing_comma_in_list() -> None:
    assert jdl_job('Executable = "a"; OutputSandbox = { "x", "y", };').output_files == ("x", "y")


def test_doubled_braces_make_one_list() -> None:
    assert jdl_job('Executable = "a"; OutputSandbox = {{ "x", "y" }};').output_files == ("x", "y")


def test_requirements_section_keeps_types_and_case() -> None:
    text = 'Executable = "a"; Requirements = [ SoftwareTag = { "V1", "v2" }; Memory = 4000; GPU = true; F = 1.5; ];'
    assert jdl_job(text).requirements == {"SoftwareTag": ("V1", "v2"), "Memory": 4000, "GPU": True, "F": 1.5}


def test_accepts_requirements_expression_instead_of_or_with_section() -> None:
    expression = 'other.GlueCEStateStatus == "Production"'
    alone = jdl_job(f'Executable = "a"; Requirements = {expression};')
    both = jdl_job(f'Executable = "a"; Requirements = [ Memory = 4 ]; RequirementsExpression = {expression};')
    assert (alone.requirements, alone.requirements_expression) == (None, expression)
    assert (both.requirements, both.requirements_expression) == ({"Memory": 4}, expression)


def test_requirements_that_are_always_true_are_ignored() -> None:
    job = jdl_job('Executable = "a"; requirements = true;')
    assert (job.requirements_expression, job.attributes, job.warnings) == (None, {"requirements": True}, ())


def test_reads_keywords_and_sizes() -> None:
    job = jdl_job("""
        Executable = "a"; Site = { "A", "B" }; BannedSites = "C, D"; Platform = "x86_64"; CPUTime = "24 h";
        NumberOfProcessors = "4"; MinRAM = 2048; GPUNumber = 1; Priority = "3"; TTL = "3600";
        Workdirectorysize = { "5000MB" };
    """)
    assert (job.sites, job.banned_sites, job.platforms) == (("A", "B"), ("C", "D"), ("x86_64",))
    assert (job.cpu_time, job.wall_time) == (timedelta(days=1), timedelta(hours=1))
    assert (job.request_cpus, job.request_memory_mib, job.request_disk_mib, job.request_gpus) == (4, 2048, 5000, 1)
    assert job.priority == 3


def test_number_of_processors_overrides_minimum() -> None:
    assert jdl_job('Executable="a"; NumberOfProcessors=8; MinNumberOfProcessors=2;').request_cpus == 8
    assert jdl_job('Executable="a"; MinNumberOfProcessors=2;').request_cpus == 2


@pytest.mark.parametrize("tags", ['{ "GPU", "New" }', '"GPU, New"', '{ "GPU,New" }'])
def test_tags_of_job_become_required_tags(tags: str) -> None:
    job = jdl_job(f'Executable = "a"; Tags = {tags}; Requirements = [ tags = {{ "GPU", "SSD" }} ];')
    assert job.requirements == {"Tags": ("GPU", "New", "SSD")}


@pytest.mark.parametrize(
    ("statement", "cpus", "memory_mib"),
    [
        ("MinRAM = 2000; MaxRAM = 8000;", None, 8000),
        ("MaxRAM = 8000;", None, 8000),
        ('MemorySize = "8GB";', None, 8192),
        ('CPUCores = "4";', 4, None),
    ],
)
def test_requests_of_each_dialect(statement: str, cpus: int | None, memory_mib: int | None) -> None:
    job = jdl_job(f'Executable = "a"; {statement}')
    assert (job.request_cpus, job.request_memory_mib, job.warnings) == (cpus, memory_mib, ())


@pytest.mark.parametrize("tags", [("8Processors", "MultiProcessor"), ("2Processors", "8Processors", "4Processors")])
def test_largest_processor_tag_requests_that_many_cpus(tags: tuple[str, ...]) -> None:
    listed = ", ".join(f'"{tag}"' for tag in tags)
    job = jdl_job(f'Executable = "a"; Tags = {{ {listed} }};')
    assert (job.requirements, job.request_cpus) == (None, 8)
    assert job.attributes["Tags"] == tags


@pytest.mark.parametrize(
    "statement",
    [
        'Split = "se"',
        'Merge = { "all:/alice/merge.jdl:all.root" }',
        'InputData = { "LFN:/vo/x" }',
        'InputSandbox = { "x", "LFN:/vo/z" }',
        'Output = { "log.zip:*.log" }',
        'Output = { "x*.root@ALICE::CERN::EOS" }',
        'Environment = { "P=$PATH:/bin" }',
        'Arguments = "$1 $2"',
        'StdOutput = "%j.out"',
        "WholeNode = True",
        'Tags = "GPU, WholeNode"',
        'JobType = "MPICH"',
        "SmpGranularity = 8",
    ],
)
def test_refuses_attribute_that_asks_for_more(statement: str) -> None:
    text = f'Executable = "a";\n{statement};'
    name = statement.partition(" ")[0]
    (fault,) = refusals(jdl_error(text))
    assert fault.startswith(f"job.jdl:2: {name} = ")
    job = jdl_job(text, ignore_unsupported=True)
    assert [each.partition(" ")[0] for each in job.ignored] == [name]
    assert [each for each in job.warnings if each.startswith(f"{name} is ignored: ")]


def test_ignored_parts_leave_the_other_parts_of_a_statement() -> None:
    job = jdl_job(
        'Executable = "a"; InputSandbox = { "data/x.txt", "file:///tmp/y", "LFN:/vo/z", "SB:S|/q" };'
        ' Environment = { "A=1", "B=x=y", "P=$PATH:/bin" };'
        ' Output = { "log.zip:*.log,stdout@disk=1", "x*.root@ALICE::CERN::EOS,ALICE::T0" };',
        ignore_unsupported=True,
    )
    assert [(file.name, file.source) for file in job.input_files] == [("x.txt", "data/x.txt"), ("y", "/tmp/y")]
    assert job.attributes["InputSandbox"] == ("LFN:/vo/z", "SB:S|/q")
    assert job.environment == {"A": "1", "B": "x=y", "P": "$PATH:/bin"}
    assert job.output_files == ("*.log", "stdout", "x*.root")


def test_all_faults_are_named_at_once() -> None:
    error = jdl_error('Executable = "a";\nX = <y>;\nSplit = "se";\nCPUTime = "long";\nPriority = {};')
    assert [fault.partition(" ")[0] for fault in error.split("; job")] == [
        "job.jdl:2:",
        ".jdl:3:",
        ".jdl:4:",
        ".jdl:5:",
    ]


def test_unknown_attribute_gets_a_warning_with_the_nearest_name() -> None:
    job = jdl_job('Executable = "a"; NumberOfProcesors = 8; usertags = [ bug = "1" ]; X = { 1, other.Y };')
    assert job.attributes == {"NumberOfProcesors": 8, "usertags": '[ bug = "1" ]', "X": (1, "other.Y")}
    assert job.warnings == (
        "NumberOfProcesors has no meaning here and is kept as an attribute; did you mean NumberOfProcessors?",
        "X has no meaning here and is kept as an attribute",
    )


def test_keeps_attributes_without_json_key_as_written() -> None:
    written = 'JobName = "n"; StdInput = "i"; Rank = other.Speed; TTL = "3600"; Priority = "3";'
    job = jdl_job(f'Executable = "a"; {written}')
    assert (job.name, job.stdin, job.rank, job.priority) == ("n", "i", "other.Speed", 3)
    assert job.attributes == {"JobName": "n", "StdInput": "i", "Rank": "other.Speed", "TTL": "3600", "Priority": "3"}
    assert job.warnings == ()


def test_huge_processor_tag_is_an_ordinary_tag() -> None:
    tag = f"{'9' * 5000}Processors"
    assert jdl_job(f'Executable = "a"; Tags = {{ "{tag}" }};').requirements == {"Tags": (tag,)}


def test_keeps_empty_attribute_without_warning() -> None:
    job = jdl_job('Executable = "a"; MyProxyServer = " "; InputData = "";')
    assert (job.attributes, job.warnings) == ({"MyProxyServer": " ", "InputData": ""}, ())


def test_last_value_of_repeated_attribute_wins_with_warning() -> None:
    job = jdl_job('Executable = "a";\nFoo = "one";\nfoo = "two";')
    assert job.attributes == {"foo": "two"}
    assert any("line 2 said one" in warning for warning in job.warnings)


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
def test_error_names_first_line_of_bad_statement(text: str, line: int, cause: str) -> None:
    error = jdl_error(text)
    assert error.startswith(f"job.jdl:{line}: ")
    assert cause in error


@given(st.integers(0, len(SMALL)), st.integers(0, 12), st.text(alphabet="[]{}()\"'=;,#/*%$_\\\n aX1.-", max_size=6))
def test_damaged_text_gives_jobs_or_error_with_line(start: int, length: int, inserted: str) -> None:
    damaged = SMALL[:start] + inserted + SMALL[start + length :]
    line = line_of_error(damaged)
    assert line is None or 1 <= line <= damaged.count("\n") + 1
