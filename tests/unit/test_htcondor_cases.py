"""Facts about HTCondor, found in its sources and by asking it: each is evaluated here or its place is named.

A fact with an expression is evaluated. The others are about what happens over time; `PLACES` says of each by whom
it is shown, and fails where a fact is missing or unknown, so that none is forgotten. Who builds an evaluator for
one of the kinds moves it from there into `EVALUATORS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pilotage.classad_evaluation import Ad, NoValue, compile_expression, evaluate
from pilotage.classads import AdValue, Expression
from pilotage.condor_config import Asked, read_configuration
from support.policies import PolicyBench

Fact: TypeAlias = Mapping[str, Any]


class Place(StrEnum):
    """Where a fact that is not evaluated here belongs."""

    SLOT_MACHINE = "later: slot machine"
    MATCHING = "later: matching by policy"
    JOB_POLICIES = "later: the jobs' own policies"
    ROUTER = "later: job router"
    NOT_OURS = "not ours"


PLACES: dict[str, tuple[Place, str]] = {
    "drain: quick evicts": (Place.SLOT_MACHINE, "vacating at once, without retirement"),
    "drain: cancel with a stale id refused": (Place.SLOT_MACHINE, "requests to drain have ids"),
    "drain: check expression gates the request": (Place.SLOT_MACHINE, "asked before any slot changes"),
    "drain: backfill evicted when the last original job ends": (Place.SLOT_MACHINE, "jobs taken while draining"),
    "drain: slot states": (Place.SLOT_MACHINE, "Drained with its two activities"),
    "preempt: PREEMPT true with no retirement evicts": (Place.SLOT_MACHINE, "a poll after 20 s"),
    "preempt: WANT_VACATE false kills at once": (Place.SLOT_MACHINE, "entry of Preempting"),
    "preempt: KILL ends vacating": (Place.SLOT_MACHINE, "Vacating to Killing"),
    "preempt: rank preemption ignores PREEMPTION_REQUIREMENTS": (Place.MATCHING, "a claimed slot asks on"),
    "preempt: same user never preempts itself for priority": (Place.MATCHING, "a claimed slot asks on"),
    "suspend: CONTINUE during retirement": (Place.SLOT_MACHINE, "Suspended to Retiring"),
    "claim: idle claim with IS_OWNER true is released": (Place.SLOT_MACHINE, "Claimed/Idle at a poll"),
    "claim: worklife": (Place.SLOT_MACHINE, "Claimed/Idle at a poll"),
    "claim: reuse": (Place.SLOT_MACHINE, "activations of one claim"),
    "claim: matched slot times out": (Place.NOT_OURS, "a pilot asks for its jobs: no slot is matched before its claim"),
    "claim: release during cleaning is remembered": (Place.SLOT_MACHINE, "the payload is reaped first"),
    "start: undefined without a job counts as willing": (Place.SLOT_MACHINE, "leaving Preempting for a waiting claim"),
    "slots: consumption override": (Place.NOT_OURS, "requests are taken from a partitionable slot as they are"),
    "router: pre-route transform applies to every routed copy": (Place.ROUTER, "transforms"),
    "router: interrupted jobs are neither success nor failure": (Place.ROUTER, "throttle"),
    "router: route full": (Place.ROUTER, "limits of routes"),
    "router: orphan adoption": (Place.ROUTER, "restart"),
    "hold: counts by reason": (Place.JOB_POLICIES, "periodic_hold"),
    "hold: max releases": (Place.JOB_POLICIES, "periodic_release"),
    "duration: allowed job duration": (Place.JOB_POLICIES, "wall time limits"),
    "submit requirement refuses": (Place.JOB_POLICIES, "at submission"),
}


def _slot_attributes_are_visible_in_every_slot(tmp_path: Path) -> None:
    sizes = (500, 200, 700, 300)
    text = "STARTD_SLOT_ATTRS = activity,state,memory\n"
    for number, size in enumerate(sizes, start=1):
        text += f"SLOT_TYPE_{number} = cpus=1, mem={size}\nNUM_SLOTS_TYPE_{number} = 1\n"
    shown = ", ".join(f"slot{number}_{name}" for number in range(1, 5) for name in ("activity", "state", "memory"))
    bench = _bench(tmp_path, f'{text}START = join("/", {shown})\n', cpus=4)
    for slot in range(1, 5):
        assert bench.value("START", slot) == "/".join(f"Idle/Unclaimed/{size}" for size in sizes)


def _per_slot_values_override(tmp_path: Path) -> None:
    text = "NUM_SLOTS = 5\nSTARTD_ATTRS = MachineDataSet\nRANK = MachineDataSet\nMachineDataSet = 0\n"
    text += "".join(f"SLOT{number}_MachineDataSet = {number * 10}\n" for number in range(2, 6))
    bench = _bench(tmp_path, text, cpus=5)
    assert [bench.value("RANK", slot) for slot in range(1, 6)] == [0, 20, 30, 40, 50]


def _policy_templates_load(tmp_path: Path) -> None:
    templates = ("ALWAYS_RUN_JOBS", "DESKTOP", "UWCS_DESKTOP", "LIMIT_JOB_RUNTIMES(3600)")
    exceeded = (f"{deed}_IF_{what}_EXCEEDED" for deed in ("PREEMPT", "HOLD") for what in ("CPUS", "MEMORY", "DISK"))
    for template in (*templates, *exceeded):
        bench = _bench(tmp_path, f"use POLICY : {template}\n", cpus=1)
        assert isinstance(bench.value("IS_OWNER", 1), bool), template


def _empty_and_unknown_knobs_have_no_value(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_text("EMPTY =\nFOO = BAR\n")
    found = read_configuration(path, Asked(("EMPTY", "FOO", "UNKNOWN")))
    # That the environment changes a configuration is not ours: a policy is what its file says.
    assert dict(found.values) == {"foo": "BAR"}


EVALUATORS: dict[str, Callable[[Path], None]] = {
    "slots: slot attrs visible in every slot": _slot_attributes_are_visible_in_every_slot,
    "slots: per-slot value overrides": _per_slot_values_override,
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
    assert sorted(others) == sorted([*EVALUATORS, *PLACES])
    assert all(why for _, why in PLACES.values())
