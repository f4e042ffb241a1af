"""The job description of a routed job, after the route's changes of the ad."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage.job_description import InputFile, JobDescription, JobPolicy
from pilotage.values.routing import RoutableJob
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.description import routed_description, with_environment
from pilotage_agents.router.core.table import InvalidRoutesError, RouteLimits, RouteTable
from pilotage_agents.router.core.transforms import read_route

ORIGINAL = JobDescription(
    executable="run.sh",
    arguments="-n 5",
    environment={"GREETING": "hello world", "EMPTY": ""},
    stdout="out.txt",
    input_files=(InputFile("run.sh", checksum="a" * 64, size=10),),
    output_files=("result.root",),
    requirements={"Tags": ("grid",)},
    requirements_expression='Arch == "X86_64"',
    request_memory_mib=2000,
    policy=JobPolicy(periodic_remove="JobStatus == 2"),
    attributes={"WantJobRouter": True, "Dataset": "higgs"},
)


def a_job(description: JobDescription = ORIGINAL, **attributes: AdValue) -> RoutableJob:
    ad: dict[str, AdValue] = {
        "Owner": "ann",
        "Cmd": description.executable,
        "Arguments": description.arguments,
        "Out": "out.txt",
        "RequestCpus": 1,
        "RequestMemory": 2000,
        "RequestDisk": 1024,
        "Requirements": Expression('Arch == "X86_64"'),
        "PeriodicRemove": Expression("JobStatus == 2"),
        "WantJobRouter": True,
        "Dataset": "higgs",
        **attributes,
    }
    return with_environment(RoutableJob(7, "WAITING", ad, description, "ann", "atlas", "higgs"))


def described(*statements: str, job: RoutableJob | None = None) -> JobDescription:
    """Return the description of the routed job after these statements of a route."""
    route = read_route("Site 2", "\n".join(statements), {}, RouteLimits())
    job = job or a_job()
    copy_ad = routed_ad(job.ad, route, RouteTable((route,)))
    return routed_description(job, {**copy_ad, "RouteName": "Site 2"})


@pytest.mark.parametrize("statement", [(), ("SET MayBeRepeated true",)])
def test_routed_job_loses_race_flags(statement: tuple[str, ...]) -> None:
    raced = replace(ORIGINAL, attributes={**ORIGINAL.attributes, "maybeREPEATED": True, "Urgent": True})
    copy = described(*statement, job=a_job(raced, maybeREPEATED=True, Urgent=True))
    assert copy.attributes == described().attributes


def test_routed_job_is_neither_retried_nor_held_at_its_exit() -> None:
    policy = replace(ORIGINAL.policy, on_exit_hold="ExitCode == 3", on_exit_remove="ExitCode == 0")
    retried = replace(ORIGINAL, retries=3, retry_until="7", success_exit_code=4, policy=policy)
    assert described(job=a_job(retried)) == replace(described(), success_exit_code=4)


def test_unchanged_values_equal_the_original() -> None:
    copy = described()
    assert copy.attributes == {**ORIGINAL.attributes, "RouteName": "Site 2"}
    assert copy.environment == ORIGINAL.environment
    assert (copy.executable, copy.arguments, copy.stdout) == ("run.sh", "-n 5", "out.txt")
    assert (copy.requirements, copy.requirements_expression) == ({"Tags": ("grid",)}, 'Arch == "X86_64"')
    assert (copy.request_cpus, copy.request_memory_mib, copy.request_disk_mib) == (None, 2000, None)
    assert (copy.policy, copy.input_files, copy.output_files) == (
        ORIGINAL.policy,
        ORIGINAL.input_files,
        ORIGINAL.output_files,
    )


def test_sizes_and_times_have_htcondor_units() -> None:
    copy = described(
        "SET RequestCpus 8",
        "SET RequestMemory RequestCpus * 1000",
        "SET RequestDisk 2049",
        "SET RequestGPUs 1",
        "SET AllowedExecuteDuration 3600",
        "SET JobLeaseDuration 1200",
    )
    assert (copy.request_cpus, copy.request_memory_mib, copy.request_disk_mib, copy.request_gpus) == (8, 8000, 3, 1)
    assert (copy.wall_time, copy.lease) == (timedelta(hours=1), timedelta(minutes=20))


def test_route_changes_command_and_files() -> None:
    copy = described(
        'SET Cmd "/opt/site/wrapper"',
        """SET Arguments "run.sh $(MY.Arguments) 'two words'" """,
        'SET In "/dev/null"',
        'SET Out "other.out"',
        'SET Err "other.err"',
        "SET JobPrio -5",
        'SET JobBatchName "routed"',
    )
    assert (copy.executable, copy.arguments) == ("/opt/site/wrapper", "run.sh -n 5 'two words'")
    assert (copy.stdin, copy.stdout, copy.stderr) == ("/dev/null", "other.out", "other.err")
    assert (copy.priority, copy.name) == (-5, "routed")


def test_old_arguments_syntax_has_no_quotes() -> None:
    assert described("""SET Args "it's -o x" """).arguments == """'it'"'"'s' -o x"""


def test_accepts_both_environment_syntaxes() -> None:
    assert described("""SET Environment "A=1 B='two words' C='it''s'" """).environment == {
        "A": "1",
        "B": "two words",
        "C": "it's",
    }
    assert described('SET Env "A=1;B=two words"').environment == {"A": "1", "B": "two words"}


def test_route_deletes_extends_and_copies_environment() -> None:
    assert described("DELETE Environment").environment == {}
    assert described('SET Environment "$(MY.Environment) MORE=1"').environment == {
        **ORIGINAL.environment,
        "MORE": "1",
    }
    kept = described("COPY Environment Original_Environment")
    assert kept.attributes["Original_Environment"] == "'GREETING=hello world' EMPTY="
    assert kept.environment == ORIGINAL.environment


def test_route_changes_expressions() -> None:
    copy = described(
        "SET Requirements TARGET.HasIt && true",
        "SET Rank TARGET.Memory",
        "SET PeriodicHold NumJobStarts > 3",
        "DELETE PeriodicRemove",
    )
    assert (copy.requirements_expression, copy.rank) == ("TARGET.HasIt && true", "TARGET.Memory")
    assert copy.policy == JobPolicy(periodic_hold="NumJobStarts > 3")
    assert described("SET Requirements undefined").requirements_expression is None
    assert described("DELETE Requirements").requirements_expression is None


def test_route_sets_and_deletes_custom_attributes() -> None:
    copy = described(
        'SET Experiment "atlas"',
        "SET Cores RequestCpus * 2",
        'EVALSET Tags split("a b")',
        "DELETE WantJobRouter",
        'SET dataset "top"',
    )
    assert copy.attributes == {
        "Experiment": "atlas",
        "Cores": 2,
        "Tags": ("a", "b"),
        "dataset": "top",
        "RouteName": "Site 2",
    }


DIRAC: dict[str, AdValue] = {
    "Site": ("CERN",),
    "BannedSites": ("FNAL",),
    "CPUTime": 3600,
    "SubmitPool": "ab",
    "JobRequirements": {"Tags": ("grid",)},
}


def test_route_reads_and_sets_keywords_and_requirements() -> None:
    keyed = replace(ORIGINAL, sites=("CERN",), banned_sites=("FNAL",), cpu_time=timedelta(hours=1))
    job = a_job(keyed, **DIRAC)

    copy = described(job=job)
    assert (copy.sites, copy.banned_sites, copy.cpu_time) == (("CERN",), ("FNAL",), timedelta(hours=1))
    assert copy.requirements == {"Tags": ("grid",)}
    assert not DIRAC.keys() & copy.attributes.keys()

    changed = described(
        'SET Site {"A", "B"}',
        "DELETE BannedSites",
        'EVALSET Platform strcat("el", CPUTime / 400)',
        "SET CPUTime 60",
        "SET JobRequirements [ Memory = 5; Tags = {1, 2} ]",
        job=job,
    )
    assert (changed.sites, changed.banned_sites, changed.platforms) == (("A", "B"), (), ("el9",))
    assert (changed.cpu_time, changed.requirements) == (timedelta(minutes=1), {"Memory": 5, "Tags": (1, 2)})
    assert described("DELETE JobRequirements", job=job).requirements is None


def test_attribute_without_plain_value_is_dropped_with_warning() -> None:
    copy = described("SET Later TARGET.Unknown", 'SET Wrong 1 + "x"', "SET Ad [ A = 1 ]")
    assert not {"Later", "Wrong", "Ad"} & copy.attributes.keys()
    assert [warning.split()[0] for warning in copy.warnings] == ["Later", "Wrong", "Ad"]


def test_htcondor_ce_attributes_are_sizes() -> None:
    copy = described("SET xcount 8", "SET maxMemory 16000", "SET maxWallTime 120")
    assert (copy.request_cpus, copy.request_memory_mib, copy.wall_time) == (8, 16000, timedelta(hours=2))
    requesting = a_job(xcount=4, BatchRuntime=600)
    assert described(job=requesting).request_cpus == 4
    assert described(job=requesting).wall_time == timedelta(minutes=10)
    assert described("SET RequestCpus 2", job=requesting).request_cpus == 2, "the route's own value wins"


def test_route_defaults_apply_to_missing_requests() -> None:
    copy = described("SET default_xcount 2", "SET default_maxMemory 500", "SET default_maxWallTime 60")
    assert (copy.request_cpus, copy.request_memory_mib, copy.wall_time) == (2, 2000, timedelta(hours=1))
    assert described("SET default_xcount 2", job=a_job(xcount=4)).request_cpus == 4


def test_undefined_expression_changes_nothing() -> None:
    copy = described("SET RequestMemory TARGET.TotalMemory", "SET Cmd Missing")
    assert (copy.request_memory_mib, copy.executable) == (2000, "run.sh")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SET RequestCpus 0", "Site 2, RequestCpus: 0 is less than 1"),
        ('SET RequestMemory "much"', "Site 2, RequestMemory: 'much' is not a number"),
        ("SET Cmd 5", "Site 2, Cmd: 5 is not a text"),
        ("SET Site 5", "Site 2, Site: 5 is not a text"),
        ("SET JobRequirements 5", "Site 2, JobRequirements: 5 is not a nested ad"),
        ("DELETE Cmd", "Site 2, Cmd: a routed job needs a program"),
        ('SET Arguments "\'open"', "Site 2, Arguments: cannot be split: No closing quotation"),
        ('SET Environment "A"', "Site 2, Environment: 'A' is not NAME=VALUE"),
        ('SET RequestDisk 1 + "x"', 'Site 2, RequestDisk: 1 + "x" evaluates to an error'),
        ("SET maxWallTime true", "Site 2, maxWallTime: True is not a whole number"),
    ],
)
def test_error_names_route_and_attribute_of_invalid_value(statement: str, why: str) -> None:
    with pytest.raises(InvalidRoutesError) as rejected:
        described(statement)
    assert str(rejected.value) == why
