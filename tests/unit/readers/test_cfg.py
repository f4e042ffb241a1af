"""Job descriptions in DIRAC's CFG: the same jobs as in JDL, and faults with their lines."""

from __future__ import annotations

import pytest

from pilotage_client.readers.draft import ReadError
from support.job_texts import cfg_error, cfg_jobs, jdl_jobs, refusals

CFG = """
# A job in DIRAC's other form
Executable = run.sh
Arguments = -n 5,6 "a b"
JobName = run%s
InputSandbox = run.sh, data.txt
InputSandbox += more.txt
OutputSandbox = out.root
Environment = A=1, B=two words
Site = CERN, FNAL          // either
BannedSites = LCG.Away.xy
Platform = x86_64-el9
CPUTime = 3600
MaxRAM = 4000
NumberOfProcessors = 2
Tags = GPU, arm
Priority = 5
Rank = other.Memory
PeriodicRemove = JobStatus == 5 && NumHolds > 3
Parameters = 1, 2, three
Campaign = 2026
Official = True
Years = 2025, 2026
Requirements
{
  SoftwareTag = AppVersion1, AppVersion2
  CPUModel = "Intel Xeon"
  Memory = 4000
  Version = "9.10"
  Fast = true
}
"""
JDL = """[
  Executable = "run.sh";
  Arguments = "-n 5,6 \\"a b\\"";
  JobName = "run%s";
  InputSandbox = { "run.sh", "data.txt", "more.txt" };
  OutputSandbox = "out.root";
  Environment = { "A=1", "B=two words" };
  Site = { "CERN", "FNAL" };
  BannedSites = "LCG.Away.xy";
  Platform = "x86_64-el9";
  CPUTime = 3600;
  MaxRAM = 4000;
  NumberOfProcessors = 2;
  Tags = { "GPU", "arm" };
  Priority = 5;
  Rank = other.Memory;
  PeriodicRemove = JobStatus == 5 && NumHolds > 3;
  Parameters = { "1", "2", "three" };
  Campaign = 2026;
  Official = true;
  Years = { 2025, 2026 };
  Requirements = [
    SoftwareTag = { "AppVersion1", "AppVersion2" };
    CPUModel = "Intel Xeon";
    Memory = 4000;
    Version = "9.10";
    Fast = true;
  ];
]"""


def test_reads_the_same_jobs_as_from_jdl() -> None:
    jobs = cfg_jobs(CFG)

    assert jobs == jdl_jobs(JDL)
    assert [job.name for job in jobs] == ["run1", "run2", "runthree"]


def test_requirements_may_be_an_expression() -> None:
    (job,) = cfg_jobs("Executable = a\nRequirements = other.Memory > 5\n")
    assert (job.requirements, job.requirements_expression) == (None, "other.Memory > 5")


def test_unsupported_options_are_refused_with_their_lines() -> None:
    text = "Executable = a\nInputData = LFN:/x\n\nMyProxyServer = myproxy\nWholeNode = False\n"

    assert [fault.rpartition(": ")[0] for fault in refusals(cfg_error(text))] == [
        "job.cfg:2: InputData = LFN:/x",
        "job.cfg:4: MyProxyServer = myproxy",
    ]
    (job,) = cfg_jobs(text, ignore_unsupported=True)
    assert job.ignored == ("InputData = LFN:/x", "MyProxyServer = myproxy")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Executable = a\nFoo\n{\n x = 1\n}", "job.cfg:2: the section Foo is not known"),
        ("Executable = a\nRequirements {\n", "job.cfg:2: the section Requirements, which begins here, is not closed"),
        ("Executable = a\nRequirements\n{\nCPUTime = 5\n}", "job.cfg:4: CPUTime is a keyword of the job"),
        ("Executable = a\nRequirements\n{\nTags = {a, b}\n}", "job.cfg:4: Tags: a list has no braces"),
        ("Executable = a\nRequirements\n{\nIn\n{\nx = 1\n}\n}", "job.cfg:4: In must be a value or a list of values"),
        ("Executable = a\nInputSandbox = {a, b}", "job.cfg:2: InputSandbox: a list has no braces"),
        ('Executable = "a";', "job.cfg:1: Executable: an option has no semicolon"),
        ("Executable = a\nRequirements\n{\nMemory = 4000;\n}", "job.cfg:4: Memory: an option has no semicolon"),
        ("Executable = a\nRank = ((", "job.cfg:2: Rank: ( is not closed"),
        ("Executable = a\nMaxRAM = much", "job.cfg:2: MaxRAM"),
        ("Executable = a\nExecutable = b", "job.cfg:2: Executable stands twice in one section"),
        ("JobName = a", "job.cfg:1: there is no Executable"),
        ("", "job.cfg:1: there is no Executable"),
    ],
)
def test_fault_names_its_line(text: str, error: str) -> None:
    assert cfg_error(text).startswith(error)


def test_all_faults_are_named_at_once() -> None:
    text = "Executable = a\nRank = ((\nFoo\n{\n}\nRequirements\n{\nSite = CERN\nPlatform = x\nNice = [\n}\n"
    with pytest.raises(ReadError) as caught:
        cfg_jobs(text)
    assert [each.where for each in caught.value.violations] == [f"job.cfg:{line}" for line in (2, 3, 8, 9)]


def test_unknown_option_is_kept_with_a_warning() -> None:
    (job,) = cfg_jobs("Executable = a\nStdOutputs = x\n")
    assert job.attributes == {"StdOutputs": "x"}
    assert job.warnings == ("StdOutputs has no meaning here and is kept as an attribute; did you mean StdOutput?",)
