"""Job ads in HTCondor's names and units: the full ad, its text, and the part that matching uses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text
from pilotage.job_description import JobDescription, JobPolicy
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage_server.core.jobs.attributes import RUN_HISTORY_NAMES, SERVER_ATTRIBUTES, run_history_of
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import NEVER_HELD, Hold, HoldCode, JobState
from pilotage_server.core.queueing.job_ads import ALWAYS_PRESENT, JobAdTexts, full_job_ad, traits_ad
from pilotage_server.core.queueing.task_queue import NO_NAMES, Traits, individual_names, task_queue_key, traits_of
from support.jobs import a_description, a_job
from support.virtual_clock import START

ALICE = Account("lhcb", "users", "alice")
NOON = int(START.timestamp())


def match_ad(*names: str, **fields: Any) -> dict[str, AdValue]:
    """Return the ad that matching uses for such a job, when expressions refer to `names`."""
    return traits_ad(traits_of(ALICE, "", a_description(**fields), frozenset(names)))


def full_ad(description: JobDescription | None = None, **fields: Any) -> dict[str, AdValue]:
    """Return the full ad of such a job, a minute after noon."""
    return full_job_ad(a_job(**fields), description or a_description(), START + timedelta(minutes=1))


def test_ad_of_a_minimal_job() -> None:
    assert match_ad() == {
        "MyType": "Job",
        "Owner": "alice",
        "User": "alice@lhcb",
        "VO": "lhcb",
        "x509UserProxyVOName": "lhcb",
        "AcctGroup": "users",
        "AcctGroupUser": "alice",
        "AccountingGroup": "users.alice",
        "RequestCpus": 1,
        "RequestMemory": 0,
        "RequestDisk": 0,
        "JobStatus": 1,
        "JobUniverse": 5,
        "JobPrio": 0,
        "NumJobStarts": 0,
        "NumHolds": 0,
        "RemoteWallClockTime": 0.0,
        "CumulativeSuspensionTime": 0,
    }


def test_sizes_are_in_the_units_of_condor_submit() -> None:
    ad = match_ad(request_cpus=8, request_memory_mib=2000, request_disk_mib=3, request_gpus=0)
    assert (ad["RequestCpus"], ad["RequestMemory"], ad["RequestDisk"], ad["RequestGPUs"]) == (8, 2000, 3072, 0)
    assert match_ad(wall_time=timedelta(hours=1))["AllowedExecuteDuration"] == 3600


def test_expressions_are_kept_as_expressions() -> None:
    ad = match_ad(requirements_expression=" TARGET.Memory > 1 ", rank="KFlops")
    assert (ad["Requirements"], ad["Rank"]) == (Expression("TARGET.Memory > 1"), Expression("KFlops"))


def test_accounting_group_is_set_by_the_server() -> None:
    ad = match_ad(attributes={"AccountingGroup": "prod.mc"})
    assert (ad["AccountingGroup"], ad["AcctGroup"], ad["AcctGroupUser"]) == ("prod.mc", "prod", "mc")
    without_group = traits_ad(traits_of(Account("lhcb", "", "alice"), "", a_description(), NO_NAMES))
    assert "AccountingGroup" not in without_group


def test_custom_attributes_are_included_only_when_referenced() -> None:
    custom = {"BolognaBatchJob": True, "App": "Gauss"}
    assert "bolognabatchjob" not in match_ad(attributes=custom)
    ad = match_ad("bolognabatchjob", attributes=custom)
    assert ad["bolognabatchjob"] is True
    assert "app" not in ad


KEYWORDS: dict[str, Any] = {
    "sites": ("CERN", "Fnal"),
    "banned_sites": ("CNAF",),
    "platforms": ("x86_64-el9",),
    "cpu_time": timedelta(hours=1),
    "requirements": {"SoftwareTag": ("a", "b"), "Memory": 4000, "odd-name": 1, "Error": 2},
}
IN_ADS = {
    "Site": ("CERN", "Fnal"),
    "BannedSites": ("CNAF",),
    "Platform": ("x86_64-el9",),
    "CPUTime": 3600,
    "JobRequirements": {"SoftwareTag": ("a", "b"), "Memory": 4000},
}


def test_keywords_and_requirements_are_attributes_in_the_names_of_dirac() -> None:
    ad = full_ad(a_description(**KEYWORDS), pool_id="abc")
    assert {name: ad.get(name) for name in (*IN_ADS, "SubmitPool")} == {**IN_ADS, "SubmitPool": "abc"}
    assert Ad.read(ad_text(ad)).plain() | IN_ADS == Ad.read(ad_text(ad)).plain()

    any_site = full_ad(a_description(sites=("any", "CERN"), platforms=("ANY",)))
    assert not any_site.keys() & {*IN_ADS, "SubmitPool"}


def test_keywords_are_in_the_ad_of_a_match_if_referenced() -> None:
    assert not match_ad(**KEYWORDS).keys() & {fold(name) for name in IN_ADS}
    for name, value in IN_ADS.items():
        ad = match_ad(fold(name), **KEYWORDS)
        assert {each: ad[each] for each in ad if each in {fold(name) for name in IN_ADS}} == {fold(name): value}
    assert traits_ad(traits_of(ALICE, "abc", a_description(), NO_NAMES))["SubmitPool"] == "abc"


def test_attributes_of_an_owner_do_not_replace_keywords() -> None:
    own = {**dict.fromkeys(IN_ADS, "mine"), "SUBMITPOOL": "mine"}
    assert "mine" not in full_ad(a_description(attributes=own)).values()
    assert "mine" not in match_ad(*map(fold, own), attributes=own).values()


@pytest.mark.parametrize(
    "expression",
    [
        'member("cern", TARGET.Site) && !member("CERN", TARGET.BannedSites)',
        'TARGET.Site[0] == "CERN" && TARGET.CPUTime <= 3600',
        'member("b", TARGET.JobRequirements.softwaretag) && TARGET.JobRequirements.Memory > 3000',
        "TARGET.JobRequirements.CPUModel is undefined",
    ],
)
def test_policies_of_slots_read_keywords(expression: str) -> None:
    job = Ad(full_ad(a_description(**KEYWORDS)))
    assert evaluate(compile_expression(expression), Ad({"Memory": 1}), job) is True


@pytest.mark.parametrize(
    ("attributes", "universe"),
    [
        ({}, 5),
        ({"JobUniverse": 1}, 1),
        ({"universe": "standard"}, 1),
        ({"universe": "7"}, 7),
        ({"universe": "docker"}, 5),
        ({"universe": "$(Process)"}, 0),
        ({"universe": "1" * 5000}, 5),
        ({"universe": "1" * 5000 + "$(Process)"}, 5),
        ({"jobuniverse": 1, "universe": "vanilla"}, 1),
    ],
)
def test_universe_of_the_job(attributes: dict[str, Any], universe: int) -> None:
    ad = full_ad(a_description(attributes=attributes))
    assert [value for name, value in ad.items() if fold(name) == "jobuniverse"] == [universe]


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.WAITING, 1),
        (JobState.MATCHED, 1),
        (JobState.RUNNING, 2),
        (JobState.REMOVED, 3),
        (JobState.DONE, 4),
        (JobState.FAILED, 4),
        (JobState.HELD, 5),
        (JobState.COMPLETING, 6),
        (JobState.SUSPENDED, 7),
    ],
)
def test_job_status_is_htcondors_number(state: JobState, status: int) -> None:
    assert full_ad(state=state)["JobStatus"] == status


def test_full_ad_has_ids_and_times() -> None:
    ad = full_ad(id=17, cluster=12, process=5, state_since=START + timedelta(seconds=30))
    assert (ad["PilotageJobId"], ad["ClusterId"], ad["ProcId"]) == (17, 12, 5)
    assert (ad["QDate"], ad["EnteredCurrentStatus"]) == (NOON, NOON + 30)
    assert (ad["ServerTime"], ad["MyCurrentTime"]) == (NOON + 60, NOON + 60)


def test_macros_of_array_are_expanded() -> None:
    description = a_description("run-$(Process)", stdout="out.$(Cluster)", attributes={"N": "$(Process)"})
    ad = full_ad(description, cluster=12, process=5)
    assert (ad["Cmd"], ad["Out"], ad["N"]) == ("run-5", "out.12", "5")


def test_running_job_has_its_host_and_totals_of_ended_runs() -> None:
    ad = full_ad(
        state=JobState.RUNNING,
        started=START,
        starts=2,
        wall_clock=timedelta(minutes=5),
        queue=QueueId("CERN", "ce", "q"),
        node="n1",
        slot="slot1_2",
    )
    assert (ad["RemoteHost"], ad["NumJobStarts"], ad["RemoteWallClockTime"]) == ("slot1_2@n1", 2, 300.0)
    assert ad["JobCurrentStartDate"] == NOON
    assert not {"JobStartDate", "LastRemoteHost"} & ad.keys()


def test_requeued_job_has_its_last_host() -> None:
    assert full_ad(node="n1", slot="slot1")["LastRemoteHost"] == "slot1@n1"
    assert "LastRemoteHost" not in full_ad()


def test_held_job_has_its_hold_reasons() -> None:
    before = NEVER_HELD.with_hold(HoldCode.JOB_POLICY).with_release(Hold(HoldCode.JOB_POLICY, 9, "too long"))
    history = before.with_hold(HoldCode.USER_REQUEST)
    ad = full_ad(state=JobState.HELD, reason="wrong input", hold_code=1, hold_subcode=0, hold_history=history)
    assert (ad["HoldReason"], ad["HoldReasonCode"], ad["HoldReasonSubCode"]) == ("wrong input", 1, 0)
    assert (ad["LastHoldReason"], ad["LastHoldReasonCode"], ad["LastHoldReasonSubCode"]) == ("too long", 3, 9)
    assert (ad["NumHolds"], ad["NumHoldsByReason"]) == (2, {"JobPolicy": 1, "UserRequest": 1})


def test_finished_job_has_its_exit_status() -> None:
    ad = full_ad(state=JobState.DONE, ended=START, exit_code=3)
    assert (ad["CompletionDate"], ad["ExitCode"], ad["ExitBySignal"]) == (NOON, 3, False)
    killed = full_ad(state=JobState.FAILED, ended=START, signal=9)
    assert (killed["ExitSignal"], killed["ExitBySignal"]) == (9, True)
    assert full_ad(state=JobState.REMOVED, reason="not needed")["RemoveReason"] == "not needed"


def test_policies_are_included() -> None:
    ad = full_ad(a_description(policy=JobPolicy(periodic_remove="NumHolds > 3")))
    assert ad["PeriodicRemove"] == Expression("NumHolds > 3")


def test_invalid_attribute_names_are_omitted() -> None:
    assert full_ad(a_description(attributes={"a b": 1, "x-y": 2, "TARGET": 3, "Ärger": 4})) == full_ad()


ALL_FIELDS: dict[str, Any] = {
    "state": JobState.HELD,
    "ended": START,
    "started": START,
    "exit_code": 1,
    "signal": 2,
    "node": "n1",
    "slot": "slot1",
    "hold_history": NEVER_HELD.with_hold(1).with_release(Hold(1, 0, "x")),
}


@pytest.mark.parametrize("name", sorted(SERVER_ATTRIBUTES - {"submit_site_domain"}))
def test_server_attributes_cannot_be_forged(name: str) -> None:
    clean = full_ad(**ALL_FIELDS)
    forged = full_ad(a_description(attributes={name: "forged"}), **ALL_FIELDS)
    assert "forged" not in forged.values() or name == "accountinggroup"
    assert {fold(attribute) for attribute in forged} <= {fold(attribute) for attribute in clean} | {
        "accountinggroup",
        "acctgroup",
    }


NAMES = ("Colour", "Size", "N", "JobUniverse", "LongRunningJob")
VALUES = st.one_of(
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([1.0, 5.0, -0.0]),
    st.sampled_from(["a", "A", "8", "$(Process)"]),
    st.lists(st.sampled_from(["a", "A"]), max_size=2).map(tuple),
)
SIGNIFICANT = frozenset({*map(fold, NAMES), *RUN_HISTORY_NAMES, "jobprio", "cmd", "periodicremove", "qdate"})


@st.composite
def jobs(draw: st.DrawFn) -> tuple[JobRecord, JobDescription]:
    """Draw a waiting job, possibly requeued."""
    description = a_description(
        draw(st.sampled_from(["/bin/a", "/bin/b", "b$(Process)"])),
        attributes=draw(st.dictionaries(st.sampled_from(NAMES), VALUES)),
        priority=draw(st.integers(0, 2)),
        request_cpus=draw(st.sampled_from([None, 1, 2])),
        policy=JobPolicy(periodic_remove=draw(st.sampled_from([None, "true"]))),
    )
    record = a_job(
        id=draw(st.integers(1, 9)),
        process=draw(st.integers(0, 3)),
        priority=description.priority,
        starts=draw(st.integers(0, 1)),
        wall_clock=timedelta(seconds=draw(st.sampled_from([0, 5, 5.5]))),
        node=draw(st.sampled_from(["", "n1"])),
    )
    return record, description


def traits_of_job(record: JobRecord, description: JobDescription) -> Traits:
    account = Account(record.vo, record.group, record.owner)
    return traits_of(account, record.pool_id, description, SIGNIFICANT, run_history_of(record))


@given(jobs())
def test_full_ad_agrees_with_the_match_ad(job: tuple[JobRecord, JobDescription]) -> None:
    traits = traits_of_job(*job)
    in_full = {fold(name): repr(value) for name, value in full_job_ad(*job, START).items()}
    in_match = {fold(name): repr(value) for name, value in traits_ad(traits).items()}
    for name in SIGNIFICANT | ALWAYS_PRESENT:
        if not individual_names(traits, [name]):
            assert in_match.get(name) == in_full.get(name), name


EXPRESSIONS = [
    compile_expression(text)
    for name in sorted(SIGNIFICANT | ALWAYS_PRESENT)
    for text in (f"TARGET.{name}", f"TARGET.{name} =?= 5", f'TARGET.{name} =?= "a"', f"{name} =!= true")
]


@given(jobs(), jobs())
def test_expressions_cannot_distinguish_jobs_of_a_task_queue(
    one: tuple[JobRecord, JobDescription], other: tuple[JobRecord, JobDescription]
) -> None:
    traits, others = traits_of_job(*one), traits_of_job(*other)
    slot = Ad({"Memory": 1})
    ads = [Ad(full_job_ad(*job, START)) for job in (one, other)]
    individual = individual_names(traits, SIGNIFICANT | ALWAYS_PRESENT)
    results = [
        [
            evaluate(expression, slot, ad)
            for expression in EXPRESSIONS
            if not any(name in expression.text for name in individual)
        ]
        for ad in ads
    ]
    if task_queue_key(traits) == task_queue_key(others):
        assert repr(results[0]) == repr(results[1])
    else:
        assert traits != others


TEXT_VALUES = st.sampled_from(["plain", "$(Process)", 'it"s\n', 5, 0.5, True, ("a", "$(Process)"), ()])
TEXT_NAMES = st.sampled_from(["Colour", "colour", "RouteName", "NumJobStarts", "Owner", "with space", "Cmd"])

TEMPLATES = st.builds(
    JobDescription,
    executable=st.sampled_from(["/bin/true", "run.$(Process)"]),
    arguments=st.sampled_from(["", "1 2", "--seed $(Process)"]),
    attributes=st.dictionaries(TEXT_NAMES, TEXT_VALUES, max_size=3),
    requirements_expression=st.sampled_from(["", "TARGET.Memory > 5 // enough"]),
    policy=st.sampled_from([JobPolicy(), JobPolicy(periodic_remove="NumJobStarts > 3")]),
    count=st.sampled_from([None, 3]),
)

RECORDS = st.builds(
    a_job,
    template_id=st.integers(0, 2),
    id=st.integers(1, 9),
    process=st.integers(0, 2),
    state=st.sampled_from([JobState.WAITING, JobState.MATCHED, JobState.HELD, JobState.DONE]),
    attempt=st.integers(0, 2),
    pilot_stamp=st.sampled_from(["", "router:main"]),
    queue=st.sampled_from([None, QueueId("S", "c", "q")]),
    node=st.sampled_from(["", "n1"]),
    slot=st.sampled_from(["", "east"]),
    exit_code=st.sampled_from([None, 3]),
)


@given(st.tuples(TEMPLATES, TEMPLATES, TEMPLATES), st.lists(RECORDS, min_size=1, max_size=6))
def test_batched_ad_text_equals_the_ad_of_the_job(
    templates: Sequence[JobDescription], jobs: Sequence[JobRecord]
) -> None:
    texts, now = JobAdTexts(most=2), START + timedelta(minutes=1)
    for job in jobs:
        description = templates[job.template_id]
        assert texts.text(job, description, now) == ad_text(full_job_ad(job, description, now))
