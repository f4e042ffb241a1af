"""Cases of HTCondor's behaviour, from its sources and from experiments with it.

A case with an expression is evaluated. Of the others, `EVALUATORS` has the behaviour of one slot, `COVERED_ELSEWHERE`
names tests in other files, and `NOT_APPLICABLE` has the reasons why cases do not apply. Each case is in one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pilotage.classads.evaluation import Ad, NoValue, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression
from pilotage.condor.config import KnobRequest, read_configuration
from pilotage_agents.router.core.routed_job import (
    RoutedJobIntent,
    RoutedJobKey,
    RouteResult,
    TrackedJob,
    end_of_gone,
)
from pilotage_pilot.core.slots.events import PreemptionOrdered
from support.live_slots import LiveSlots, PolicyBench, job_ad, policy_of
from support.virtual_clock import START

HtcondorCase: TypeAlias = Mapping[str, Any]


TESTS = Path(__file__).parents[2]

_POLICIES = "conformance/jobs/test_periodic_policies.py"
_OPERATORS = "conformance/jobs/test_operator_policies.py"
_PREEMPTION = "scenarios/matching/test_preemption.py"

COVERED_ELSEWHERE: dict[str, tuple[str, str]] = {
    "drain: quick evicts": (_PREEMPTION, "test_drain_quick_evicts"),
    "drain: slot states": (_PREEMPTION, "test_drain_slot_states"),
    "preempt: rank preemption ignores PREEMPTION_REQUIREMENTS": (
        _PREEMPTION,
        "test_preempt_rank_preemption_ignores_preemption_requirements",
    ),
    "preempt: same user never preempts itself for priority": (
        _PREEMPTION,
        "test_preempt_same_user_never_preempts_itself_for_priority",
    ),
    "claim: reuse": (_PREEMPTION, "test_claim_reuse"),
    "hold: counts by reason": (_POLICIES, "test_holds_by_policy_are_counted_by_reason"),
    "hold: max releases": (_OPERATORS, "test_number_of_releases_is_limited_for_users"),
    "duration: allowed job duration": (
        _POLICIES,
        "test_job_over_allowed_duration_is_held",
    ),
    "router: pre-route transform applies to every routed copy": (
        "unit/router/test_transforms.py",
        "test_pre_route_transforms_do_not_change_the_job",
    ),
    "router: orphan adoption": (
        "scenarios/router/test_restarts.py",
        "test_started_router_adopts_stops_and_releases_routed_jobs",
    ),
    "router: route full": (
        "unit/router/test_route_selection.py",
        "test_skips_full_routes",
    ),
}
"""The tests, by file and name, that cover cases beyond a single slot."""

NOT_APPLICABLE: dict[str, str] = {
    "claim: matched slot times out": "a pilot asks for its jobs: no slot is matched before it is claimed",
    "claim: release during cleaning is remembered": "output is stored outside the slot: there is no Cleaning",
    "drain: cancel with a stale id refused": "a pilot that drains ends: there is nothing to cancel",
    "drain: check expression gates the request": "a pilot that drains ends: there is nothing to check",
    "drain: backfill evicted when the last original job ends": "a pilot that drains ends: it takes no jobs meanwhile",
    "slots: consumption override": "a partitionable slot gives what a job requests, no policy makes it more or less",
    "submit requirement refuses": "the optimizers check submissions, not a policy",
}
"""Why cases do not apply."""


def _slot_attributes_are_visible_in_every_slot(_folder: Path) -> None:
    sizes = (500, 200, 700, 300)
    layout = {f"SLOT_TYPE_{number}": f"cpus=1, mem={size}" for number, size in enumerate(sizes, start=1)}
    counts = {f"NUM_SLOTS_TYPE_{number}": "1" for number in range(1, 5)}
    node = LiveSlots(policy_of(STARTD_SLOT_ATTRS="activity,state,memory", **layout, **counts))
    node.start(3, job_ad())
    activities = ("Unclaimed/Idle", "Unclaimed/Idle", "Claimed/Busy", "Unclaimed/Idle")
    for slot in range(1, 5):
        ad = Ad(node.ad_values(slot))
        for other, (size, activity) in enumerate(zip(sizes, activities, strict=True), start=1):
            assert f"{ad.value(f'slot{other}_State')}/{ad.value(f'slot{other}_Activity')}" == activity
            assert ad.value(f"slot{other}_Memory") == size


def _per_slot_values_override(_folder: Path) -> None:
    own = {f"SLOT{number}_MachineDataSet": str(number * 10) for number in range(2, 6)}
    node = LiveSlots(policy_of(NUM_SLOTS="5", STARTD_ATTRS="MachineDataSet", MachineDataSet="0", **own))
    assert [node.ad_values(slot)["MachineDataSet"] for slot in range(1, 6)] == [0, 20, 30, 40, 50]


def _preempt_without_retirement_evicts(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="TotalClaimRunTime > 20", MaxJobRetirementTime="0"))
    node.start(1, job_ad())
    assert node.poll(20.0) == {}
    node.poll(5.0)
    assert node.state_and_activity(1) == "Preempting/Vacating"


def _job_is_killed_without_vacating(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="time() > EnteredCurrentActivity", WANT_VACATE="False"))
    node.start(1, job_ad())
    node.poll(5.0)
    assert node.state_and_activity(1) == "Preempting/Killing"


def _kill_ends_vacating(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="TotalJobRunTime > 0", KILL="time() - EnteredCurrentActivity > 60"))
    node.start(1, job_ad())
    node.poll(5.0)
    node.poll(60.0)
    assert node.state_and_activity(1) == "Preempting/Vacating"
    node.poll(1.0)
    assert node.state_and_activity(1) == "Preempting/Killing"


def _job_continued_in_retirement_retires(_folder: Path) -> None:
    node = LiveSlots(
        policy_of(WANT_SUSPEND="True", SUSPEND="LoadAvg > 1", CONTINUE="LoadAvg < 1", MaxJobRetirementTime="9999")
    )
    node.start(1, job_ad())
    node.sample(load=2.0)
    node.poll(5.0)
    assert node.state_and_activity(1) == "Claimed/Suspended"
    node.feed(1, PreemptionOrdered("a better job waits"))
    node.sample(load=0.5)
    node.poll(5.0)
    assert node.state_and_activity(1) == "Claimed/Retiring"


def _idle_claim_ends_when_the_owner_returns(_folder: Path) -> None:
    node = LiveSlots(policy_of(IS_OWNER="KeyboardIdle < 60"))
    node.start(1, job_ad())
    node.end(1)
    assert node.state_and_activity(1) == "Claimed/Idle"
    node.sample(keyboard_idle_s=1)
    node.poll(5.0)
    assert node.state_and_activity(1) == "Owner/Idle"


def _claim_ends_after_its_worklife(_folder: Path) -> None:
    for worklife, age_s, is_kept in (
        ("1200", 1190.0, True),
        ("1200", 1201.0, False),
        ("0", 1.0, False),
        ("-1", 1e6, True),
    ):
        node = LiveSlots(policy_of(CLAIM_WORKLIFE=worklife, START="LoadAvg < 99"))
        node.start(1, job_ad())
        node.poll(age_s)
        assert node.state_and_activity(1) == "Claimed/Busy"  # the running job goes on
        node.end(1)
        node.poll(0.0)
        assert (node.state_and_activity(1) == "Claimed/Idle") is is_kept, worklife


def _undefined_start_accepts_until_a_job_is_known(_folder: Path) -> None:
    node = LiveSlots(policy_of(START="TARGET.Wanted"))
    node.poll(5.0)
    assert node.state_and_activity(1) == "Unclaimed/Idle"
    assert node.ads.starts("slot1", job_ad(), node.now) is None
    assert node.ads.starts("slot1", job_ad(Wanted=True), node.now) is True


def _policy_templates_load(tmp_path: Path) -> None:
    templates = ("ALWAYS_RUN_JOBS", "DESKTOP", "UWCS_DESKTOP", "LIMIT_JOB_RUNTIMES(3600)")
    exceeded = (f"{action}_IF_{what}_EXCEEDED" for action in ("PREEMPT", "HOLD") for what in ("CPUS", "MEMORY", "DISK"))
    for template in (*templates, *exceeded):
        bench = _policy_bench(tmp_path, f"use POLICY : {template}\n", cpus=1)
        assert isinstance(bench.value("IS_OWNER", 1), bool), template


def _empty_and_unknown_knobs_have_no_value(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_text("EMPTY =\nFOO = BAR\n")
    found = read_configuration(path, KnobRequest(("EMPTY", "FOO", "UNKNOWN")))
    # Unlike in HTCondor, the environment does not change a policy.
    assert dict(found.values) == {"foo": "BAR"}


def _interrupted_routed_job_is_neither_success_nor_failure(_folder: Path) -> None:
    routed = TrackedJob(RoutedJobKey(1, 1), "route", "S/ce/q", START)
    removed = end_of_gone(replace(routed, intent=RoutedJobIntent.STOP))
    held = end_of_gone(replace(routed, intent=RoutedJobIntent.HOLD))
    lost = end_of_gone(routed)
    assert (removed[1], held[1], lost[1]) == (RouteResult.NEITHER, RouteResult.NEITHER, RouteResult.FAILURE)


EVALUATORS: dict[str, Callable[[Path], None]] = {
    "slots: slot attrs visible in every slot": _slot_attributes_are_visible_in_every_slot,
    "slots: per-slot value overrides": _per_slot_values_override,
    "preempt: PREEMPT true with no retirement evicts": _preempt_without_retirement_evicts,
    "preempt: WANT_VACATE false kills at once": _job_is_killed_without_vacating,
    "preempt: KILL ends vacating": _kill_ends_vacating,
    "suspend: CONTINUE during retirement": _job_continued_in_retirement_retires,
    "claim: idle claim with IS_OWNER true is released": _idle_claim_ends_when_the_owner_returns,
    "claim: worklife": _claim_ends_after_its_worklife,
    "start: undefined without a job counts as willing": _undefined_start_accepts_until_a_job_is_known,
    "policy templates load": _policy_templates_load,
    "param: environment override and empty values": _empty_and_unknown_knobs_have_no_value,
    "router: interrupted jobs are neither success nor failure": _interrupted_routed_job_is_neither_success_nor_failure,
}
"""Checks of cases without an expression, by name; the argument is a folder for files."""


def _policy_bench(folder: Path, text: str, cpus: int) -> PolicyBench:
    path = folder / f"policy-{len(list(folder.iterdir()))}"
    path.write_text(text)
    return PolicyBench(path, cpus=cpus, memory_mib=2000)


def _cases(shared_data: Path) -> list[HtcondorCase]:
    return list(json.loads((shared_data / "cases" / "htcondor.json").read_text())["cases"])


def _ad(values: Mapping[str, Any]) -> Ad:
    def value(text: Any) -> AdValue:
        return Expression(text["expr"]) if isinstance(text, dict) else text

    return Ad({name: value(text) for name, text in values.items()})


def _expected_result(value: Any) -> Any:
    special = {"UNDEFINED": NoValue.UNDEFINED, "ERROR": NoValue.ERROR}
    return special.get(value, value) if isinstance(value, str) else value


def test_expression_cases_hold(shared_data: Path) -> None:
    with_expression = [case for case in _cases(shared_data) if "expr" in case]
    assert len(with_expression) == 30
    for case in with_expression:
        target = None if case["target"] is None else _ad(case["target"])
        found = evaluate(compile_expression(case["expr"]), _ad(case["my"]), target)
        expected = _expected_result(case["expected"])
        assert (found, type(found)) == (expected, type(expected)), case["name"]


@pytest.mark.parametrize("name", EVALUATORS)
def test_policy_case_holds(name: str, tmp_path: Path) -> None:
    EVALUATORS[name](tmp_path)


def test_every_other_case_is_listed_once(shared_data: Path) -> None:
    others = [case["name"] for case in _cases(shared_data) if "expr" not in case]
    assert sorted(others) == sorted([*EVALUATORS, *COVERED_ELSEWHERE, *NOT_APPLICABLE])


@pytest.mark.parametrize("name", COVERED_ELSEWHERE)
def test_referenced_test_exists(name: str) -> None:
    file, test = COVERED_ELSEWHERE[name]
    assert re.search(rf"^(async )?def {test}\(", (TESTS / file).read_text(), re.MULTILINE)
