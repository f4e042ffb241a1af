"""State diagrams of the documentation, in DOT, made from the tables of transitions and from the slot machine itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pilotage.values.pilots import PilotState
from pilotage_pilot.core.attempts.attempt import STARTED, UNSTARTED, Stage
from pilotage_pilot.core.attempts.attempt import TRANSITIONS as ATTEMPT_TRANSITIONS
from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import TRANSITIONS as SLOT_TRANSITIONS
from pilotage_pilot.core.slots.machine import IllegalSlotEventError, SlotMachine, nothing
from pilotage_pilot.core.slots.states import ACTIVITIES, Activity, DrainHow, SlotState
from pilotage_server.core.jobs.states import FINAL, LEASED, TRANSITIONS, JobCause, JobState
from support.reference.markdown import member_texts
from support.slot_bench import ANN, BOOT_S, FakePolicyEvaluator, at

Step = tuple[str, str, str]
"""A state, what happens in it, and the state that follows."""

HEAD = """digraph {
  bgcolor=transparent; compound=true; fontname=Helvetica; fontsize=12; nodesep=0.35; ranksep=0.55
  node [shape=box, style=rounded, fontname=Helvetica, fontsize=12, height=0.4]
  edge [fontname=Helvetica, fontsize=10, arrowsize=0.7]
"""
"""What all diagrams of the documentation have in common; colours come from the style sheet."""


def job_states() -> str:
    """Return the diagram of a job from its submission to its end."""
    apart = _ORDERS | _WAITS
    return _job_diagram({cause for _, cause in TRANSITIONS if cause not in apart})


def job_orders() -> str:
    """Return the diagram of what users, operators and policies do with jobs."""
    return _job_diagram(_ORDERS)


def job_waits() -> str:
    """Return the diagram of jobs that wait for other jobs or for their copies."""
    return _job_diagram(_WAITS)


_ORDERS = frozenset({JobCause.HELD, JobCause.RELEASED, JobCause.REMOVED, JobCause.RESCHEDULED, JobCause.EDITED})
_WAITS = frozenset({JobCause.BLOCKED, JobCause.UNBLOCKED, JobCause.LEFT_TO_COPIES, JobCause.WON})


def _job_diagram(causes: Collection[JobCause]) -> str:
    steps = [(before, cause.value, after) for (before, cause), after in TRANSITIONS.items() if cause in causes]
    names = [state for state in JobState if any(state in (before, after) for before, _, after in steps)]
    return _diagram(names, steps, {"with a lease": _ordered(LEASED), "final": _ordered(FINAL)})


def _ordered(states: Collection[JobState]) -> list[str]:
    return [state for state in JobState if state in states]


def attempt_stages() -> str:
    """Return the diagram of an attempt in a pilot."""
    steps = [(before, step.value, after) for (before, step), after in ATTEMPT_TRANSITIONS.items()]
    groups = {
        "without a payload": [stage for stage in Stage if stage in UNSTARTED],
        "with a payload": [stage for stage in Stage if stage in STARTED],
    }
    return _diagram(list(Stage), steps, groups)


def pilot_states() -> str:
    """Return the diagram of a pilot, from the states that the text of each state names as its successors."""
    steps = []
    for name, text in member_texts(PilotState).items():
        _, _, after = text.partition(". ")
        steps += [
            (name, _PILOT_EVENTS[each], each) for each in PilotState if re.search(rf"\b{each}\b[^.]* follow", after)
        ]
    return _diagram(list(PilotState), steps, {})


_PILOT_EVENTS = {
    PilotState.REGISTERED: "registered",
    PilotState.SUBMITTED: "submitted",
    PilotState.RUNNING: "calls, takes jobs",
    PilotState.DRAINING: "drains",
    PilotState.ENDED: "ends",
    PilotState.LOST: "silent",
}
"""What leads to each state."""


def slot_states() -> str:
    """Return the diagram of a slot under its policy: every change that its machine makes without an order."""
    return _slot_diagram(step for step in _slot_changes() if not _is_of_order(step))


def slot_orders() -> str:
    """Return the diagram of what orders of the server and drains do with a slot."""
    return _slot_diagram(step for step in _slot_changes() if _is_of_order(step))


def _is_of_order(step: Step) -> bool:
    before, label, after = step
    return label.endswith((" ordered", " withdrawn")) or SlotState.DRAINED in before or SlotState.DRAINED in after


def _slot_diagram(steps: Iterable[Step]) -> str:
    drawn = sorted(steps)
    pairs = {state: [_slot_name(state, each) for each in activities] for state, activities in ACTIVITIES.items()}
    names = [name for group in pairs.values() for name in group if any(name in (step[0], step[2]) for step in drawn)]
    return _diagram(names, drawn, {state: group for state, group in pairs.items() if len(group) > 1})


def _diagram(names: Sequence[str], steps: Iterable[Step], groups: Mapping[str, Sequence[str]]) -> str:
    """Return a diagram with a box around each group.

    A step that all states of a group have in common is one arrow, which begins at the box.
    """
    left = list(dict.fromkeys(steps))
    arrows: dict[tuple[str, str], list[str]] = {}
    boxes: list[str] = []
    anchors: dict[str, str] = {}
    for title, members in groups.items():
        present = [name for name in names if name in members]
        if not present:
            continue
        boxes += [f'  subgraph "cluster_{title}" {{ label="{title}"; style="rounded,dashed"', *_nodes(present), "  }"]
        anchors[title] = present[-1]
        for label, after in dict.fromkeys((label, after) for before, label, after in left if before in members):
            common = [(member, label, after) for member in members]
            if len(common) > 1 and set(common) <= set(left):
                arrows.setdefault((title, after), []).append(label)
                left = [step for step in left if step not in common]
    for before, label, after in left:
        arrows.setdefault((before, after), []).append(label)
    lines = [_arrow(before, after, labels, anchors) for (before, after), labels in arrows.items()]
    return "\n".join([HEAD, *boxes, *_nodes(names), *lines, "}"])


def _nodes(names: Iterable[str]) -> list[str]:
    return [f'  "{name}"' for name in names]


def _arrow(before: str, after: str, labels: Iterable[str], anchors: Mapping[str, str]) -> str:
    """Return an arrow from a state, or from the box whose anchor is one of its states."""
    label = "".join(f"{each}\\l" for each in labels)
    box = f', ltail="cluster_{before}"' if before in anchors else ""
    return f'  "{anchors.get(before, before)}" -> "{after}" [label="{label}"{box}]'


_POLICIES: Mapping[str, Mapping[str, Any]] = {
    "IS_OWNER": {"IS_OWNER": True},
    "SUSPEND": {"WANT_SUSPEND": True, "SUSPEND": True, "CONTINUE": False},
    "PREEMPT": {"PREEMPT": True, "MaxJobRetirementTime": 0},
    "KILL": {"KILL": True},
}
_CALM = {"WANT_SUSPEND": False, "SUSPEND": False, "PREEMPT": False, "KILL": False, "MaxJobRetirementTime": 900}
_EVENTS: Mapping[str, ev.SlotEvent] = {
    "job granted": ev.ClaimGranted(ANN),
    "job started": ev.JobStarted(),
    "job ended": ev.JobEnded(),
    "preemption ordered": ev.PreemptionOrdered("a better job"),
    "preemption withdrawn": ev.PreemptionWithdrawn(),
    "release ordered": ev.ReleaseOrdered("released"),
    "kill ordered": ev.KillOrdered("killed", hard=True),
    "suspend ordered": ev.SuspendOrdered(),
    "continue ordered": ev.ContinueOrdered(),
    "drain ordered": ev.DrainOrdered(DrainHow.GRACEFUL, "drained"),
    "node drained": ev.NodeDrained(),
}
_LATER_S = 1000
"""Past all retirement, vacate and polling times of this policy."""


def _slot_changes() -> set[Step]:
    """Return all changes of a static slot that events and policies lead to."""
    start = SlotMachine(at(BOOT_S))
    changes: set[Step] = set()
    known = {_facts(start)}
    not_tried = [(start, BOOT_S)]
    while not_tried:
        machine, boot_s = not_tried.pop()
        calm = _after(machine, ev.Polled(), {}, boot_s + 1)
        for label, event, values, pause_s in _stimuli(machine):
            moved = _after(machine, event, values, boot_s + pause_s)
            if moved is None:
                continue
            before, after = (_slot_name(each.state, each.activity) for each in (machine, moved))
            is_calm = event == ev.Polled() and not values and pause_s == 1
            if before != after and (is_calm or calm is None or _facts(calm) != _facts(moved)):
                changes.add((before, label, after))
            if _facts(moved) not in known:
                known.add(_facts(moved))
                not_tried.append((moved, boot_s + pause_s))
    return changes


def _stimuli(machine: SlotMachine) -> Iterator[tuple[str, ev.SlotEvent, Mapping[str, Any], float]]:
    """Yield events under a calm policy, and polls under each policy, soon and when all times are over."""
    for label, event in _EVENTS.items():
        if SLOT_TRANSITIONS.get((machine.state, machine.activity, type(event))) is not nothing:
            yield label, event, {}, 1
    yield "CONTINUE" if machine.activity is Activity.SUSPENDED else "not IS_OWNER", ev.Polled(), {}, 1
    for name, values in _POLICIES.items():
        yield name, ev.Polled(), values, 1
    yield "time is over", ev.Polled(), {}, _LATER_S


def _after(machine: SlotMachine, event: ev.SlotEvent, values: Mapping[str, Any], boot_s: float) -> SlotMachine | None:
    """Return the slot after an event; None = it is not legal there."""
    moved = copy.deepcopy(machine)
    try:
        moved.handle(event, FakePolicyEvaluator(**{**_CALM, **values}), at(boot_s))
    except IllegalSlotEventError:
        return None
    return moved


def _facts(machine: SlotMachine) -> tuple[object, ...]:
    """Return what decides how a slot goes on, without its times."""
    job = machine.job
    claim = machine.claim and machine.claim.activations > 0
    status = machine._status
    orders = (machine.preemption is not None, machine.draining is not None, status.must_leave, status.by_command)
    return (machine.state, machine.activity, job is None, job and job.started is None, claim, *orders)


def _slot_name(state: SlotState, activity: Activity) -> str:
    return state.value if len(ACTIVITIES[state]) == 1 else f"{state}/{activity}"


DIAGRAMS: Mapping[str, Callable[[], str]] = {
    "attempt-stages": attempt_stages,
    "job-orders": job_orders,
    "job-states": job_states,
    "job-waits": job_waits,
    "pilot-states": pilot_states,
    "slot-orders": slot_orders,
    "slot-states": slot_states,
}
"""All diagrams that are made from code, by name."""
