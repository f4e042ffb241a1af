"""The queues of routed jobs, derived from the text of their targets."""

from __future__ import annotations

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.routing import NewRoutedJob
from pilotage_server.core.health.black_holes import Location, LocationLevel, locations_of
from pilotage_server.core.jobs.record import is_router_stamp, location_name, queue_of_target, router_stamp
from pilotage_server.core.routing import target_queue


@pytest.mark.parametrize(
    ("target", "queue", "name"),
    [
        ("queue CERN/ce01/long", QueueId("CERN", "ce01", "long"), "CERN/ce01/long"),
        ("server far.example:4711", QueueId("far.example:4711", "", ""), "server far.example:4711"),
        ("queue of someone", QueueId("queue of someone", "", ""), "server queue of someone"),
        ("elsewhere", QueueId("elsewhere", "", ""), "server elsewhere"),
    ],
)
def test_target_is_queue_of_tree_or_site_without_queues(target: str, queue: QueueId, name: str) -> None:
    assert queue_of_target(target) == queue
    assert location_name(queue) == name


def test_queue_of_router_wins_over_target_text() -> None:
    queue = QueueId("CERN", "ce01", "long")
    assert target_queue(NewRoutedJob(1, "north", "the long one", queue)) == queue


def test_remote_server_is_a_site_location_without_queue() -> None:
    assert locations_of(queue_of_target("server far:4711"), "") == (Location(LocationLevel.SITE, "far:4711"),)
    assert [location.level for location in locations_of(queue_of_target("server far:4711"), "n1")] == [
        LocationLevel.NODE,
        LocationLevel.SITE,
    ]


def test_router_stamp_is_no_pilot_stamp() -> None:
    assert is_router_stamp(router_stamp("job router of sky"))
    assert not is_router_stamp("0123456789abcdef")
