"""Facts about HTCondor, found in its sources and by asking it: each is evaluated here or its place is named.

A fact with an expression is evaluated. Of the others `EVALUATORS` shows what one slot does; `SHOWN` names the tests
that tell the longer stories, which have to be there; `NOT_OURS` says why a fact is none of ours. None is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pilotage.classads.evaluation import Ad, NoValue, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression
from pilotage.condor.config import KnobRequest, read_configuration
from pilotage_pilot.core.slots.events import PreemptionOrdered
from support.live_slots import LiveSlots, PolicyBench, job_ad, policy_of

Fact: TypeAlias = Mapping[str, Any]


TESTS = Path(__file__).parents[2]

_POLICIES = "conformance/jobs/test_periodic_policies.py"
_OPERATORS = "conformance/jobs/test_operator_policies.py"
_PREEMPTION = "scenarios/matching/test_preemption.py"

SHOWN: dict[str, tuple[str, str]] = {
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
        "test_pre_route_transforms_apply_to_every_copy_and_leave_the_job_alone",
    ),
    "router: route full": (
        "unit/router/test_route_selection.py",
        "test_routes_that_are_full_are_skipped_until_all_are",
    ),
}
"""Where facts are shown that are longer stories: file and test."""

_ROUTERS = "there is no job router yet that could copy jobs to other queues"

NOT_OURS: dict[str, str] = {
    "claim: matched slot times out": "a pilot asks for its jobs: no slot is matched before it is claimed",
    "claim: release during cleaning is remembered": "output is stored outside the slot: there is no Cleaning",
    "drain: cancel with a stale id refused": "a pilot that drains ends: there is nothing to cancel",
    "drain: check expression gates the request": "a pilot that drains ends: there is nothing to check",
    "drain: backfill evicted when the last original job ends": "a pilot that drains ends: it takes no jobs meanwhile",
    "slots: consumption override": "a partitionable slot gives what a job requests, no policy makes it more or less",
    "submit requirement refuses": "what may be submitted is said by the steps of the optimizer chain, not by a policy",
    "router: interrupted jobs are neither success nor failure": _ROUTERS,
    "router: orphan adoption": _ROUTERS,
}
"""Why facts do not apply."""


def _slot_attributes_are_visible_in_every_slot(_folder: Path) -> None:
    sizes = (500, 200, 700, 300)
    layout = {f"SLOT_TYPE_{number}": f"cpus=1, mem={size}" for number, size in enumerate(sizes, start=1)}
    counts = {f"NUM_SLOTS_TYPE_{number}": "1" for number in range(1, 5)}
    node = LiveSlots(policy_of(STARTD_SLOT_ATTRS="activity,state,memory", **layout, **counts))
    node.start(3, job_ad())
    doing = ("Unclaimed/Idle", "Unclaimed/Idle", "Claimed/Busy", "Unclaimed/Idle")
    for slot in range(1, 5):
        ad = Ad(node.plain(slot))
        for other, (size, done) in enumerate(zip(sizes, doing, strict=True), start=1):
            assert f"{ad.value(f'slot{other}_State')}/{ad.value(f'slot{other}_Activity')}" == done
            assert ad.value(f"slot{other}_Memory") == size


def _per_slot_values_override(_folder: Path) -> None:
    own = {f"SLOT{number}_MachineDataSet": str(number * 10) for number in range(2, 6)}
    node = LiveSlots(policy_of(NUM_SLOTS="5", STARTD_ATTRS="MachineDataSet", MachineDataSet="0", **own))
    assert [node.plain(slot)["MachineDataSet"] for slot in range(1, 6)] == [0, 20, 30, 40, 50]


def _preempt_without_retirement_evicts(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="TotalClaimRunTime > 20", MaxJobRetirementTime="0"))
    node.start(1, job_ad())
    assert node.poll(20.0) == {}
    node.poll(5.0)
    assert node.doing(1) == "Preempting/Vacating"


def _without_vacating_the_job_is_killed(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="time() > EnteredCurrentActivity", WANT_VACATE="False"))
    node.start(1, job_ad())
    node.poll(5.0)
    assert node.doing(1) == "Preempting/Killing"


def _kill_ends_vacating(_folder: Path) -> None:
    node = LiveSlots(policy_of(PREEMPT="TotalJobRunTime > 0", KILL="time() - EnteredCurrentActivity > 60"))
    node.start(1, job_ad())
    node.poll(5.0)
    node.poll(60.0)
    assert node.doing(1) == "Preempting/Vacating"
    node.poll(1.0)
    assert node.doing(1) == "Preempting/Killing"


def _a_job_that_goes_on_in_retirement_retires(_folder: Path) -> None:
    node = LiveSlots(
        policy_of(WANT_SUSPEND="True", SUSPEND="LoadAvg > 1", CONTINUE="LoadAvg < 1", MaxJobRetirementTime="9999")
    )
    node.start(1, job_ad())
    node.look(load=2.0)
    node.poll(5.0)
    assert node.doing(1) == "Claimed/Suspended"
    node.tell(1, PreemptionOrdered("a better job waits"))
    node.look(load=0.5)
    node.poll(5.0)
    assert node.doing(1) == "Claimed/Retiring"


def _an_idle_claim_goes_when_its_owner_comes(_folder: Path) -> None:
    node = LiveSlots(policy_of(IS_OWNER="KeyboardIdle < 60"))
    node.start(1, job_ad())
    node.end(1)
    assert node.doing(1) == "Claimed/Idle"
    node.look(keyboard_idle_s=1)
    node.poll(5.0)
    assert node.doing(1) == "Owner/Idle"


def _a_claim_ends_with_its_worklife(_folder: Path) -> None:
    for worklife, age_s, is_kept in (
        ("1200", 1190.0, True),
        ("1200", 1201.0, False),
        ("0", 1.0, False),
        ("-1", 1e6, True),
    ):
        node = LiveSlots(policy_of(CLAIM_WORKLIFE=worklife, START="LoadAvg < 99"))
        node.start(1, job_ad())
        node.poll(age_s)
        assert node.doing(1) == "Claimed/Busy"  # a running job is never cut
        node.end(1)
        node.poll(0.0)
        assert (node.doing(1) == "Claimed/Idle") is is_kept, worklife


def _an_undefined_start_is_willing_until_there_is_a_job(_folder: Path) -> None:
    node = LiveSlots(policy_of(START="TARGET.Wanted"))
    node.poll(5.0)
    assert node.doing(1) == "Unclaimed/Idle"
    assert node.ads.starts("slot1", job_ad(), node.now) is None
    assert node.ads.starts("slot1", job_ad(Wanted=True), node.now) is True


def _policy_templates_load(tmp_path: Path) -> None:
    templates = ("ALWAYS_RUN_JOBS", "DESKTOP", "UWCS_DESKTOP", "LIMIT_JOB_RUNTIMES(3600)")
    exceeded = (f"{deed}_IF_{what}_EXCEEDED" for deed in ("PREEMPT", "HOLD") for what in ("CPUS", "MEMORY", "DISK"))
    for template in (*templates, *exceeded):
        bench = _bench(tmp_path, f"use POLICY : {template}\n", cpus=1)
        assert isinstance(bench.value("IS_OWNER", 1), bool), template


def _empty_and_unknown_knobs_have_no_value(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_text("EMPTY =\nFOO = BAR\n")
    found = read_configuration(path, KnobRequest(("EMPTY", "FOO", "UNKNOWN")))
    # That the environment changes a configuration is not ours: a policy is what its file says.
    assert dict(found.values) == {"foo": "BAR"}


EVALUATORS: dict[str, Callable[[Path], None]] = {
    "slots: slot attrs visible in every slot": _slot_attributes_are_visible_in_every_slot,
    "slots: per-slot value overrides": _per_slot_values_override,
    "preempt: PREEMPT true with no retirement evicts": _preempt_without_retirement_evicts,
    "preempt: WANT_VACATE false kills at once": _without_vacating_the_job_is_killed,
    "preempt: KILL ends vacating": _kill_ends_vacating,
    "suspend: CONTINUE during retirement": _a_job_that_goes_on_in_retirement_retires,
    "claim: idle claim with IS_OWNER true is released": _an_idle_claim_goes_when_its_owner_comes,
    "claim: worklife": _a_claim_ends_with_its_worklife,
    "start: undefined without a job counts as willing": _an_undefined_start_is_willing_until_there_is_a_job,
    "policy templates load": _policy_templates_load,
    "param: environment override and empty values": _empty_and_unknown_knobs_have_no_value,
}
"""How facts without an expression are shown, by name; given a folder for files."""


def _bench(folder: Path, text: str, cpus: int) -> PolicyBench:
    path = folder / f"policy-{len(list(folder.iterdir()))}"
    path.write_text(text)
    return PolicyBench(path, cpus=cpus, memory_mib=2000)


def _facts(shared_data: Path) -> list[Fact]:
    return list(json.loads((shared_data / "cases" / "htcondor.json").read_text())["cases"])


def _ad(values: Mapping[str, Any]) -> Ad:
    def value(said: Any) -> AdValue:
        return Expression(said["expr"]) if isinstance(said, dict) else said

    return Ad({name: value(said) for name, said in values.items()})


def _expected(said: Any) -> Any:
    return {"UNDEFINED": NoValue.UNDEFINED, "ERROR": NoValue.ERROR}.get(said, said) if isinstance(said, str) else said


def test_every_fact_with_an_expression_holds(shared_data: Path) -> None:
    with_expression = [fact for fact in _facts(shared_data) if "expr" in fact]
    assert len(with_expression) == 30
    for fact in with_expression:
        target = None if fact["target"] is None else _ad(fact["target"])
        found = evaluate(compile_expression(fact["expr"]), _ad(fact["my"]), target)
        wanted = _expected(fact["expected"])
        assert (found, type(found)) == (wanted, type(wanted)), fact["name"]


@pytest.mark.parametrize("name", EVALUATORS)
def test_a_fact_about_policies_holds(name: str, tmp_path: Path) -> None:
    EVALUATORS[name](tmp_path)


def test_every_other_fact_has_one_place(shared_data: Path) -> None:
    others = [fact["name"] for fact in _facts(shared_data) if "expr" not in fact]
    assert sorted(others) == sorted([*EVALUATORS, *SHOWN, *NOT_OURS])


@pytest.mark.parametrize("name", SHOWN)
def test_the_test_that_shows_a_fact_is_there(name: str) -> None:
    file, test = SHOWN[name]
    assert f"\ndef {test}(" in (TESTS / file).read_text()
