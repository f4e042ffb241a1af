"""The diagrams of the documentation show all that the tables of transitions have."""

from __future__ import annotations

import re

import pytest

from pilotage.values.pilots import PilotState
from pilotage_pilot.core.attempts.attempt import TRANSITIONS as STEPS
from pilotage_pilot.core.slots.states import ACTIVITIES
from pilotage_server.core.jobs.states import LEASED, TRANSITIONS, JobCause, JobState
from support.site.diagrams import DIAGRAMS

ARROW = re.compile(r'"(?P<before>[^"]+)" -> "(?P<after>[^"]+)" \[label="(?P<labels>[^"]*)"(?P<box>.*)\]')


def arrows(name: str) -> dict[tuple[str, str], set[str]]:
    """Return the labels of the arrows of a diagram by their ends; a box is `with …` or another title."""
    found = {}
    for arrow in ARROW.finditer(DIAGRAMS[name]()):
        box = re.search(r'ltail="cluster_([^"]+)"', arrow["box"])
        labels = {label for label in arrow["labels"].split("\\l") if label}
        found[box[1] if box else arrow["before"], arrow["after"]] = labels
    return found


def test_job_diagrams_show_each_cause_once() -> None:
    shown = [{label for labels in arrows(name).values() for label in labels} for name in DIAGRAMS if "job-" in name]
    assert set().union(*shown) == {cause.value for _, cause in TRANSITIONS}
    assert sum(map(len, shown)) == len(set().union(*shown))


def test_step_of_all_states_of_a_box_begins_at_the_box() -> None:
    shown = arrows("job-states")
    assert JobCause.EVICTED.value in shown["with a lease", JobState.WAITING]
    assert not [ends for ends, labels in shown.items() if ends[0] in LEASED and JobCause.EVICTED.value in labels]
    assert JobCause.STARTED.value in shown[JobState.MATCHED, JobState.RUNNING]


def test_attempt_diagram_shows_each_step() -> None:
    shown = {label for labels in arrows("attempt-stages").values() for label in labels}
    assert shown == {step.value for _, step in STEPS}


def test_slot_diagrams_reach_each_state_and_activity() -> None:
    under_policy, ordered = arrows("slot-states"), arrows("slot-orders")
    reached = {end for _, end in (*under_policy, *ordered)}
    assert reached == {
        state if len(activities) == 1 else f"{state}/{activity}"
        for state, activities in ACTIVITIES.items()
        for activity in activities
    }
    assert "SUSPEND" in under_policy["Claimed/Busy", "Claimed/Suspended"]
    assert "job granted" in under_policy["Unclaimed", "Claimed/Idle"]


@pytest.mark.parametrize("state", PilotState)
def test_pilot_diagram_shows_what_follows_each_state(state: PilotState) -> None:
    follow = {after for before, after in arrows("pilot-states") if before == state}
    assert (not follow) == (state is PilotState.ENDED)
