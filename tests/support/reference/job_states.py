"""The page of the states of jobs, attempts, pilots and slots, made from the enums and tables of transitions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TypeVar

from pilotage.values.pilots import PilotState
from pilotage_pilot.core.attempts.attempt import TRANSITIONS as ATTEMPT_TRANSITIONS
from pilotage_pilot.core.attempts.attempt import Stage, Step
from pilotage_pilot.core.slots.machine import TRANSITIONS as SLOT_TRANSITIONS
from pilotage_pilot.core.slots.machine import nothing
from pilotage_pilot.core.slots.states import ACTIVITIES, STATES, Activity, SlotState
from pilotage_server.core.jobs.states import FINAL, TRANSITIONS, JobCause, JobState, job_status
from support.reference.markdown import cell, code, member_rows, table

State = TypeVar("State", bound=StrEnum)
Cause = TypeVar("Cause", bound=StrEnum)

_HEAD = """# States

On this page you find all states of jobs, attempts and pilots. `make reference` writes it from the enums and the tables
of transitions. A transition that is not listed does
not happen. [Hold codes](hold-codes.md) has the reasons of holds and failures, and the outcomes of attempts.

## Jobs

`JobStatus` is HTCondor's number, as in the [ad](job-ads.md) of the job. A final state ends only if the job is
rescheduled.
"""

_CAUSES = """### Causes

Each event of a job has the cause of its transition (`pilotage events`).
"""

_ATTEMPTS = """## Attempts in a pilot

A pilot takes each attempt through these stages. Users see the state of the job.
"""

_PILOTS = """## Pilots

`pilotage pilots` shows these states.
"""

_SLOTS = """## Slots

States and activities are HTCondor's, as in `condor_status`. At each poll the [policy](../how-to/run-a-policy.md) of
the slot may change them too: START moves a slot between Owner and Unclaimed; SUSPEND, CONTINUE, PREEMPT, KILL and the
ends of retirement and vacate time move a claimed one.
"""

_ORDERS = """### What else changes a slot

An event in another state or activity has no effect, or does not happen.
"""


def page() -> str:
    """Return the text of the page."""
    jobs = [
        (code(state), text, str(job_status(state)), "yes" if state in FINAL else "no")
        for state, text in member_rows(JobState)
    ]
    pairs = [(code(state), text, code(*ACTIVITIES[state])) for state, text in member_rows(SlotState)]
    return "\n".join(
        [
            _HEAD,
            *table(("state", "means", "JobStatus", "final"), jobs),
            _CAUSES,
            *_steps("cause", JobCause, JobState, TRANSITIONS),
            _ATTEMPTS,
            *_meanings("stage", Stage),
            *_steps("step", Step, Stage, ATTEMPT_TRANSITIONS),
            _PILOTS,
            *_meanings("state", PilotState),
            _SLOTS,
            *table(("state", "means", "activities"), pairs),
            *_meanings("activity", Activity),
            _ORDERS,
            *table(("event", "means", "in", "does"), _slot_steps()),
        ]
    )


def _meanings(heading: str, enum: type[Enum]) -> list[str]:
    return table((heading, "means"), [(code(member.value), text) for member, text in member_rows(enum)])


def _steps(
    heading: str, causes: type[Cause], states: type[State], transitions: Mapping[tuple[State, Cause], State]
) -> list[str]:
    """Return a table of causes, each with the states that it leads to and from."""
    rows = []
    for cause, text in member_rows(causes):
        ends = {after: [before for before in states if transitions.get((before, cause)) is after] for after in states}
        ways = [f"{code(*before)} → {code(after)}" for after, before in ends.items() if before]
        rows.append((code(cause.value), text, "; ".join(ways)))
    return table((heading, "means", "from → to"), rows)


def _slot_steps() -> list[tuple[str, ...]]:
    """Return a row for each event of a slot and each effect that it has."""
    steps: dict[tuple[type, object], list[tuple[SlotState, Activity]]] = {}
    places = [(state, activity) for state in SlotState for activity in ACTIVITIES[state]]
    for event in dict.fromkeys(event for _, _, event in SLOT_TRANSITIONS):
        for state, activity in places:
            step = SLOT_TRANSITIONS.get((state, activity, event), nothing)
            if step is not nothing:
                steps.setdefault((event, step), []).append((state, activity))
    return [
        (code(event.__name__), _summary(event), _places(pairs), _summary(step))
        for (event, step), pairs in steps.items()
    ]


def _places(pairs: list[tuple[SlotState, Activity]]) -> str:
    if set(pairs) == STATES:
        return "any"
    whole = [state for state in SlotState if all((state, activity) in pairs for activity in ACTIVITIES[state])]
    rest = (f"{state}/{activity}" for state, activity in pairs if state not in whole)
    return code(*whole, *rest)


def _summary(documented: object) -> str:
    return cell((inspect.getdoc(documented) or "").partition("\n\n")[0])
